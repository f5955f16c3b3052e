#include "parallel/comm/nccl/nccl_check.h"

#include <fmt/format.h>

namespace weft {

std::string describe_nccl(ncclResult_t result, ncclComm_t communicator) {
  std::string text = ncclGetErrorString(result);
  const char* detail = ncclGetLastError(communicator);
  if (detail != nullptr && *detail != '\0') text += fmt::format(": {}", detail);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace weft
