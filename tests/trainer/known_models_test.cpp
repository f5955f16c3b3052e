// The presets of configs/models. Their sizes meet published totals and a closed formula of this test, and their FLOPs
// the field's formula and published throughputs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/trainer/config_sample.h"
#include "trainer/costs/step_flops.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const fs::path configs = fs::path(WEFT_SOURCE_DIR) / "configs";

// As published: config.json of each model.
struct Shape {
  std::int64_t hidden, layers, dense_layers, ffn, heads, kv_heads, head_dim, vocabulary;
  std::int64_t experts = 0, chosen = 0, expert_ffn = 0, shared_ffn = 0;
  bool qk_norm = false;
  // Of a model whose blocks have one part each: those with a state space; its heads, their columns, state and groups.
  std::int64_t space_layers = 0, space_heads = 0, space_dim = 0, space_state = 0, space_groups = 0, filter = 4;

  std::int64_t expert_layers() const { return space_layers > 0 ? 0 : layers - dense_layers; }
  std::int64_t attention_layers() const { return space_layers > 0 ? layers - dense_layers - space_layers : layers; }
  std::int64_t inner() const { return space_heads * space_dim; }
  std::int64_t channels() const { return inner() + 2 * space_groups * space_state; }
};

struct KnownModel {
  const char* file;
  Shape shape;
  std::int64_t total, active;  // active: every weight that one token meets, the embedding counted whole
};

