// Stands in for the CUDA backend (the folders `cuda` and `nccl`) in a build without it.
#include "parallel/runtime/error.h"
#include "trainer/rank/backend.h"
#include "trainer/rank/launch.h"

namespace weft {

std::string cuda_versions() {
  return "cpu";
}

std::unique_ptr<Backend> make_cuda_backend(int, const GpuKernelOptions&) {
  fail_request("device cuda cannot be used: {}", *why_no_cuda());
}

void run_process_rank(const Config&, const RankMain&, const Admission&) {
  fail_request("device cuda cannot be used: {}", *why_no_cuda());
}

std::optional<std::string> why_no_cuda() {
  return "this program was built without CUDA (docs/install.md)";
}

std::optional<std::int64_t> cuda_memory() {
  return std::nullopt;
}

int cuda_devices() {
  return 0;
}

std::optional<std::string> cuda_card() {
  return std::nullopt;
}

}  // namespace weft
