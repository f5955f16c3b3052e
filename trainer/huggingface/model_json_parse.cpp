#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/tokenizer/json_fields.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

constexpr std::int64_t largest_size = std::numeric_limits<std::int32_t>::max();
// Limit for blocks, and for experts over all blocks; a larger number means a wrong file.
constexpr std::int64_t largest_count = 1'000'000;

// Reads values of a config.json and collects their faults.
class ModelReading {
 public:
  explicit ModelReading(const SortedJson& json) : json_(json) {}

  // Null counts as absent, as in transformers.
  const SortedJson* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool is_null(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_null();
  }
  template <typename... Args>
  void fault(fmt::format_string<Args...> text, Args&&... args) {
    faults_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void fault_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
    if (wrong) fault(text, std::forward<Args>(args)...);
  }

  std::int64_t size(const char* key, std::optional<std::int64_t> absent = {}) {
    const auto fits = [](const SortedJson& said) { return is_integer_from(1, said); };
    return value(key, absent, std::int64_t{1}, fits, fmt::format("not a size from 1 to {}", largest_size));
  }
  std::int64_t count(const char* key, std::int64_t absent) {
    const auto fits = [](const SortedJson& said) { return is_integer_from(0, said); };
    return value(key, std::optional(absent), absent, fits,
                 fmt::format("not a number of them from 0 to {}", largest_size));
  }
  double number(const char* key, double lowest, std::optional<double> absent = {}) {
    const auto fits = [&](const SortedJson& said) {
      return said.is_number() && said.get<double>() >= lowest && std::isfinite(said.get<double>());
    };
    return value(key, absent, 1.0, fits, fmt::format("not a number from {}", lowest));
  }
  bool boolean(const char* key, std::optional<bool> absent = {}) {
    return value(
        key, absent, false, [](const SortedJson& said) { return said.is_boolean(); }, "neither true nor false");
  }
  // No, one or several tokens; several as a list.
  std::vector<std::int64_t> tokens(const char* key) {
    const SortedJson* said = find(key);
    if (said == nullptr) return {};
    const SortedJson list = said->is_array() ? *said : SortedJson::array({*said});
    if (std::ranges::all_of(list, &SortedJson::is_number_integer)) return list;
    fault("{} is {}, neither a token nor a list of tokens", key, said->dump());
    return {};
  }
  void must_be_off(const char* key, const char* what) {
    fault_if(boolean(key, false), "{} is true: Weft has no {}", key, what);
  }
  void throw_faults(const std::string& name) const {
    if (!faults_.empty()) fail_request("{}: {}", name, fmt::join(faults_, "\n" + name + ": "));
  }

 private:
  static bool is_integer_from(std::int64_t least, const SortedJson& said) {
    return said.is_number_integer() && said >= least && said <= largest_size;
  }
  // The value of a key that `fits`; `instead` of another, which is a fault.
  template <typename T, typename Fits>
  T value(const char* key, std::optional<T> absent, T instead, const Fits& fits, const std::string& expected) {
    const SortedJson* said = find(key);
    if (said == nullptr && absent) return *absent;
    if (said != nullptr && fits(*said)) return said->get<T>();
    said == nullptr ? fault("{} is missing", key) : fault("{} is {}, {}", key, said->dump(), expected);
    return instead;
  }

  const SortedJson& json_;
  std::vector<std::string> faults_;
};

// Checks one of the two spellings of the kind of rotary embedding, if given.
void expect_plain_rope(ModelReading& reading, const char* key, const SortedJson& rope) {
  if (!rope.is_object()) return reading.fault("{} is {}, not an object", key, rope.dump());
  for (const auto& [name, value] : rope.items()) {
    const bool type = name == "rope_type" || name == "type";
    const bool plain =
        (type && value == "default") || name == "rope_theta" || (name == "partial_rotary_factor" && value == 1.0);
    reading.fault_if(!plain, "{}.{} is {}: Weft has only the default rotary embedding, over whole heads", key, name,
                     value.dump());
  }
}

