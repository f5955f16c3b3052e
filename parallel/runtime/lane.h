// The queues of a rank. Gathers and reductions have their own, so that neither waits for the other; so has the exchange
// of rows between experts, which runs beside the shared expert. Messages between stages have four: activations and
// gradients, each to higher ranks (up) and to lower ones (down). Where a rank runs several stages it sends to a
// neighbour from which it also receives; a send that holds its queue until the other side takes the message must not
// stand in front of the receive that the other side waits to be rid of.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "parallel/runtime/device.h"

namespace weft {

enum class Lane : std::uint8_t {
  compute,
  gather,
  reduce,
  activations_up,
  activations_down,
  gradients_up,
  gradients_down,
  exchange
};
inline constexpr std::array all_lanes = {Lane::compute,        Lane::gather,           Lane::reduce,
                                         Lane::activations_up, Lane::activations_down, Lane::gradients_up,
                                         Lane::gradients_down, Lane::exchange};
inline constexpr std::array transfer_lanes = {Lane::activations_up, Lane::activations_down, Lane::gradients_up,
                                              Lane::gradients_down};
constexpr std::string_view name_of(Lane lane) {
  constexpr std::string_view names[] = {"compute",          "gather",       "reduce",         "activations_up",
                                        "activations_down", "gradients_up", "gradients_down", "exchange"};
  return names[static_cast<std::size_t>(lane)];
}

// One stream a lane, made on one device.
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
