// Turns NCCL's results into words.
#pragma once

#include <nccl.h>

#include <string>

namespace weft {

// "unhandled system error (ncclSystemError): ..." with NCCL's own account of the last error, if there is one.
std::string describe_nccl(ncclResult_t result, ncclComm_t communicator = nullptr);

// Success, or under way: what follows a call of a communicator that does not block.
constexpr bool accepted(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace weft