// How much of a head the rotary embedding turns; Weft turns all of it. transformers moves the key of any architecture
// into rope_parameters.
void expect_whole_rotary(ModelReading& reading, const ArchitectureTraits& traits) {
  const SortedJson* rope = reading.find("rope_parameters");
  const bool moved = rope != nullptr && rope->is_object() && rope->value("partial_rotary_factor", SortedJson()) == 1.0;
  const double absent = traits.partial_rotary && !moved ? 0.5 : 1.0;
  const double factor = reading.number("partial_rotary_factor", 0.0, absent);
  reading.fault_if(factor != 1.0, "partial_rotary_factor is {} ({} if it is missing): Weft turns whole heads", factor,
                   absent);
}

double rope_theta(ModelReading& reading, const ArchitectureTraits& traits) {
  constexpr double lowest = 1e-30;
  std::optional<double> theta;
  if (reading.find("rope_theta") != nullptr) theta = reading.number("rope_theta", lowest);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const SortedJson* rope = reading.find(key);
    if (rope == nullptr) continue;
    expect_plain_rope(reading, key, *rope);
    if (!rope->is_object() || !rope->contains("rope_theta") || (*rope)["rope_theta"].is_null()) continue;
    const SortedJson& value = (*rope)["rope_theta"];
    const double said = value.is_number() ? value.get<double>() : 0.0;
    if (!(said >= lowest) || !std::isfinite(said)) {
      reading.fault("{}.rope_theta is {}, not a number from {}", key, value.dump(), lowest);
      continue;
    }
    if (theta && *theta != said) reading.fault("rope_theta is {}, but {}.rope_theta is {}", *theta, key, said);
    theta = said;
  }
  return theta.value_or(traits.rope_theta);
}

// The window of all blocks; 0 without one. By block, those from max_window_layers on have it, as layer_types says too.
// The classes of transformers with use_sliding_window take a window of 4096 where none is said.
std::int64_t sliding_window(ModelReading& reading, const ArchitectureTraits& traits, std::int64_t blocks) {
  const bool by_block = traits.window == WindowKeys::by_block;
  const bool switched = by_block || traits.window == WindowKeys::switched;
  const bool used =
      traits.window != WindowKeys::none && !reading.is_null("sliding_window") &&
      (switched ? reading.boolean("use_sliding_window", false) : reading.find("sliding_window") != nullptr);
  std::int64_t window = used ? reading.size("sliding_window", 4096) : 0;
  const SortedJson* types = reading.find("layer_types");
  if (types != nullptr && !types->is_array()) {
    reading.fault("layer_types is {}, not a list", types->dump());
    return window;
  }
  if (used && by_block && types != nullptr && !types->empty()) {
    if (types->front() == "full_attention") window = 0;
  } else if (used && by_block && !traits.first_windows) {
    reading.fault(
        "use_sliding_window is true without layer_types: versions of transformers give different blocks of {} the "
        "window",
        traits.model_type);
  } else if (used && by_block) {
    const std::int64_t first = reading.count("max_window_layers", *traits.first_windows);
    if (first >= blocks) window = 0;
    reading.fault_if(first > 0 && first < blocks,
                     "max_window_layers is {} of {} blocks: Weft has one sliding window for all blocks or none", first,
                     blocks);
  }
  const char* expected = window > 0 ? "sliding_attention" : "full_attention";
  for (const SortedJson& type : types == nullptr ? SortedJson::array() : *types) {
    if (type == expected) continue;
    reading.fault("layer_types has {} where sliding_window makes \"{}\" of every block", type.dump(), expected);
    break;
  }
  return window;
}

// Layers of pairs of blocks.
std::vector<ModelBlock> read_pairs(ModelReading& reading, const ModelConfig& model, std::int64_t count) {
  const SortedJson* types = reading.find("layer_types");
  if (types == nullptr || !types->is_array() || std::cmp_not_equal(types->size(), count)) {
    reading.fault("layer_types is no list of {} layers (num_hidden_layers)", count);
    return {BlockKind::dense};
  }
  const BlockKind kind = model.moe.num_experts > 0 ? BlockKind::moe : BlockKind::dense;
  std::vector<ModelBlock> blocks;
  for (const SortedJson& type : *types) {
    // The names of transformers 4 and of transformers 5.
    const bool attends = type == "attention" || type == "full_attention";
    if (!attends && type != "mamba" && type != "linear_attention") {
      reading.fault("layer_types has {}: layers are \"attention\" or \"mamba\"", type.dump());
      break;
    }
    blocks.emplace_back(BlockKind::none, 0, attends ? Mixer::attention : Mixer::state_space);
    blocks.emplace_back(kind, 0, Mixer::none);
  }
  return blocks;
}

