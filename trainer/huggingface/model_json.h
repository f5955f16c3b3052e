// config.json of a Hugging Face folder: the architecture and shape of its model. Every key is written, because classes
// of transformers have defaults of their own (norm_topk_prob is false, for one); what is read is refused by name where
// Weft would compute something else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/model_config.h"
#include "parallel/runtime/dtype.h"
#include "trainer/huggingface/architecture.h"

namespace weft {

// What a folder says of a model beside its shape.
struct FolderFacts {
  std::int64_t max_position_embeddings = 0;  // 0: it does not say
  DType dtype = DType::float32;              // that most of the weights have
  // Of no, one or several tokens; any of several may end a text.
  std::vector<std::int64_t> bos_token_id, eos_token_id, pad_token_id;
};

std::string model_json(Architecture architecture, const ModelConfig& model, const FolderFacts& facts);
std::string generation_json(const FolderFacts& facts);

struct FolderModel {
  Architecture architecture = Architecture::llama;
  ModelConfig model;
};
// Throws Error (request) naming `name` and listing everything that is missing, of another kind, or not what Weft
// computes: biases, scaled rotary embedding, a sliding window, quantised weights.
FolderModel parse_model_json(const std::string& text, const std::string& name);
// What config.json says beside the shape, of any architecture; the dtype is left as it is. Throws Error (request)
// naming `name` and what is of another kind.
FolderFacts parse_folder_facts(const std::string& text, const std::string& name);

}  // namespace weft
