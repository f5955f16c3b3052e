// The tensors of a Hugging Face folder for each parameter. Matrices there are [out, in]. Projections into the hidden
// width are transposed on the way, because Weft stores them transposed. Rotary embedding is in half-rotate form on both
// sides, so the rows of q and k keep their order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layers/model_config.h"
#include "parallel/runtime/parameter.h"
#include "trainer/huggingface/architecture.h"

namespace weft {

// Storage of experts. `separate` is the form of published folders and of exports. `fused` is the in-memory form of
// transformers 5, which may also be saved. Gate and up of all experts are one [experts, 2 * width, hidden], gate rows
// first. Down is one [experts, hidden, width].
enum class ExpertTensors : std::uint8_t { separate, fused };

// A parameter as rows of a tensor in a folder.
struct FolderPart {
  ParameterSpec parameter;
  std::string tensor;
  std::int64_t first_row = 0;  // in the tensor, with leading extents flattened
  // Extents of the part in the folder: the parameter's, swapped if transposed.
  std::int64_t rows = 0, columns = 0;
  // Of a tensor in which parts stand side by side.
  std::int64_t first_column = 0, tensor_columns = columns;
  std::vector<std::int64_t> shape = {};  // of the tensor
};

struct FolderTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Every parameter of the model, in the model's order.
std::vector<FolderPart> folder_parts(Architecture architecture, const ModelConfig& model,
                                     ExpertTensors experts = ExpertTensors::separate);
// Every tensor of such a folder, each once, in the model's order.
std::vector<FolderTensor> folder_tensors(Architecture architecture, const ModelConfig& model,
                                         ExpertTensors experts = ExpertTensors::separate);

// A tensor of a folder that is no parameter: a copy of another tensor of the folder, or zeros.
struct FolderExtra {
  FolderTensor tensor;
  std::string copy_of;  // empty: zeros
};
// A predictor's embedding and head, and the selection biases of an architecture for a model without them.
std::vector<FolderExtra> folder_extras(Architecture architecture, const ModelConfig& model);

inline constexpr const char* folder_embedding = "model.embed_tokens.weight";
inline constexpr const char* folder_head = "lm_head.weight";

}  // namespace weft
