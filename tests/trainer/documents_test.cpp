// Masked documents: each has the losses and gradients that it has alone, whatever shares its sequence and however the
// sequence is laid out over ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <vector>

#include "tests/trainer/evaluate_files.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"
#include "tests/trainer/used_layouts.h"
#include "trainer/data/indexed_writer.h"

namespace weft {
namespace {

constexpr int byte_vocabulary = 259;

// Documents of these lengths, of tokens that follow no rule.
std::vector<std::vector<std::int32_t>> documents_of(const std::vector<int>& lengths) {
  std::vector<std::vector<std::int32_t>> documents;
  std::uint32_t state = 12345;
  for (const int length : lengths) {
    documents.emplace_back();
    for (int i = 0; i < length; ++i) {
      state = state * 1664525u + 1013904223u;
      documents.back().push_back(static_cast<std::int32_t>((state >> 16) % byte_vocabulary));
    }
  }
  return documents;
}

std::string write_dataset(const std::filesystem::path& prefix,
                          const std::vector<std::vector<std::int32_t>>& documents) {
  IndexedWriter writer(prefix.string(), byte_vocabulary);
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
  return prefix.string();
}

std::vector<TinyLayout> masked_layouts() {
  const std::string mixed = "d e d e";
  std::vector<TinyLayout> all = used_layouts();
  // Padding chooses no expert, and no node.
  all.push_back(
      {.name = "all_tokens_etp",
       .layers = "d e",
       .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2, .expert_dispatch = ExpertDispatch::all_gather},
       .recompute = Recompute::full,
       .weights_at_experts = true});
  all.push_back({.name = "two_nodes",
                 .layers = "d e",
                 .degrees = {.data_shard = 2,
                             .tensor = 2,
                             .expert = 4,
                             .expert_dispatch = ExpertDispatch::hierarchical,
                             .expert_nodes = 2},
                 .recompute = Recompute::keep_dispatch});
  all.push_back({.name = "hybrid_pp2_tp2", .layers = "M A E M D", .degrees = {.pipeline = 2, .tensor = 2}});
  all.push_back({.name = "hybrid_cp2",
                 .layers = "M A E M D",
                 .degrees = {.context = 2, .tensor = 2},
                 .recompute = Recompute::selective});
  all.push_back({.name = "hybrid_cp4", .layers = "M E M D", .degrees = {.context = 4}, .recompute = Recompute::full});
  all.push_back({.name = "cp2", .layers = mixed, .degrees = {.context = 2}});
  all.push_back({.name = "cp4", .layers = mixed, .degrees = {.context = 4}});
  all.push_back({.name = "cp2_tp2_pp2", .layers = mixed, .degrees = {.pipeline = 2, .context = 2, .tensor = 2}});
  all.push_back(
      {.name = "zbv_cp2", .layers = mixed, .degrees = {.pipeline = 2, .context = 2}, .schedule = "zbv", .chunks = 2});
  all.push_back(
      {.name = "dualpipev", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "dualpipev", .chunks = 2});
  all.push_back({.name = "zb_h1", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zb_h1"});
  all.push_back({.name = "recompute", .layers = mixed, .degrees = {.context = 2}, .recompute = Recompute::full});
  all.push_back({.name = "selective", .layers = mixed, .degrees = {.tensor = 2}, .recompute = Recompute::selective});
  return all;
}

Config masked(Config config, const std::string& file) {
  config.data.train = {file};
  config.data.tokenizer = "none";
  config.data.padded_vocab = false;
  config.data.documents = Documents::mask;
  return config;
}

class MaskedDocuments : public testing::TestWithParam<TinyLayout> {
 protected:
  // Of a held-out file, by a layout, with the weights of the seed.
  static HeldOutLoss loss_of(const Config& config, const std::string& file) { return evaluate(config, {file}, {}); }

  TemporaryFolder folder_;
};

// The oracle knows no documents: one rank evaluates each piece of a document that stands in a window as a file of its
// own.
TEST_P(MaskedDocuments, HaveTheLossesThatTheyHaveAlone) {
  const auto documents = documents_of({3, 1, 1, 5, 8, 17, 2, 30, 7, 9, 1});
  const std::string file = write_dataset(folder_ / "all", documents);
  Config config = masked(config_of(GetParam()), file);
  const std::int64_t length = config.training.sequence_length;

  Config alone = masked(config_of({.layers = GetParam().layers, .tied = GetParam().tied}), file);
  alone.data.documents = Documents::join;
  double loss_sum = 0.0;
  std::int64_t tokens = 0, position = 0, pieces = 0;
  for (const std::vector<std::int32_t>& document : documents) {
    const auto size = static_cast<std::int64_t>(document.size());
    for (std::int64_t first = 0; first < size;) {
      const std::int64_t count = std::min(size - first, length - (position + first) % length);
      // With the token that the last one of the piece predicts, if that is of the document too.
      const std::int64_t end = std::min(size, first + count + 1);
      if (end - first > 1) {
        const std::string piece = write_dataset(folder_ / fmt::format("piece{}", pieces++),
                                                {{document.begin() + first, document.begin() + end}});
        const HeldOutLoss found = loss_of(alone, piece);
        EXPECT_EQ(found.tokens, end - first - 1);
        loss_sum += found.loss * static_cast<double>(found.tokens);
        tokens += found.tokens;
      }
      first += count;
    }
    position += size;
  }
  const HeldOutLoss found = loss_of(config, file);
  EXPECT_EQ(found.tokens, tokens);
  EXPECT_NEAR(found.loss, loss_sum / static_cast<double>(tokens), 1e-6);
  config.data.documents = Documents::join;
  EXPECT_GT(std::abs(loss_of(config, file).loss - found.loss), 1e-4) << "joined documents see each other";
}

// Documents that fill sequences to the last token, on one rank, against longer sequences with padding, laid out over
// ranks. The losses of targets and of routers and all gradients are the same.
TEST_P(MaskedDocuments, TrainAsWithoutPadding) {
  constexpr std::int64_t in_a_sequence = 3, tokens = 10, batch = 8;
  const std::string file =
      write_dataset(folder_ / "triples", documents_of(std::vector<int>(in_a_sequence * batch, tokens)));
  const auto run_of = [&](const TinyLayout& layout, std::int64_t length) {
    Config config = masked(config_of(layout), file);
    config.data.documents = Documents::pack;
    config.training.sequence_length = length;
    config.training.global_batch_size = batch;
    config.run.steps = 3;
    config.model.moe.router_aux_loss_coef = 0.5;
    config.model.moe.router_z_loss_coef = 0.1;
    std::vector<StepMetrics> steps;
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() == 0) steps.push_back(metrics);
    };
    LearnedRun learned = learn(config, observer);
    for (const StepMetrics& step : steps) EXPECT_EQ(step.targets, batch * in_a_sequence * (tokens - 1));
    return std::pair(std::move(learned), std::move(steps));
  };
  const auto [found, steps] = run_of(GetParam(), 32);
  const auto [expected, full] =
      run_of({.layers = GetParam().layers, .tied = GetParam().tied}, in_a_sequence * tokens - 1);
  EXPECT_TRUE(found.faults.empty());
  const RunDifference apart = difference(found, expected);
  EXPECT_LT(apart.loss, 1e-6);
  EXPECT_LT(apart.gradient_norm, 1e-5);
  EXPECT_LT(apart.weights, 1e-4) << apart.worst_parameter;
  ASSERT_EQ(steps.size(), full.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    ASSERT_EQ(steps[s].moe.size(), full[s].moe.size());
    for (std::size_t b = 0; b < full[s].moe.size(); ++b) {
      EXPECT_NEAR(steps[s].moe[b].auxiliary_loss, full[s].moe[b].auxiliary_loss, 1e-5 * full[s].moe[b].auxiliary_loss);
      EXPECT_NEAR(steps[s].moe[b].z_loss, full[s].moe[b].z_loss, 1e-5 * full[s].moe[b].z_loss);
    }
  }
}

// With weights of zero the four experts of a token have equal scores. Whatever padding the sequences of a rank, a
// microbatch and a step have, balance costs its coefficient, and logits of zero ln(4)^2 times theirs.
TEST_P(MaskedDocuments, CostAUniformRouterItsCoefficients) {
  std::vector<int> lengths;
  for (int d = 0; d < 60; ++d) lengths.push_back(3 + d * 7 % 11);
  const std::string file = write_dataset(folder_ / "uneven", documents_of(lengths));
  for (const AuxiliaryLoss balance : all_values<AuxiliaryLoss>) {
    Config config = masked(config_of(GetParam()), file);
    config.data.documents = Documents::pack;
    config.training.sequence_length = 16;
    config.run.steps = 2;
    config.model.initializer_range = 0.0;
    config.model.moe.aux_loss = balance;
    config.model.moe.router_aux_loss_coef = 0.5;
    config.model.moe.router_z_loss_coef = 0.25;
    for (const StepMetrics& step : run_kept(config).steps) {
      EXPECT_LT(step.targets, 0.9 * static_cast<double>(step.tokens)) << "little padding";
      for (const MoeMetrics& moe : step.moe) {
        EXPECT_NEAR(moe.auxiliary_loss, 0.5, 0.5e-6) << name_of(balance) << ", block " << moe.block;
        EXPECT_NEAR(moe.z_loss, 0.25 * std::pow(std::log(4.0), 2), 0.5e-6) << "block " << moe.block;
      }
    }
  }
}

// Every batch is the whole epoch, so its order does not matter. The same documents are in sequences of two, laid out
// over ranks, and in sequences of one on one rank. There no query could see another document.
TEST_P(MaskedDocuments, TrainAsTheyDoAlone) {
  constexpr std::int64_t count = 32, tokens = 8;
  std::vector<int> lengths(count, tokens);
  lengths.push_back(1);
  const std::string file = write_dataset(folder_ / "pairs", documents_of(lengths));
  const auto run_of = [&](const TinyLayout& layout, std::int64_t documents) {
    Config config = masked(config_of(layout), file);
    config.training.sequence_length = documents * tokens;
    config.training.global_batch_size = count / documents;
    config.run.steps = 3;
    config.model.moe.router_aux_loss_coef = 0.0;  // its statistics are those of a sequence
    std::vector<StepMetrics> steps;
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() == 0) steps.push_back(metrics);
    };
    const LearnedRun learned = learn(config, observer);
    for (const StepMetrics& step : steps) EXPECT_EQ(step.targets, count * (tokens - 1));
    return learned;
  };
  const LearnedRun found = run_of(GetParam(), 2);
  const LearnedRun expected = run_of({.layers = GetParam().layers, .tied = GetParam().tied}, 1);
  EXPECT_TRUE(found.faults.empty());
  const RunDifference apart = difference(found, expected);
  EXPECT_LT(apart.loss, 1e-6);
  EXPECT_LT(apart.gradient_norm, 1e-5);
  EXPECT_LT(apart.weights, 1e-4) << apart.worst_parameter;
}

