// Receives that must stand earlier so that messages get through on the lanes of devices. A send holds its lane until
// the peer has come to the receive on its own (check/check_lanes.h states the rules, and proves the result by itself).
#pragma once

#include "parallel/pipeline/program/program.h"

namespace weft {

// Runs the messages of stage-level lists as far as they go, and where they stand still lets the other end of a message
// that is at the head of its lane come to the head of its own. Returns how many receives were moved: none for any
// schedule of the table.
int take_messages_earlier_on_lanes(Program& program);

}  // namespace weft
