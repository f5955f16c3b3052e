// Stands in for the CUDA backend (the folders `cuda` and `nccl`) in a build without it.
#include "trainer/cuda_versions.h"

namespace weft {

std::string cuda_versions() {
  return "cpu";
}

}  // namespace weft
