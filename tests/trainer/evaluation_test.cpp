// Held-out loss against a model in double, against the first step of training, and of every layout against one rank.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/evaluate_files.h"
#include "tests/trainer/held_out_text.h"
#include "tests/trainer/initial_weights.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/used_layouts.h"
#include "trainer/data/tokenize.h"
#include "trainer/rank/step_totals.h"
#include "trainer/run/held_out.h"

namespace weft {
namespace {

// Of a text cut into windows of `length` targets, the last of them shorter, each byte but the first predicted once.
double reference_sum(const Config& config, const NamedValues& weights, const std::string& text) {
  const auto length = static_cast<std::size_t>(config.training.sequence_length);
  double sum = 0.0;
  for (std::size_t begin = 0; begin + 1 < text.size(); begin += length) {
    const std::size_t count = std::min(length, text.size() - 1 - begin);
    std::vector<std::int32_t> tokens, targets;
    for (std::size_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::uint8_t>(text[begin + i]));
      targets.push_back(static_cast<std::uint8_t>(text[begin + i + 1]));
    }
    // Alone: what a window is padded with cannot matter where there is no padding. No coefficient of an auxiliary loss.
    ModelConfig model = config.model;
    model.moe.router_aux_loss_coef = model.moe.router_z_loss_coef = 0.0;
    sum += ModelReference(model, weights, static_cast<std::int64_t>(count), 1.0).objective(tokens, targets);
  }
  return sum;
}

void add_uneven(HeldOutText& text) {
  for (std::size_t length : {37, 2, 9, 121}) text.add_random(length);
}

// Roundings of float32 (2^-24) lie behind one another through 4 blocks. A logit near 1 is a sum of 20 products and errs
// by about 20 x 2^-24 for each of some 20 operations in a row. That is 2e-5, and at random signs over 165 tokens far
// less. Losses are near log 259 = 5.6.
constexpr double evaluation_tolerance = 5e-6;

TEST(Evaluation, AgreesWithTheModelInDouble) {
  for (const char* layers : {"d*2", "d e d e"}) {
    HeldOutText text("weft-evaluation");
    add_uneven(text);
    const Config config = tiny_config(layers);
    InitialWeights weights;
    const HeldOutLoss found = evaluate(config, text.files(), weights.collect());
    EXPECT_EQ(weights.calls(), 1);
    EXPECT_EQ(found.tokens, 36 + 1 + 8 + 120);
    EXPECT_EQ(found.windows, 5 + 1 + 1 + 15);
    const NamedValues values = weights.values();
    double expected = 0.0;
    for (const std::string& bytes : text.texts()) expected += reference_sum(config, values, bytes);
    expected /= 36 + 1 + 8 + 120;
    EXPECT_NEAR(found.loss, expected, evaluation_tolerance) << layers;
    EXPECT_DOUBLE_EQ(found.perplexity(), std::exp(found.loss));
    EXPECT_DOUBLE_EQ(found.bits_per_byte(), std::log2(found.perplexity()));
  }
}

// A decoder leaves out the first space of a text, as Llama's does, over documents with ends. The bytes are those of the
// texts, less those of the first token.
TEST(Evaluation, CountsTheBytesOfTheTextAlone) {
  const TemporaryFolder folder;
  const std::string space = "\u2581";
  nlohmann::json vocab = nlohmann::json::object();
  for (const std::string piece : {"</s>", "<s>", "w", "a", "r", "p"}) vocab[piece] = vocab.size();
  vocab[space] = vocab.size();
  vocab[space + "w"] = vocab.size();
  const auto replace = [&](const std::string& from, const std::string& to) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const nlohmann::json added = {
      {"special", true}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}};
  nlohmann::json json = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", space}}, replace(" ", space)}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {replace(space, " "), {{"type", "Fuse"}}, {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {space + " w"}}}}};
  for (int id = 0; id < 2; ++id) {
    json["added_tokens"].push_back(added);
    json["added_tokens"].back().update({{"id", id}, {"content", id == 0 ? "</s>" : "<s>"}});
  }
  write_file(folder / "tok.json", json.dump());
  write_file(folder / "held.jsonl", "{\"text\": \"warp wa\"}\n{\"text\": \"w  wrap\"}\n{\"text\": \"aw\"}\n");
  const std::string tokenizer = (folder / "tok.json").string(), prefix = (folder / "held").string();
  DocumentReader documents({(folder / "held.jsonl").string()}, {});
  tokenize(documents, {.tokenizer = tokenizer, .prefix = prefix});
  Config config = tiny_config("d");
  config.data.tokenizer = tokenizer;
  config.model.vocab_size = 8;
  config.data.padded_vocab = false;
  // Joined, all but the first token, "▁w", are predicted; masked, the first of no document is: "▁w", "▁w", and "▁",
  // whose text is empty.
  const auto bytes = [&](Documents each) {
    config.data.documents = each;
    return HeldOutWindows(for_inference(config), {prefix}, 0, "--data").loss(1.0, 1.0).bytes;
  };
  EXPECT_EQ(bytes(Documents::join), 7 + 7 + 2 - 1);
  EXPECT_EQ(bytes(Documents::mask), 7 + 7 + 2 - 2);
}