// What does not count changes no gradient, not even by its number: half of each sequence is another document without
// losses. The oracle reads the first halves alone, as files of one window, where every target counts.
TEST_P(MaskedDocuments, WeighNothingWhereNothingCounts) {
  constexpr std::int64_t count = 16, tokens = 8;
  std::vector<int> lengths;
  for (int d = 0; d < count; ++d) lengths.insert(lengths.end(), {tokens + 1, tokens - 1});
  lengths.push_back(1);
  const auto documents = documents_of(lengths);
  Config config = masked(config_of(GetParam()), write_dataset(folder_ / "halves", documents));
  Config alone = masked(config_of({.layers = GetParam().layers, .tied = GetParam().tied}), "");
  alone.data.documents = Documents::join;
  alone.data.train.clear();
  std::string losses;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    losses += std::string(documents[d].size(), d % 2 == 0 ? '\1' : '\0');
    if (documents[d].size() <= tokens) continue;
    alone.data.train.emplace_back(write_dataset(folder_ / fmt::format("half{}", d), {documents[d]}));
  }
  std::ofstream((folder_ / "halves.loss").string(), std::ios::binary) << losses;
  config.training.sequence_length = 2 * tokens;
  for (Config* each : {&config, &alone}) {
    each->training.global_batch_size = count;
    each->run.steps = 3;
    each->model.moe.router_aux_loss_coef = 0.0;
    each->model.moe.router_z_loss_coef = 0.0;  // of every token
  }
  const RunDifference apart = difference(learn(config), learn(alone));
  EXPECT_LT(apart.loss, 1e-6);
  EXPECT_LT(apart.gradient_norm, 1e-5);
  EXPECT_LT(apart.weights, 1e-4) << apart.worst_parameter;
}

