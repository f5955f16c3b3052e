#include "layers/kernels/gpu_kernel_options.h"

#include <charconv>

#include "parallel/runtime/error.h"

namespace weft {

std::optional<AttentionChoice> parse_attention_choice(std::string_view text) {
  AttentionChoice choice;
  constexpr std::string_view with_engine = "cudnn:";
  if (text == "auto") return choice;
  choice.kernel = AttentionChoice::Kernel::own;
  if (text == "own") return choice;
  choice.kernel = AttentionChoice::Kernel::cudnn;
  if (text == "cudnn") return choice;
  if (!text.starts_with(with_engine)) return std::nullopt;
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data() + with_engine.size(), end, choice.engine);
  if (error != std::errc() || behind != end || choice.engine < 0) return std::nullopt;
  return choice;
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
