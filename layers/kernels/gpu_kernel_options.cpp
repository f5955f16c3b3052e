#include "layers/kernels/gpu_kernel_options.h"

#include <optional>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {

AttentionChoice parse_attention_choice(std::string_view text) {
  using enum AttentionChoice::Kernel;
  constexpr std::string_view with_engine = "cudnn:";
  if (text == "auto") return {automatic};
  if (text == "own") return {own};
  if (text == "cudnn") return {cudnn};
  const auto engine =
      text.starts_with(with_engine) ? parsed_number<int>(text.substr(with_engine.size())) : std::nullopt;
  if (engine.value_or(-1) >= 0) return {cudnn, *engine};
  fail_request("\"{}\" is none of \"auto\", \"own\", \"cudnn\" and \"cudnn:<engine>\"", text);
}

std::string to_string(const AttentionChoice& choice) {
  if (choice.kernel == AttentionChoice::Kernel::automatic) return "auto";
  if (choice.kernel == AttentionChoice::Kernel::own) return "own";
  return choice.engine < 0 ? "cudnn" : fmt::format("cudnn:{}", choice.engine);
}

void require_kernels(const GpuKernelOptions& options, int compute_capability) {
  constexpr int first_in_8_bits = 89;
  if (options.float8 && compute_capability < first_in_8_bits) {
    fail_request(
        "precision.compute = \"float8\" needs a GPU of compute capability 8.9 or later, and this one has {}.{}: it "
        "multiplies nothing in 8 bits",
        compute_capability / 10, compute_capability % 10);
  }
  // cuBLASLt has products with scales of blocks for Hopper alone.
  constexpr int hopper = 90;
  if (options.float8_blocks && compute_capability != hopper) {
    fail_request(
        "precision.compute = \"float8_blocks\" needs a GPU of compute capability 9.0 (H100, H200), and this one has "
        "{}.{}: write \"float8\"",
        compute_capability / 10, compute_capability % 10);
  }
}

}  // namespace weft
