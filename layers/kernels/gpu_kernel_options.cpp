#include "layers/kernels/gpu_kernel_options.h"

#include <charconv>

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

}  // namespace weft
