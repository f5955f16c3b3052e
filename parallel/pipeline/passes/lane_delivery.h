// Moves receives earlier, so that messages do not deadlock on the lanes of devices. A send holds its lane until the
// peer has come to the receive on its own lane (check/check_parts.h states the rules and proves the result
// independently).
#pragma once

#include "parallel/pipeline/program/program.h"

namespace weft {

// Runs the messages of stage-level lists as far as they go. In a deadlock, a message at the head of its sender's lane
// has its receive moved to the head of the receiver's lane. Returns the number of moved receives: 0 for every schedule
// of the table.
int take_messages_earlier_on_lanes(Program& program);

}  // namespace weft
