// Which tensor of a Hugging Face folder holds which parameter. Matrices are [out, in] there; projections into the
// hidden width, which Weft keeps transposed, are turned. Rotary embedding is in half-rotate form on both sides, so rows
// of q and k keep their order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layers/model_config.h"
#include "parallel/runtime/parameter.h"
#include "trainer/huggingface/architecture.h"

namespace weft {

// How experts are written. `separate` is the form of published folders, and what is exported. `fused` is what
// transformers 5 has in memory and may save: gate and up of all experts as one [experts, 2 * width, hidden], gate rows
// first, and down as one [experts, hidden, width].
enum class ExpertTensors : std::uint8_t { separate, fused };

// A parameter as rows of a tensor in a folder.
struct FolderPart {
  ParameterSpec parameter;
  std::string tensor;
  std::int64_t first_row = 0;  // of the tensor, leading extents taken together
  // Of the part as the folder has it: the parameter's, or its columns where that is transposed.
  std::int64_t rows = 0, columns = 0;

  // Without the experts of a fused tensor.
  std::vector<std::int64_t> shape() const;
};

struct FolderTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool operator==(const FolderTensor&) const = default;
};

// Every parameter of the model, in the model's order.
std::vector<FolderPart> folder_parts(Architecture architecture, const ModelConfig& model,
                                     ExpertTensors experts = ExpertTensors::separate);
// Every tensor that such a folder has, each once, in the model's order.
std::vector<FolderTensor> folder_tensors(Architecture architecture, const ModelConfig& model,
                                         ExpertTensors experts = ExpertTensors::separate);

// Tensors that old folders have and nobody reads: rotary_emb.inv_freq.
bool is_ignored_tensor(std::string_view name);
inline constexpr const char* folder_embedding = "model.embed_tokens.weight";
inline constexpr const char* folder_head = "lm_head.weight";

}  // namespace weft
