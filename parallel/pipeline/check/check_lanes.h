// Whether the messages of a program get through on the lanes of devices (parallel/runtime/lane.h), where both ends of a
// message take their lanes' time. Each rank's host walks the list and queues messages on their lanes; each lane is
// worked off in the order of the list; a message passes when both its ends are at the head of their lanes, and until
// then a send holds its lane as a receive does. Compute waits for the messages with its data.
//
// The host waits for each compute action until it is over, as it does where tokens are counted by expert. A host that
// is ahead only has fewer waits, so what runs here runs with it, too.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "parallel/pipeline/check/check_messages.h"

namespace weft {

// The queue that each lane is, by lane. Lanes with one number would be one stream.
using LaneQueues = std::array<std::uint8_t, all_lanes.size()>;
constexpr LaneQueues separate_queues() {
  LaneQueues queues{};
  for (std::size_t lane = 0; lane < queues.size(); ++lane) queues[lane] = static_cast<std::uint8_t>(lane);
  return queues;
}

// A circle of ranks and lanes that wait for each other, or nothing. `exchange` matches, in order. Takes time linear in
// the lengths of the lists.
std::optional<Finding> find_lane_deadlock(const CheckContext& context, const Exchange& exchange,
                                          const LaneQueues& queues = separate_queues());

}  // namespace weft
