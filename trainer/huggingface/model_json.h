// config.json of a Hugging Face folder: the architecture and shape of its model. Writing writes every key, because
// classes of transformers have defaults of their own (norm_topk_prob is false, for example). Reading refuses, by name,
// every key with which Weft would compute something else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/model_config.h"
#include "parallel/runtime/dtype.h"
#include "trainer/huggingface/architecture.h"

namespace weft {

// Facts of a folder about its model besides the shape.
struct FolderFacts {
  std::int64_t max_position_embeddings = 0;  // 0: not given
  DType dtype = DType::float32;              // of most weights
  // Each has no, one or several tokens; any of several may end a text.
  std::vector<std::int64_t> bos_token_id, eos_token_id, pad_token_id;
};

std::string model_json(Architecture architecture, const ModelConfig& model, const FolderFacts& facts);
std::string generation_json(const FolderFacts& facts);

struct FolderModel {
  Architecture architecture = Architecture::llama;
  ModelConfig model;
  bool leaves_predictors = false;  // config.json tells of predictors that the weights do not have
};
// Throws Error (request) naming `name` and listing every key that is missing, of another type, or not supported by
// Weft. Not supported are biases, scaled rotary embedding, a sliding window of some blocks, and quantised weights.
FolderModel parse_model_json(const std::string& text, const std::string& name);
// Parses the facts in config.json besides the shape, for any architecture; leaves dtype unchanged. Throws Error
// (request) naming `name` and every key of another type.
FolderFacts parse_folder_facts(const std::string& text, const std::string& name);

// The coefficient of the load-balancing loss. The same pull on a router is another number in transformers than in Weft.
// Let there be E experts, K choices per token and B MoE blocks. f_be is the number of choices of expert e in block b
// per token (summing to K over e). p_be is the mean probability of the expert:
//
//   transformers  E * sum_e (mean_b f_be) * (mean_b p_be)         load_balancing_loss_func: K where routing is uniform
//   Weft          sum_b E / K * sum_e f_be * p_be, by sequence    routing.h: B where routing is uniform
//
// If all blocks and sequences have the same f and p, Weft's loss is B / K times that of transformers. So is the
// gradient of each block. Otherwise transformers lets another block or sequence make up for a block that neglects an
// expert. No factor expresses this.
//
// Weft's router_aux_loss_coef for the one of a folder's config.json: x K / B.
double coefficient_from_folder(double of_folder, const ModelConfig& model);
// The inverse: x B / K, rounded to 15 digits, so that a folder's value returns to the folder unchanged.
double coefficient_for_folder(const ModelConfig& model);

// The conversion in one line, for the user; empty without such a loss.
std::string coefficient_text(const ModelConfig& model);

}  // namespace weft