INSTANTIATE_TEST_SUITE_P(Layouts, MaskedDocuments, testing::ValuesIn(masked_layouts()),
                         [](const auto& layout) { return layout.param.name; });

// Losses that are told token by token, as those of prompts and answers. The oracle knows none. A token adds the loss of
// the text that ends with it less that of the text that ends before. One rank evaluates each text as a file of its own.
TEST_P(MaskedDocuments, CountTheLossesThatTheDataSay) {
  const auto documents = documents_of({6, 3, 8, 1, 5});
  const std::string file = write_dataset(folder_ / "all", documents);
  std::string losses;
  double loss_sum = 0.0;
  std::int64_t tokens = 0, position = 0, pieces = 0;
  Config config = masked(config_of(GetParam()), file);
  config.training.sequence_length = 24;  // all of it
  Config alone = masked(config_of({.layers = GetParam().layers, .tied = GetParam().tied}), file);
  alone.data.documents = Documents::join;
  alone.training.sequence_length = 24;
  for (const std::vector<std::int32_t>& document : documents) {
    const auto answer = document.size() / 2;
    double before = 0.0;
    for (std::size_t t = 0; t < document.size(); ++t, ++position) {
      losses += t < answer ? '\0' : '\1';
      if (t == 0) continue;
      const std::string beginning =
          write_dataset(folder_ / fmt::format("piece{}", pieces++), {{document.begin(), document.begin() + t + 1}});
      const HeldOutLoss found = loss_of(alone, beginning);
      const double sum = found.loss * static_cast<double>(found.tokens);
      if (t >= answer) {
        loss_sum += sum - before;
        ++tokens;
      }
      before = sum;
    }
  }
  std::ofstream(file + ".loss", std::ios::binary) << losses;
  const HeldOutLoss found = loss_of(config, file);
  EXPECT_EQ(found.tokens, tokens);
  EXPECT_NEAR(found.loss, loss_sum / static_cast<double>(tokens), 2e-6);
}