std::vector<ModelBlock> read_blocks(ModelReading& reading, const ArchitectureTraits& traits, std::int64_t count) {
  const BlockKind kind = traits.moe_blocks ? BlockKind::moe : BlockKind::dense;
  std::vector<ModelBlock> blocks(static_cast<std::size_t>(count), kind);
  if (!traits.dense_blocks || !traits.moe_blocks) return blocks;
  if (traits.dense_places == DensePlaces::first) {
    const std::int64_t dense = reading.count("first_k_dense_replace", 1);
    std::fill_n(blocks.begin(), std::min(dense, count), ModelBlock(BlockKind::dense));
    return blocks;
  }
  const auto step = static_cast<std::size_t>(reading.size("decoder_sparse_step", 1));
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    if ((block + 1) % step != 0) blocks[block] = BlockKind::dense;
  }
  const SortedJson* dense = reading.find("mlp_only_layers");
  if (dense == nullptr) return blocks;
  if (!dense->is_array()) reading.fault("mlp_only_layers is {}, not a list", dense->dump());
  for (const SortedJson& block : *dense) {
    if (block.is_number_integer() && block >= 0 && block < count) {
      blocks[block.get<std::size_t>()] = BlockKind::dense;
    } else {
      reading.fault("mlp_only_layers has {}: there are {} blocks", block.dump(), count);
    }
  }
  return blocks;
}

void read_sigmoid_router(ModelReading& reading, MoeConfig& moe) {
  moe.scoring = Scoring::sigmoid;
  moe.selection_bias = true;
  moe.n_group = reading.size("n_group", 1);
  moe.topk_group = reading.size("topk_group", 1);
  moe.routed_scaling_factor = reading.number("routed_scaling_factor", 1e-30, 1.0);
  reading.fault_if(moe.num_experts % moe.n_group != 0 || moe.topk_group > moe.n_group,
                   "n_group is {} and topk_group {}: {} experts do not have such groups", moe.n_group, moe.topk_group,
                   moe.num_experts);
}

MoeConfig read_moe(ModelReading& reading, const ArchitectureTraits& traits) {
  const SortedJson* none = traits.pairs ? reading.find("num_local_experts") : nullptr;
  if (none != nullptr && *none == 0) return {};
  const char* experts = traits.sigmoid_router                    ? "n_routed_experts"
                        : reading.find("num_experts") != nullptr ? "num_experts"
                                                                 : "num_local_experts";
  MoeConfig moe;
  moe.num_experts = reading.size(experts);
  if (traits.sigmoid_router) read_sigmoid_router(reading, moe);
  moe.num_experts_per_tok = reading.size("num_experts_per_tok");
  const bool names_width = traits.dense_blocks && !traits.pairs;
  moe.moe_intermediate_size = reading.size(names_width ? "moe_intermediate_size" : "intermediate_size");
  moe.norm_topk_prob = traits.always_renormalises || reading.boolean("norm_topk_prob");
  if (!traits.shared.empty()) {
    moe.shared_expert_gate = traits.gated_shared_expert;
    moe.shared_expert_intermediate_size =
        traits.sigmoid_router
            ? reading.size("n_shared_experts", 1) * moe.moe_intermediate_size
            : reading.size(traits.pairs ? "shared_intermediate_size" : "shared_expert_intermediate_size");
  }
  // As many as a token chooses from.
  const std::int64_t experts_there = moe.topk_group * (moe.num_experts / moe.n_group);
  reading.fault_if(moe.num_experts_per_tok > experts_there, "num_experts_per_tok is {} of {} experts{}",
                   moe.num_experts_per_tok, experts_there, moe.n_group > 1 ? " (topk_group)" : "");
  return moe;
}