// 22 windows, four a pass.
TEST(Evaluation, TellsItsProgressAfterEachPass) {
  HeldOutText text("weft-evaluation");
  add_uneven(text);
  Config config = tiny_config("d");
  config.training.global_batch_size = 4;
  std::vector<std::int64_t> told;
  evaluate(config, text.files(), {}, {}, [&](std::int64_t done, std::int64_t all) {
    told.push_back(done);
    EXPECT_EQ(all, 22);
  });
  EXPECT_EQ(told, (std::vector<std::int64_t>{4, 8, 12, 16, 20, 22}));
}

// The same windows, one a file, in the order in which training's first step reads them. The same kernels add the same
// terms in the same order.
TEST(Evaluation, IsTheLossOfTheFirstTrainingStepBitForBit) {
  for (const TinyLayout& layout : {TinyLayout{.layers = "d e"}, TinyLayout{.layers = "d*4", .degrees = {.pipeline = 2}},
                                   TinyLayout{.layers = "e*2", .degrees = {.tensor = 2, .expert = 2}}}) {
    Config config = config_of(layout);
    config.run.steps = 1;
    HeldOutText text("weft-evaluation");
    const std::int64_t length = config.training.sequence_length;
    const TokenDataset data = training_data(config);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length)), targets(tokens.size());
    for (std::int64_t sample = 0; sample < config.training.global_batch_size; ++sample) {
      data.read(sample, {tokens, targets, {}});
      std::string bytes(1, static_cast<char>(tokens.front()));
      for (std::int32_t target : targets) bytes += static_cast<char>(target);
      text.add(bytes);
    }
    EXPECT_EQ(evaluate(config, text.files()).loss, learn(config).losses.front()) << layout.layers;
  }
}

// Context ranks see parts of every window.
std::vector<TinyLayout> evaluation_layouts() {
  const std::string mixed = "d e d e";
  std::vector<TinyLayout> all = used_layouts();
  all.push_back({.name = "cp2", .layers = mixed, .degrees = {.context = 2}});
  all.push_back({.name = "all_cp2",
                 .layers = mixed,
                 .degrees = {.pipeline = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 2},
                 .schedule = "interleaved",
                 .chunks = 2});
  return all;
}

// Bytes of a rank that evaluates at its peak. As planned: what units hold, and the activations of one segment.
struct EvaluatedBytes {
  BucketBytes planned, measured;
};

// By rank, in passes as those of evaluate().
std::vector<EvaluatedBytes> evaluated_bytes(const Config& trained, const std::vector<std::string>& files) {
  const HeldOutWindows text(for_inference(trained), files, /*most=*/0, "--data");
  const Config& config = text.config();
  const Mesh mesh(config.parallelism);
  std::vector<EvaluatedBytes> bytes(static_cast<std::size_t>(mesh.world()));
  run_ranks(config, backend_of(config), [&](const RankContext& context) {
    const int rank = context.world.rank();
    ForwardRun run(config, mesh, plan_forward(config, mesh, mesh.coordinates(rank)), {}, context);
    Tensor on_device = run.ledger().allocate(Bucket::workspace, DType::int32, HeldOutReader::numbers(config), 1);
    HeldOutReader reader(text, mesh, rank, on_device.view(), run.kernels().stream);
    StepSums sums(run.kernels().stream, run.ledger(), config.model.blocks.size(),
                  static_cast<std::size_t>(config.model.moe.num_experts), bytes.size());
    run.ledger().reset_peak();
    sums.begin_step();
    for (std::int64_t pass = 0; pass < text.passes(); ++pass) run.pass(reader.read(pass), sums.report());
    EvaluatedBytes& own = bytes[static_cast<std::size_t>(rank)];
    own.measured = run.ledger().at_peak();
    own.planned = static_bytes(run.stages().planned());
    own.planned[Bucket::activations] =
        transient_peak(run.plan().program, mesh.coordinates(rank).pp).buckets[Bucket::activations];
  });
  return bytes;
}

class EvaluationLayout : public testing::TestWithParam<TinyLayout> {};

