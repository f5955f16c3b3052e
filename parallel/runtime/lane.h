// The queues (streams) of a rank. Gathers and reductions have separate lanes, so that neither waits for the other. The
// exchange of rows between experts has its own lane too, because it runs beside the shared expert, or beside another
// microbatch. Messages between stages have eight lanes: activations and gradients, each to higher ranks (up) and to
// lower ranks (down), sent and received. A message occupies the lanes of both its ends until it has passed. A rank in
// the middle receives the next microbatch from below while the previous one is still computed or sent up. A rank with
// several stages sends to a neighbour from which it also receives. None of these messages may block another, hence
// eight lanes. What stays in host memory has a lane for each direction, because the bus carries both at once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "parallel/runtime/device.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

enum class Lane : std::uint8_t {
  compute,
  gather,
  reduce,
  send_activations_up,
  receive_activations_up,
  send_activations_down,
  receive_activations_down,
  send_gradients_up,
  receive_gradients_up,
  send_gradients_down,
  receive_gradients_down,
  exchange,
  to_host,
  from_host
};
constexpr auto enum_names(Lane) {
  return name_list("compute", "gather", "reduce", "send_activations_up", "receive_activations_up",
                   "send_activations_down", "receive_activations_down", "send_gradients_up", "receive_gradients_up",
                   "send_gradients_down", "receive_gradients_down", "exchange", "to_host", "from_host");
}
inline constexpr auto all_lanes = all_values<Lane>;

// A number for each lane. Lanes with one number share what is numbered.
using LaneNumbers = std::array<std::uint8_t, all_lanes.size()>;
inline constexpr LaneNumbers own_numbers = [] {
  LaneNumbers numbers{};
  for (std::size_t lane = 0; lane < numbers.size(); ++lane) numbers[lane] = static_cast<std::uint8_t>(lane);
  return numbers;
}();

// The lanes of a message: the sender's and the receiver's.
struct MessageLanes {
  Lane send, receive;
};
inline constexpr std::array message_lanes = {MessageLanes{Lane::send_activations_up, Lane::receive_activations_up},
                                             MessageLanes{Lane::send_activations_down, Lane::receive_activations_down},
                                             MessageLanes{Lane::send_gradients_up, Lane::receive_gradients_up},
                                             MessageLanes{Lane::send_gradients_down, Lane::receive_gradients_down}};

// One stream for each lane, created on one device.
class Lanes {
 public:
  explicit Lanes(Device& device) {
    for (Lane lane : all_lanes) streams_[static_cast<std::size_t>(lane)] = device.create_stream(name_of(lane));
  }
  Stream& operator[](Lane lane) { return *streams_[static_cast<std::size_t>(lane)]; }

 private:
  std::array<std::unique_ptr<Stream>, all_lanes.size()> streams_;
};

}  // namespace weft