void read_heads(ModelReading& reading, Architecture architecture, ModelConfig& model) {
  const ArchitectureTraits& traits = traits_of(architecture);
  model.qk_norm = traits.head_norms == HeadNorms::always ||
                  (traits.head_norms == HeadNorms::either && reading.boolean("use_qk_norm", false));
  model.num_attention_heads = reading.size("num_attention_heads");
  // Defaults of llama's class. The classes of other architectures have other defaults.
  const bool llama = architecture == Architecture::llama;
  model.num_key_value_heads =
      reading.size("num_key_value_heads", llama ? std::optional(model.num_attention_heads) : std::nullopt);
  const bool whole = !traits.head_dim_given && model.hidden_size % model.num_attention_heads == 0;
  model.head_dim =
      reading.size("head_dim", whole ? std::optional(model.hidden_size / model.num_attention_heads) : std::nullopt);
  reading.fault_if(model.num_attention_heads % model.num_key_value_heads != 0,
                   "num_attention_heads {} is not a multiple of num_key_value_heads {}", model.num_attention_heads,
                   model.num_key_value_heads);
  reading.fault_if(model.head_dim % 2 != 0, "head_dim is {}: the rotary embedding turns pairs", model.head_dim);
}

// Of Mamba-2, and the factors of Granite, which Weft does not have.
StateSpaceConfig read_state_space(ModelReading& reading, const ModelConfig& model) {
  StateSpaceConfig space;
  const std::int64_t expand = reading.size("mamba_expand");
  space.num_heads = reading.size("mamba_n_heads");
  const SortedJson* head_dim = reading.find("mamba_d_head");
  const bool automatic = head_dim != nullptr && *head_dim == "auto";
  space.head_dim = automatic ? expand * model.hidden_size / space.num_heads : reading.size("mamba_d_head");
  space.state_size = reading.size("mamba_d_state");
  space.n_groups = reading.size("mamba_n_groups");
  space.conv_kernel = reading.size("mamba_d_conv");
  reading.fault_if(space.inner() != expand * model.hidden_size,
                   "mamba_n_heads {} x mamba_d_head {} is not mamba_expand {} x hidden_size {}", space.num_heads,
                   space.head_dim, expand, model.hidden_size);
  reading.fault_if(space.n_groups != 1, "mamba_n_groups is {}: the gated norm of Weft is over each group",
                   space.n_groups);
  reading.fault_if(!reading.boolean("mamba_conv_bias", true),
                   "mamba_conv_bias is false: the convolution of Weft has a bias");
  reading.must_be_off("mamba_proj_bias", "biases of projections");
  const SortedJson no_limit = {0.0, {{"__float__", "Infinity"}}};  // as transformers writes it
  const SortedJson* limit = reading.find("time_step_limit");
  reading.fault_if(limit != nullptr && *limit != no_limit, "time_step_limit is {}: Weft does not limit time steps",
                   limit == nullptr ? "" : limit->dump());
  const SortedJson* positions = reading.find("position_embedding_type");
  reading.fault_if(positions == nullptr || *positions != "rope",
                   "position_embedding_type is {}: Weft turns queries and keys (\"rope\")",
                   positions == nullptr ? "null" : positions->dump());
  const double scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  for (const auto& [key, needed] : {std::pair("attention_multiplier", scale),
                                    {"embedding_multiplier", 1.0},
                                    {"residual_multiplier", 1.0},
                                    {"logits_scaling", 1.0}}) {
    const double said = reading.number(key, 0.0, 1.0);
    reading.fault_if(std::abs(said - needed) > 1e-6 * needed, "{} is {}: Weft has {:.6g} there", key, said, needed);
  }
  return space;
}

