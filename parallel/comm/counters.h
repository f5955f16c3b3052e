// Counts of communication by group and operation. One per rank; filled by Communicator, read by metrics and tests.
//
// Bytes are the payload of one call: the gathered output for all_gather, the whole input for reduce_scatter, and the
// buffer for all_reduce and broadcast. For all_to_all and send they are the bytes sent by this rank. A receive counts
// as a call of zero bytes, so that a sum over ranks counts every transfer once.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "parallel/runtime/enum_names.h"

namespace weft {

enum class CollectiveOp : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  send,
  receive,
  barrier,
};
constexpr auto enum_names(CollectiveOp) {
  return name_list("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send", "receive",
                   "barrier");
}

struct CommunicationCount {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool operator==(const CommunicationCount&) const = default;
};

struct CommunicationKey {
  std::string group;
  CollectiveOp op;
  auto operator<=>(const CommunicationKey&) const = default;
};

using CommunicationCounters = std::map<CommunicationKey, CommunicationCount>;

}  // namespace weft
