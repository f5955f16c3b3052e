// Stands in for the CUDA backend (the folders `cuda` and `nccl`) in a build without it.
#include "parallel/runtime/error.h"
#include "trainer/backend.h"
#include "trainer/cuda_versions.h"
#include "trainer/launch.h"

namespace weft {

std::string cuda_versions() {
  return "cpu";
}

std::unique_ptr<Backend> make_cuda_backend(int) {
  fail_request("run.device = \"cuda\", but this program was built without CUDA (README, Build)");
}

void run_process_rank(const Config&, const RankMain&) {
  fail_request("run.launch = \"processes\", but this program was built without CUDA (README, Build)");
}

int cuda_devices() {
  return 0;
}

}  // namespace weft
