// Channels of lanes beside those of the product's devices.
#pragma once

#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

// Gathers and reductions take turns, the rest as LaneChannels::own().
inline LaneChannels shared_collectives() {
  LaneChannels lanes = LaneChannels::own();
  lanes.channel[static_cast<std::size_t>(Lane::reduce)] = lanes.of(Lane::gather);
  return lanes;
}

// As LaneChannels::serial(), with a delay by the link between threads; the link of experts takes one exchange of rows
// at a time.
inline LaneChannels delayed() {
  LaneChannels lanes{.link_delays = true};
  lanes.channel[static_cast<std::size_t>(Lane::exchange)] = LaneChannels::own().of(Lane::exchange);
  return lanes;
}

}  // namespace weft