// Stopped anywhere, the run goes on with the same targets.
TEST(MaskedDocuments, AreCountedAnewAfterAStop) {
  TemporaryFolder folder;
  const std::string file = write_dataset(folder / "all", documents_of({3, 9, 1, 40, 5, 8, 77, 21}));
  Config config = masked(config_of({.layers = "d e", .degrees = {.context = 2}}), file);
  config.run.steps = 4;
  const LearnedRun whole = learn(config);
  config.run.directory = (folder / "run").string();
  config.checkpoint.directory = (folder / "saved").string();
  config.run.steps = 2;
  learn(config);
  config.run.steps = 4;
  EXPECT_TRUE(difference(whole, learn(config)).weights == 0.0);
}

TEST(MaskedDocuments, RefuseLossesOfOtherData) {
  TemporaryFolder folder;
  const std::string file = write_dataset(folder / "all", documents_of({30, 20}));
  std::ofstream(file + ".loss") << std::string(49, '\1');
  try {
    run_steps(masked(config_of({.layers = "d e"}), file));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("49 bytes, one for each token, but there are 50 tokens"),
              std::string::npos)
        << error.what();
  }
}

TEST(MaskedDocuments, NeedATargetSomewhere) {
  TemporaryFolder folder;
  Config config =
      masked(config_of({.layers = "d e"}), write_dataset(folder / "ones", documents_of(std::vector<int>(50, 1))));
  EXPECT_NE(refusal_of([&] { run_steps(config); }).value_or("").find("no document has two tokens"), std::string::npos);
  config = masked(config_of({.layers = "d e"}), write_dataset(folder / "all", documents_of({30, 20})));
  std::ofstream((folder / "all.loss").string(), std::ios::binary) << std::string(50, '\0');
  for (const Documents documents : all_values<Documents>) {
    config.data.documents = documents;
    EXPECT_NE(refusal_of([&] { run_steps(config); }).value_or("").find("count for nothing"), std::string::npos);
  }
}

// A batch without a target changes nothing, whatever routers and weight decay would: of an epoch of four steps two at
// least have none. The oracle is the run that ends before such a step.
TEST(MaskedDocuments, AStepWithoutATargetNeverWas) {
  for (const TinyLayout& layout :
       {TinyLayout{.layers = "d e"}, TinyLayout{.layers = "d e", .degrees = {.data_shard = 2}},
        TinyLayout{.layers = "d e d e", .degrees = {.pipeline = 2}}}) {
    TemporaryFolder folder;
    constexpr std::int64_t windows = 8, length = 8;
    const auto documents = documents_of({windows * length + 1});
    const std::string file = write_dataset(folder / "all", documents);
    std::ofstream(file + ".loss", std::ios::binary)
        << std::string((windows - 2) * length + 1, '\0') + std::string(2 * length, '\1');
    Config config = masked(config_of(layout), file);
    config.data.documents = Documents::join;
    config.training.sequence_length = length;
    config.training.global_batch_size = 2;
    config.run.steps = windows / 2;
    std::vector<StepMetrics> steps;
    std::vector<std::int64_t> updates;
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() != 0) return;
      steps.push_back(metrics);
      updates.push_back(run.progress().good_steps);
    };
    learn(config, observer);
    ASSERT_EQ(std::ssize(steps), windows / 2);
    std::int64_t learned = 0, targets = 0;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const bool none = steps[s].targets == 0;
      EXPECT_EQ(steps[s].skipped, none);
      EXPECT_EQ(steps[s].has_no_target(), none);
      EXPECT_EQ(std::isnan(steps[s].loss), none);
      learned += none ? 0 : 1;
      targets += steps[s].targets;
      EXPECT_EQ(updates[s], learned);
      if (!none || s == 0) continue;
      const auto taken = static_cast<std::int64_t>(s);
      config.run.steps = taken + 1;
      const LearnedRun behind = learn(config);
      config.run.steps = taken;
      EXPECT_TRUE(behind.weights == learn(config).weights);
    }
    EXPECT_EQ(targets, 2 * length);
    EXPECT_LE(learned, 2);
  }
}

}  // namespace
}  // namespace weft
