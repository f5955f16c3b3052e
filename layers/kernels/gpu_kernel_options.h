// Choices between GPU kernels that compute the same result.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

struct AttentionChoice {
  enum class Kernel : std::uint8_t { automatic, own, cudnn };
  Kernel kernel = Kernel::automatic;  // automatic: cuDNN's if it has one, else ours
  int engine = -1;  // index in the list of cuDNN's heuristics for a graph; -1: the first that can be prepared

  bool operator==(const AttentionChoice&) const = default;
};
// Reads "auto", "own", "cudnn" or "cudnn:<engine>". Throws Error (request) for any other text.
AttentionChoice parse_attention_choice(std::string_view text);
std::string to_string(const AttentionChoice& choice);

struct GpuKernelOptions {
  AttentionChoice attention = {};
  // A repeated run on the same GPU gives the same bits. cuDNN's backward then stores batch x query heads x queries x
  // keys scores.
  bool deterministic = false;
  // Times the products of a step once on the GPU and takes the fastest algorithm of each. Not for runs whose bits must
  // repeat: without a file that keeps the choice, it may differ from run to run.
  bool measured_products = false;
  // Some products read their factors in 8 bits, in these formats.
  bool float8 = false, float8_blocks = false;
  // The device takes each action of a segment as one CUDA graph, where its shapes are fixed and no rank exchanges.
  bool captured_regions = false;
};

// Throws Error (request) if a device of this compute capability (90 for 9.0) has no kernel for an option.
void require_kernels(const GpuKernelOptions& options, int compute_capability);

}  // namespace weft