TEST_P(EvaluationLayout, HasTheLossOfOneRank) {
  HeldOutText text("weft-evaluation");
  add_uneven(text);
  const HeldOutLoss alone = evaluate(config_of({.layers = GetParam().layers, .tied = GetParam().tied}), text.files());
  for (std::int64_t microbatch_size : {1, 2}) {
    Config config = config_of(GetParam());
    config.training.microbatch_size = microbatch_size;
    // Smaller than the text, so that several passes add up, the last of them padded.
    config.training.global_batch_size = 8;
    InitialWeights weights;
    const HeldOutLoss found = evaluate(config, text.files(), weights.collect());
    EXPECT_EQ(weights.calls(), config.parallelism.world());
    EXPECT_EQ(found.tokens, alone.tokens);
    // As parity_test.cpp: sums in another order.
    EXPECT_NEAR(found.loss, alone.loss, 2e-6 * alone.loss) << "microbatch size " << microbatch_size;
    for (const auto& [planned, measured] : evaluated_bytes(config, text.files())) {
      EXPECT_TRUE(differing_static_buckets(planned, measured).empty());
      for (Bucket bucket : {Bucket::sharded_gradients, Bucket::unsharded_gradients, Bucket::optimizer_state}) {
        EXPECT_EQ(measured[bucket], 0) << name_of(bucket);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EvaluationLayout, testing::ValuesIn(evaluation_layouts()),
                         [](const auto& layout) { return layout.param.name; });

// However many microbatches, one segment's activations are there, and the tensors that it takes, makes and gathers.
// Each has at most a row a token of the microbatch, as wide as the widest: a fused qkv, two MLP widths, or logits.
// A budget is that of a training step; forwards keep parameters for one use.
TEST(Evaluation, GoesWithSolvedTiming) {
  HeldOutText text("weft-evaluation");
  add_uneven(text);
  TinyLayout layout{.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2}, .residency = "reshard_after_use"};
  const double expected = evaluate(config_of(layout), text.files()).loss;
  layout.residency = "auto";
  Config config = config_of(layout);
  config.memory_budget = std::int64_t{1} << 30;
  EXPECT_EQ(evaluate(config, text.files()).loss, expected);
}

TEST(Evaluation, HoldsOneSegmentsActivations) {
  HeldOutText text("weft-evaluation");
  text.add_random(8 * 16 + 1);
  Config config = tiny_config("d*4");
  const auto [planned, few] = evaluated_bytes(config, {text.files().front()}).front();
  text.add_random(8 * 64 + 1);
  config.training.global_batch_size = 64;
  const BucketBytes many = evaluated_bytes(config, {text.files().back()}).front().measured;
  EXPECT_EQ(few[Bucket::activations], many[Bucket::activations]);
  const std::int64_t temporaries = 2 * config.training.sequence_length * config.model.vocab_size * 4;
  EXPECT_GT(few[Bucket::activations], 0);
  EXPECT_LE(few[Bucket::activations], planned[Bucket::activations] + temporaries);
}

TEST(Evaluation, ComputesWithTheWeightsThatItIsGiven) {
  HeldOutText text("weft-evaluation");
  text.add_random(30);
  const auto no_head = [](RankStages& stages, Stream& stream) {
    for (std::size_t unit = 0; unit < stages.planned_units().size(); ++unit) {
      for (const OwnedRows& rows : stages.owned_rows(unit)) {
        if (rows.parameter->name == "head.weight") fill(stream, rows.values, 0.0f);
      }
    }
  };
  const Config config = tiny_config("d e");
  // All logits are zero: every token costs log(vocabulary), which float32 sums of ones give exactly but for the log.
  EXPECT_NEAR(evaluate(config, text.files(), no_head).loss, std::log(259.0), 1e-12);
}

std::string evaluation_refusal(const Config& config, const std::vector<std::string>& files) {
  try {
    evaluate(config, files);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(Evaluation, RefusesTextThatHasNothingToPredict) {
  HeldOutText text("weft-evaluation");
  text.add("x");
  text.add("abc");
  text.add("ab\xff");
  Config config = tiny_config("d");
  EXPECT_NE(evaluation_refusal(config, {}).find("at least one file"), std::string::npos);
  const std::string both = evaluation_refusal(config, {text.files()[0], "/no/such/file"});
  EXPECT_NE(both.find("a single token leaves nothing to predict"), std::string::npos) << both;
  EXPECT_NE(both.find("/no/such/file"), std::string::npos) << both;
  config.model.vocab_size = 128;
  const std::string outside = evaluation_refusal(config, {text.files()[2]});
  EXPECT_NE(outside.find("the byte 255 at offset 2 is outside the vocabulary of 128 tokens"), std::string::npos)
      << outside;
}

}  // namespace
}  // namespace weft
