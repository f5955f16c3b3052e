// What is left to choose between kernels of a GPU that compute the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft {

struct AttentionChoice {
  enum class Kernel : std::uint8_t { automatic, own, cudnn };
  Kernel kernel = Kernel::automatic;  // cuDNN's where it has one, ours elsewhere
  int engine = -1;  // of those that cuDNN's heuristics list for a graph, from 0; -1: the first that can be prepared

  bool operator==(const AttentionChoice&) const = default;
};
// "auto", "own", "cudnn" or "cudnn:<engine>", or nothing.
std::optional<AttentionChoice> parse_attention_choice(std::string_view text);

struct GpuKernelOptions {
  AttentionChoice attention = {};
  // A run that is repeated on the same GPU gives the same bits. cuDNN's backward then stores batch x query heads x
  // queries x keys scores.
  bool deterministic = false;
  // Products of a step are timed once on the GPU, to take the fastest algorithm of each. Which it is may differ from
  // run to run where no file has kept it, so not where bits have to repeat.
  bool measured_products = false;
};

}  // namespace weft
