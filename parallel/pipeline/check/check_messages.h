// The messages of a program as the checker sees them: both ends of each, by rank and by channel.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "parallel/pipeline/check/check_parts.h"

namespace weft {

// One end of a message, in list order of its rank. Ends are as numerous as actions, so their numbers are narrow; no
// program exceeds them (orders/order_input.h).
struct End {
  int rank = 0;
  std::uint32_t index = 0;  // position in the rank's list
  std::uint32_t channel = 0;
  std::uint32_t turn = 0;        // number in its channel, on this side
  std::tuple<int, int> message;  // stage that sends, microbatch
  bool sends = false;
};

// Messages from one rank to another in one direction of the pass. They arrive in order.
struct Channel {
  int from = 0, to = 0;
  std::vector<End> sends, receives;
};

struct Exchange {
  std::vector<Channel> channels;
  std::vector<std::vector<End>> ranks;  // the ends of every rank, in list order

  int peer(const End& end) const { return end.sends ? channels[end.channel].to : channels[end.channel].from; }
};

// All legible ends, whether or not they match.
Exchange collect_messages(const CheckContext& context);

}  // namespace weft
