#pragma once

#include <string>

namespace weft {

// The CUDA libraries that this process runs with, "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9", or "cpu"
// if the CUDA backend is not built. Needs neither a GPU nor a driver.
std::string cuda_versions();

}  // namespace weft
