// The logits of an exported folder by the conventions of transformers are those of Weft's model with the weights of the
// checkpoint. Both sides are the whole model in double precision, by code that shares nothing.
#include <algorithm>
#include <cmath>

#include "tests/trainer/huggingface_fixture.h"
#include "tests/trainer/huggingface_reference.h"

namespace weft::huggingface_test {
namespace {

const std::vector<std::int32_t> tokens = {3, 36, 0, 17, 17, 8, 25, 1, 30};
const std::vector<std::int32_t> following = {36, 0, 17, 17, 8, 25, 1, 30, 12};

// A loss is the negative logarithm of a probability, so one for each token gives all of them.
std::vector<double> weft_log_probabilities(const ModelConfig& model, NamedValues weights, bool predictor = false) {
  if (model.tie_word_embeddings) weights["head.weight"] = weights.at("embedding.weight");
  const ModelReference reference(model, weights, static_cast<std::int64_t>(tokens.size()), 1.0);
  Values x = reference.embedding(tokens);
  const auto run_block = [&](int block) {
    const ModelBlock& parts = model.blocks[static_cast<std::size_t>(block)];
    if (parts.mixer == Mixer::attention) x = reference.attention(block, x);
    if (parts.mixer == Mixer::state_space) x = reference.state_space(block, x);
    if (parts == BlockKind::dense) x = reference.mlp(block, x);
    if (parts == BlockKind::moe) x = reference.moe(block, x).y;
  };
  for (int block = 0; block < model.layers(); ++block) run_block(block);
  if (predictor) {
    x = reference.merge(model.layers(), x, following);
    run_block(model.layers());
  }
  std::vector<double> result;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto hidden = static_cast<std::ptrdiff_t>(model.hidden_size), begin = static_cast<std::ptrdiff_t>(t) * hidden;
    const Values row(x.begin() + begin, x.begin() + begin + hidden);
    for (std::int32_t target = 0; target < model.vocab_size; ++target) {
      result.push_back(predictor ? -reference.prediction_loss(model.layers(), row, std::array{target})
                                 : -reference.head(row, std::array{target}));
    }
  }
  return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

class Logits : public HuggingFace {
 protected:
  // Exports a model of the architecture and reads it back; the mapping of Weft has no part in the reading.
  void prepare(Architecture architecture, bool tied, std::int64_t window = 0) {
    std::filesystem::remove_all(folder_);
    model_ = tiny_model(architecture, tied);
    model_.sliding_window = window;
    const NamedValues weights = random_weights(model_, 5);
    write_checkpoint(folder_ / "a", model_, weights);
    export_to("a", "out", architecture, model_, {}, 6'000);
    config_ = nlohmann::json::parse(read_bytes(folder_ / "out" / "config.json"));
    tensors_ = read_tensors(folder_ / "out");
    expected_ = weft_log_probabilities(model_, weights);
    if (model_.mtp_depth > 0) expected_of_predictor_ = weft_log_probabilities(model_, weights, true);
  }
  double difference() const { return largest_difference(log_probabilities(config_, tensors_, tokens), expected_); }

  ModelConfig model_;
  nlohmann::json config_;
  std::map<std::string, FolderMatrix> tensors_;
  std::vector<double> expected_, expected_of_predictor_;
};

// Weights are the same numbers on both sides and sums are in double. A value takes a few hundred additions through
// three blocks. Errors of 1e-16 of values around 10, grown by less than 100 a block, leave 1e-9 far away.
constexpr double logits_tolerance = 1e-9;
// What a wrong matrix changes at least; what is measured is above 0.1.
constexpr double noticed = 1e-2;

TEST_F(Logits, AreThoseOfTheCheckpoint) {
  for (const Architecture architecture : architectures) {
    for (const bool tied : {false, true}) {
      prepare(architecture, tied);
      EXPECT_LT(difference(), logits_tolerance) << traits_of(architecture).model_type << tied;
    }
  }
}

TEST_F(Logits, AreThoseOfTheCheckpointWithAWindow) {
  for (const Architecture architecture : architectures) {
    if (traits_of(architecture).window == WindowKeys::none) continue;
    prepare(architecture, false, 4);
    EXPECT_LT(difference(), logits_tolerance) << traits_of(architecture).model_type;
    config_["sliding_window"] = 5;
    EXPECT_GT(difference(), noticed) << traits_of(architecture).model_type;
  }
}

TEST_F(Logits, OfAPredictorAreThoseOfTheCheckpoint) {
  const std::string layer = "model.layers.3.";
  for (const bool tied : {false, true}) {
    prepare(Architecture::glm4_moe, tied);
    const auto off = [&] {
      return largest_difference(predictor_log_probabilities(config_, tensors_, tokens, following),
                                expected_of_predictor_);
    };
    EXPECT_LT(off(), logits_tolerance) << tied;
    std::swap(tensors_.at(layer + "enorm.weight"), tensors_.at(layer + "hnorm.weight"));
    EXPECT_GT(off(), noticed) << "norms swapped";
    std::swap(tensors_.at(layer + "enorm.weight"), tensors_.at(layer + "hnorm.weight"));
    std::vector<double>& joined = tensors_.at(layer + "eh_proj.weight").values;
    for (std::size_t row = 0; row < 24; ++row) {
      const auto begin = joined.begin() + static_cast<std::ptrdiff_t>(row * 48);
      std::rotate(begin, begin + 24, begin + 48);
    }
    EXPECT_GT(off(), noticed) << "halves swapped";
  }
}

// The numbers of a matrix in the order of its transpose, under its own shape.
void turn(FolderMatrix& matrix) {
  const auto rows = static_cast<std::size_t>(matrix.shape.at(0)),
             columns = static_cast<std::size_t>(matrix.shape.at(1));
  const std::vector<double> values = matrix.values;
  for (std::size_t i = 0; i < values.size(); ++i) matrix.values[i] = values[i % rows * columns + i / rows];
}

TEST_F(Logits, ShowATurnedOrSwappedMatrix) {
  for (const Architecture architecture : architectures) {
    if (traits_of(architecture).pairs) continue;
    // A block with experts, where there is one.
    const std::string layer = architecture == Architecture::glm4_moe ? "model.layers.2." : "model.layers.0.";
    const auto fault = [&](const std::string& what, auto change) {
      prepare(architecture, false);
      change();
      EXPECT_GT(difference(), noticed) << traits_of(architecture).model_type << ": " << what;
    };
    fault("o_proj turned", [&] { turn(tensors_.at(layer + "self_attn.o_proj.weight")); });
    const bool mixtral = architecture == Architecture::mixtral, moe = traits_of(architecture).moe_blocks;
    const std::string expert = mixtral ? "block_sparse_moe.experts.2." : moe ? "mlp.experts.2." : "mlp.";
    const std::string gate = layer + expert + (mixtral ? "w1" : "gate_proj") + ".weight";
    const std::string up = layer + expert + (mixtral ? "w3" : "up_proj") + ".weight";
    const std::string down = layer + expert + (mixtral ? "w2" : "down_proj") + ".weight";
    fault("gate and up swapped", [&] { std::swap(tensors_.at(gate).values, tensors_.at(up).values); });
    fault("down turned", [&] { turn(tensors_.at(down)); });
    fault("norms swapped", [&] {
      std::swap(tensors_.at(layer + "input_layernorm.weight"), tensors_.at(layer + "post_attention_layernorm.weight"));
    });
    if (model_.qk_norm) {
      fault("head norms swapped", [&] {
        std::swap(tensors_.at("model.layers.1.self_attn.q_norm.weight"),
                  tensors_.at(layer + "self_attn.k_norm.weight"));
      });
    }
    if (moe) {
      const std::string block = layer + (mixtral ? "block_sparse_moe." : "mlp.");
      fault("experts swapped", [&] {
        std::swap(tensors_.at(down), tensors_.at(block + "experts.3." + (mixtral ? "w2" : "down_proj") + ".weight"));
      });
    }
    if (moe && !mixtral) fault("renormalised", [&] { config_["norm_topk_prob"] = true; });
    if (!traits_of(architecture).shared.empty()) {
      const std::string shared = layer + std::string(traits_of(architecture).shared);
      fault("shared gate and up swapped", [&] {
        std::swap(tensors_.at(shared + ".gate_proj.weight").values, tensors_.at(shared + ".up_proj.weight").values);
      });
    }
    if (architecture == Architecture::qwen2_moe) {
      fault("shared gate lost", [&] { tensors_.at(layer + "mlp.shared_expert_gate.weight").values.assign(24, 0.0); });
    }
    if (architecture == Architecture::glm4_moe) {
      fault("bias lost", [&] { tensors_.at(layer + "mlp.gate.e_score_correction_bias").values.assign(6, 0.0); });
      fault("all groups", [&] { config_["topk_group"] = 3; });
      fault("scale lost", [&] { config_["routed_scaling_factor"] = 1.0; });
    }
    fault("another theta", [&] { config_["rope_theta"] = 10000.0; });
  }
}

// Of a layer of a pair of blocks. Parts of its tensors stand below one another.
TEST_F(Logits, ShowAMovedPartOfAPair) {
  const auto fault = [&](const std::string& what, auto change) {
    prepare(Architecture::granitemoehybrid, false);
    change();
    EXPECT_GT(difference(), noticed) << what;
  };
  // Turns the rows of a matrix, or of a part of it, by `rows`.
  const auto rotate = [&](const std::string& name, std::size_t first, std::size_t count, std::size_t rows) {
    FolderMatrix& matrix = tensors_.at("model.layers." + name);
    const std::size_t columns = static_cast<std::size_t>(matrix.shape.back());
    const auto begin = matrix.values.begin() + static_cast<std::ptrdiff_t>(first * columns);
    std::rotate(begin, begin + static_cast<std::ptrdiff_t>(rows * columns),
                begin + static_cast<std::ptrdiff_t>(count * columns));
  };
  const std::string experts = "0.block_sparse_moe.", mamba = "1.mamba.";
  fault("gate and up swapped", [&] { rotate(experts + "input_linear.weight", 2 * 28, 28, 14); });
  fault("experts swapped", [&] { rotate(experts + "output_linear.weight", 0, 5 * 24, 24); });
  fault("router turned", [&] { rotate(experts + "router.layer.weight", 0, 5, 2); });
  fault("shared gate and up swapped", [&] { rotate("1.shared_mlp.input_linear.weight", 0, 20, 10); });
  fault("z and x swapped", [&] { rotate(mamba + "in_proj.weight", 0, 96, 48); });
  fault("B and C swapped", [&] { rotate(mamba + "in_proj.weight", 96, 10, 5); });
  fault("steps moved", [&] { rotate(mamba + "in_proj.weight", 106, 6, 1); });
  fault("filters of B and C swapped", [&] { rotate(mamba + "conv1d.weight", 48, 10, 5); });
  for (const char* vector : {"conv1d.bias", "A_log", "D", "dt_bias"}) {
    fault(vector, [&] {
      std::vector<double>& values = tensors_.at("model.layers.1.mamba." + std::string(vector)).values;
      for (double& value : values) value += 0.5;
    });
  }
  fault("gated norm", [&] { tensors_.at("model.layers.1.mamba.norm.weight").values.assign(48, 1.0); });
  fault("out_proj turned", [&] { turn(tensors_.at("model.layers.1.mamba.out_proj.weight")); });
  fault("layers swapped", [&] {
    std::swap(tensors_.at("model.layers.0.input_layernorm.weight"),
              tensors_.at("model.layers.1.input_layernorm.weight"));
  });
  fault("another theta", [&] { config_["rope_theta"] = 10000.0; });
}

TEST_F(Logits, OfPairsWithoutExpertsAreThoseOfTheCheckpoint) {
  ModelConfig model = tiny_model(Architecture::granitemoehybrid, false);
  model.blocks = parse_layers("M D A D M D").blocks;
  model.moe = {};
  model.intermediate_size = 28;
  EXPECT_EQ(choose_architecture(model), Architecture::granitemoehybrid);
  const NamedValues weights = random_weights(model, 9);
  write_checkpoint(folder_ / "a", model, weights);
  export_to("a", "out", Architecture::granitemoehybrid, model);
  const auto config = nlohmann::json::parse(read_bytes(folder_ / "out" / "config.json"));
  EXPECT_LT(largest_difference(log_probabilities(config, read_tensors(folder_ / "out"), tokens),
                               weft_log_probabilities(model, weights)),
            logits_tolerance);
}

}  // namespace
}  // namespace weft::huggingface_test