ModelConfig read_model(ModelReading& reading, Architecture architecture) {
  const ArchitectureTraits& traits = traits_of(architecture);
  ModelConfig model;
  model.vocab_size = reading.size("vocab_size");
  model.hidden_size = reading.size("hidden_size");
  read_heads(reading, architecture, model);
  if (traits.dense_blocks && !traits.pairs) model.intermediate_size = reading.size("intermediate_size");
  if (traits.moe_blocks) model.moe = read_moe(reading, traits);
  if (traits.pairs) {
    if (model.moe.num_experts == 0) model.intermediate_size = reading.size("shared_intermediate_size");
    model.state_space = read_state_space(reading, model);
  }
  std::int64_t blocks = reading.size("num_hidden_layers");
  if (blocks > largest_count / std::max<std::int64_t>(model.moe.num_experts, 1)) {
    reading.fault("num_hidden_layers is {} and the experts of each {}: more than {} in all", blocks,
                  model.moe.num_experts, largest_count);
    blocks = 1;
  }
  model.blocks = traits.pairs ? read_pairs(reading, model, blocks) : read_blocks(reading, traits, blocks);
  if (traits.predictors) {
    model.mtp_depth = static_cast<int>(std::min(reading.count("num_nextn_predict_layers", 0), std::int64_t{1000}));
    const ModelBlock last = model.blocks.back();
    model.blocks.insert(model.blocks.end(), static_cast<std::size_t>(model.mtp_depth), last);
  }
  model.moe.router_aux_loss_coef = coefficient_from_folder(reading.number("router_aux_loss_coef", 0.0, 0.0), model);
  model.rms_norm_eps = reading.number("rms_norm_eps", 1e-30);
  model.initializer_range = reading.number("initializer_range", 0.0, model.initializer_range);
  model.tie_word_embeddings = reading.boolean("tie_word_embeddings", false);
  model.rope_theta = rope_theta(reading, traits);
  if (!traits.pairs) model.sliding_window = sliding_window(reading, traits, blocks);
  reading.must_be_off("attention_bias", "biases of projections");
  reading.must_be_off("mlp_bias", "biases of projections");
  reading.fault_if(architecture == Architecture::qwen2_moe && reading.boolean("qkv_bias", true),
                   "qkv_bias is true, as it is where it is missing: Weft has no biases of projections");
  expect_whole_rotary(reading, traits);
  if (const SortedJson* activation = reading.find("hidden_act"); activation != nullptr && *activation != "silu") {
    reading.fault("hidden_act is {}: Weft has silu", activation->dump());
  }
  // Of every configuration in transformers 5.
  reading.fault_if(!reading.boolean("is_causal", true), "is_causal is false: Weft attends to earlier positions alone");
  const SortedJson* by_layer = reading.find("per_layer_config");
  reading.fault_if(by_layer != nullptr && !by_layer->empty(), "per_layer_config: Weft reads one value for all layers");
  reading.fault_if(reading.find("quantization_config") != nullptr,
                   "quantization_config: Weft reads float32, bfloat16 and float16 weights");
  return model;
}

SortedJson parse_object(const std::string& text, const std::string& name) {
  SortedJson json = parse_outside_json(text, name);
  if (!json.is_object()) fail_request("{} has no model_type or anything else: it is no JSON object", name);
  return json;
}

}  // namespace

FolderModel parse_model_json(const std::string& text, const std::string& name) {
  const SortedJson json = parse_object(text, name);
  if (!json.contains("model_type") || !json["model_type"].is_string()) fail_request("{} has no model_type", name);
  FolderModel result;
  try {
    result.architecture = architecture_of(json["model_type"].get<std::string>());
  } catch (const Error& error) {
    fail_request("{}: model_type: {}", name, error.what());
  }
  ModelReading reading(json);
  result.model = read_model(reading, result.architecture);
  reading.throw_faults(name);
  return result;
}

FolderFacts parse_folder_facts(const std::string& text, const std::string& name) {
  const SortedJson json = parse_object(text, name);
  ModelReading reading(json);
  FolderFacts facts;
  if (reading.find("max_position_embeddings") != nullptr) {
    facts.max_position_embeddings = reading.size("max_position_embeddings");
  }
  facts.bos_token_id = reading.tokens("bos_token_id");
  facts.eos_token_id = reading.tokens("eos_token_id");
  facts.pad_token_id = reading.tokens("pad_token_id");
  reading.throw_faults(name);
  return facts;
}

}  // namespace weft
