// Whether the messages of a program deadlock on the lanes of devices (parallel/runtime/lane.h), where both ends of a
// message occupy their lanes. Each rank's host walks the list and queues messages on their lanes. Each lane runs in the
// order of the list. A message passes when both its ends are at the head of their lanes; until then a send holds its
// lane, as a receive does. Compute waits for the messages with its data.
//
// The host waits for the end of each compute action, as it does if tokens are counted by expert. A host that runs ahead
// has fewer waits, so a program that passes here also runs with such a host.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "parallel/pipeline/check/check_messages.h"

namespace weft {

// The queue of each lane, by lane. Lanes with one number are one stream.
using LaneQueues = std::array<std::uint8_t, all_lanes.size()>;
constexpr LaneQueues separate_queues() {
  LaneQueues queues{};
  for (std::size_t lane = 0; lane < queues.size(); ++lane) queues[lane] = static_cast<std::uint8_t>(lane);
  return queues;
}

// A circle of ranks and lanes that wait for each other; absent if there is none. The messages of `exchange` must match,
// in order. Takes time linear in the lengths of the lists.
std::optional<Finding> find_lane_deadlock(const CheckContext& context, const Exchange& exchange,
                                          const LaneQueues& queues = separate_queues());

}  // namespace weft