const KnownModel known_models[] = {
    {"llama2_7b", {4096, 32, 32, 11008, 32, 32, 128, 32000}, 6'738'415'616, 6'738'415'616},
    {"llama2_13b", {5120, 40, 40, 13824, 40, 40, 128, 32000}, 13'015'864'320, 13'015'864'320},
    {"llama2_70b", {8192, 80, 80, 28672, 64, 8, 128, 32000}, 68'976'648'192, 68'976'648'192},
    {"llama3_8b", {4096, 32, 32, 14336, 32, 8, 128, 128256}, 8'030'261'248, 8'030'261'248},
    {"llama3_70b", {8192, 80, 80, 28672, 64, 8, 128, 128256}, 70'553'706'496, 70'553'706'496},
    {"llama3_405b", {16384, 126, 126, 53248, 128, 8, 128, 128256}, 405'853'388'800, 405'853'388'800},
    {"mixtral_8x7b", {4096, 32, 0, 0, 32, 8, 128, 32000, 8, 2, 14336}, 46'702'792'704, 12'879'925'248},
    {"mixtral_8x22b", {6144, 56, 0, 0, 48, 8, 128, 32000, 8, 2, 16384}, 140'620'634'112, 39'152'031'744},
    {"qwen3_30b_a3b", {2048, 48, 0, 0, 32, 4, 128, 151936, 128, 8, 768, 0, true}, 30'532'122'624, 3'353'032'704},
    {"qwen3_235b_a22b", {4096, 94, 0, 0, 64, 4, 128, 151936, 128, 8, 1536, 0, true}, 235'093'634'560, 22'190'763'520},
    {"deepseek_v3_like_gqa",
     {7168, 61, 3, 18432, 128, 8, 128, 129280, 256, 8, 2048, 2048},
     674'836'083'712,
     41'361'961'984},
    {"bamba_9b",
     {4096, 64, 32, 14336, 32, 8, 128, 128256, 0, 0, 0, 0, false, 29, 128, 64, 128, 1},
     9'780'235'392,
     9'780'235'392},
};

ModelConfig model_of(const char* file) {
  return read_model_section(configs / "models" / (std::string(file) + ".toml")).model;
}

// Weights of a model of this shape when a token meets `experts` of each bank.
std::int64_t weights(const Shape& s, std::int64_t experts) {
  const std::int64_t attention =
      s.hidden * s.head_dim * (2 * s.heads + 2 * s.kv_heads) + (s.qk_norm ? 2 * s.head_dim : 0);
  const std::int64_t dense = 3 * s.hidden * s.ffn;
  const std::int64_t moe = 3 * s.hidden * (experts * s.expert_ffn + s.shared_ffn) + s.hidden * s.experts;
  const std::int64_t norms = (s.space_layers > 0 ? 1 : 2) * s.hidden;
  // Gate, x, B, C and steps; a convolution with a bias; decay, step bias and D; the gated norm; the way back.
  const std::int64_t space = s.hidden * (s.inner() + s.channels() + s.space_heads) + s.channels() * (s.filter + 1) +
                             3 * s.space_heads + s.inner() + s.inner() * s.hidden;
  return 2 * s.vocabulary * s.hidden + s.hidden + s.layers * norms + s.attention_layers() * attention +
         s.space_layers * space + s.dense_layers * dense + s.expert_layers() * moe;
}

TEST(KnownModels, HaveTheirPublishedSizes) {
  std::set<std::string> files;
  for (const KnownModel& known : known_models) {
    files.insert(known.file);
    EXPECT_EQ(weights(known.shape, known.shape.experts), known.total) << known.file;
    EXPECT_EQ(weights(known.shape, known.shape.chosen), known.active) << known.file;
    const ParameterCount count = count_parameters(model_of(known.file));
    EXPECT_EQ(count.total, known.total) << known.file;
    EXPECT_EQ(count.active, known.active) << known.file;
  }
  for (const auto& entry : fs::directory_iterator(configs / "models")) {
    EXPECT_TRUE(files.contains(entry.path().stem().string())) << entry.path() << " is not compared with anything";
  }
}

// The preset that is like DeepSeek-V3, with that model's attention back in the place of ours. It has 671,026,419,200
// parameters, of which 256 x 58 are the biases of its routing.
TEST(KnownModels, DeepSeekDiffersInItsAttentionAlone) {
  const std::int64_t h = 7168, heads = 128, rope = 64, nope = 128, value = 128, q_rank = 1536, kv_rank = 512;
  const std::int64_t latent = h * q_rank + q_rank + q_rank * heads * (nope + rope) + h * (kv_rank + rope) + kv_rank +
                              kv_rank * heads * (nope + value) + heads * value * h;
  const std::int64_t grouped = h * 128 * (2 * 128 + 2 * 8);
  EXPECT_EQ(count_parameters(model_of("deepseek_v3_like_gqa")).total + 61 * (latent - grouped) + 256 * 58,
            671'026'419'200);
}

// A run file that includes a preset and adds the rest; no data is there.
TEST(KnownModels, RunFilesIncludeThem) {
  for (const KnownModel& known : known_models) {
    const std::string text = std::string("include = [\"models/") + known.file +
                             ".toml\"]\n[training]\nsequence_length = 4096\n[data]\ntrain = [\"absent.txt\"]\n";
    const Config config = read_config_text(text, (configs / "run.toml").string()).config;
    EXPECT_EQ(config.model, model_of(known.file)) << known.file;
    EXPECT_EQ(std::ssize(config.model.blocks), known.shape.layers) << known.file;
  }
  const Config plan = read_config(configs / "plan_llama3_8b.toml").config;
  EXPECT_EQ(plan.parallelism.world(), 64);
  EXPECT_EQ(plan.model, model_of("llama3_8b"));
}

// docs/huggingface.md lists them with their sizes.
TEST(KnownModels, ReadmeSaysTheirSizes) {
  std::ifstream file(fs::path(WEFT_SOURCE_DIR) / "docs/huggingface.md");
  const std::string readme(std::istreambuf_iterator<char>(file), {});
  for (const KnownModel& known : known_models) {
    const auto grouped = [](std::int64_t number) {
      std::string text = std::to_string(number);
      for (std::ptrdiff_t at = std::ssize(text) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), ",");
      return text;
    };
    const std::string row =
        std::string("| `") + known.file + "` | " + grouped(known.total) + " | " + grouped(known.active) + " |";
    EXPECT_NE(readme.find(row), std::string::npos) << row;
  }
}

// Megatron's formula for one sequence, written down again: 6 x [ T (h (ffn 3 dense + (chosen expert_ffn + shared) 3
// moe)
// + (h (q + 2 kv) + q h) layers + h V) + T s q layers ], by token. No router.
double field_formula(const Shape& s, double sequence) {
  const auto h = static_cast<double>(s.hidden), q = static_cast<double>(s.heads * s.head_dim),
             kv = static_cast<double>(s.kv_heads * s.head_dim), layers = static_cast<double>(s.attention_layers());
  const double mlp = h * 3.0 * static_cast<double>(s.ffn * s.dense_layers) +
                     h * 3.0 * static_cast<double>((s.chosen * s.expert_ffn + s.shared_ffn) * s.expert_layers());
  // Its formula of Mamba-2: T (h (2 d + 2 groups state + heads) + d h + 3.5 d state).
  const auto d = static_cast<double>(s.inner());
  const double spaces =
      static_cast<double>(s.space_layers) * (h * static_cast<double>(s.inner() + s.channels() + s.space_heads) + h * d +
                                             3.5 * d * static_cast<double>(s.space_state));
  const double attention = (h * (q + 2.0 * kv) + q * h) * layers;
  return 6.0 * (mlp + attention + spaces + h * static_cast<double>(s.vocabulary) + sequence * q * layers);
}

// Our products are those of the field's formula and the router, which adds 0.39 % at most: to Qwen3-30B-A3B at short
// sequences.
TEST(ModelFlops, AreTheFormulaOfTheFieldAndTheRouter) {
  for (const KnownModel& known : known_models) {
    const ModelConfig model = model_of(known.file);
    for (const std::int64_t sequence : {1024, 4096, 8192}) {
      const TokenFlops token = token_flops(model, sequence);
      const double field = field_formula(known.shape, static_cast<double>(sequence));
      // All are whole numbers below 2^53, which a double holds; times 3 and 6 too.
      EXPECT_EQ(3.0 * (token.total() - token.router), field) << known.file;
      EXPECT_EQ(training_flops_per_token(model, sequence), field) << known.file;
      const double router = 2.0 * static_cast<double>(known.shape.hidden * known.shape.experts *
                                                      (known.shape.layers - known.shape.dense_layers));
      EXPECT_EQ(token.router, router) << known.file;
      EXPECT_LT(3.0 * token.router / field, 0.0039) << known.file;
    }
  }
}

// Published TFLOP/s over tokens/s, in GFLOP a token, of runs with sequences of 8192 (Llama 3) and 4096 (Qwen3). The
// length follows from the figure, since half and twice as many are more than 1 % away. The last digit may be one off:
// 148.0348 stands as 148.04.
TEST(ModelFlops, ArePublishedFigures) {
  struct Row {
    const char* file;
    std::int64_t sequence;
    double published;
  };
  for (const Row& row :
       {Row{"llama3_8b", 8192, 51.47}, Row{"llama3_70b", 8192, 449.22}, Row{"llama3_405b", 8192, 2523.96},
        Row{"qwen3_30b_a3b", 4096, 23.006}, Row{"qwen3_235b_a22b", 4096, 148.04}}) {
    const ModelConfig model = model_of(row.file);
    const auto gflops = [&](std::int64_t sequence) { return training_flops_per_token(model, sequence) / 1e9; };
    const double last_digit = row.published < 100.0 && row.sequence == 4096 ? 0.001 : 0.01;
    EXPECT_NEAR(gflops(row.sequence), row.published, last_digit) << row.file;
    for (const std::int64_t other : {row.sequence / 2, 2 * row.sequence}) {
      EXPECT_GT(std::abs(gflops(other) - row.published), 0.01 * row.published) << row.file;
    }
  }
}

// Parts by hand, of a block with each.
TEST(ModelFlops, ArePartsThatAddUp) {
  ModelConfig model;
  model.blocks = parse_layers("de").blocks;
  model.vocab_size = 100;
  model.hidden_size = 8;
  model.intermediate_size = 20;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 3;
  model.moe = {
      .num_experts = 6, .num_experts_per_tok = 2, .moe_intermediate_size = 5, .shared_expert_intermediate_size = 7};
  const TokenFlops token = token_flops(model, 16);
  EXPECT_EQ(token.mixer_projections, 2 * (2.0 * 8 * (12 + 6 + 6) + 2 * 12 * 8));
  EXPECT_EQ(token.scores, 2 * (2 * 2.0 * 12 * 8));  // two products with 8 of 16 positions
  EXPECT_EQ(token.dense_mlp, 3 * 2.0 * 8 * 20);
  EXPECT_EQ(token.routed_experts, 2 * 3 * 2.0 * 8 * 5);
  EXPECT_EQ(token.shared_experts, 3 * 2.0 * 8 * 7);
  EXPECT_EQ(token.router, 2.0 * 8 * 6);
  EXPECT_EQ(token.head, 2.0 * 8 * 100);
  // Two heads of 4 columns in one group with 6 state elements: gate, x, B, C and steps, and the way back.
  model.blocks = parse_layers("M E").blocks;
  model.state_space = {.num_heads = 2, .head_dim = 4, .state_size = 6};
  const TokenFlops mixed = token_flops(model, 16);
  EXPECT_EQ(mixed.mixer_projections, 2.0 * 8 * (8 + 8 + 6 + 6 + 2) + 2.0 * 8 * 8);
  EXPECT_EQ(mixed.scores, 7.0 * 8 * 6);
  EXPECT_EQ(mixed.routed_experts, token.routed_experts);
  EXPECT_EQ(mixed.dense_mlp, 0.0);
  EXPECT_EQ(token.total(), token.mixer_projections + token.scores + token.dense_mlp + token.routed_experts +
                               token.shared_experts + token.router + token.head);
}

}  // namespace
}  // namespace weft
