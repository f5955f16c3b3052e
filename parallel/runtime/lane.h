// The queues of a rank. Gathers and reductions have their own, so that neither waits for the other; so has each
// direction of the pipeline and the exchange of rows between experts, which runs beside the shared expert.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "parallel/runtime/device.h"

namespace weft {

enum class Lane : std::uint8_t { compute, gather, reduce, transfer_forward, transfer_backward, exchange };
inline constexpr std::array all_lanes = {Lane::compute,           Lane::gather,  Lane::reduce, Lane::transfer_forward,
                                         Lane::transfer_backward, Lane::exchange};
constexpr std::string_view name_of(Lane lane) {
  constexpr std::string_view names[] = {"compute",           "gather",  "reduce", "transfer_forward",
                                        "transfer_backward", "exchange"};
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
