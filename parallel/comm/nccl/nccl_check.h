// Describes NCCL's results in words.
#pragma once

#include <nccl.h>

#include <string>

namespace weft {

// "unhandled system error (ncclSystemError): ..." with NCCL's own text on the last error, if there is one.
std::string describe_nccl(ncclResult_t result, ncclComm_t communicator = nullptr);

// Whether a call of a non-blocking communicator succeeded or is in progress.
constexpr bool accepted(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace weft
