// The files and messages of a run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/config/config.h"
#include "trainer/config/config_schema.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/console.h"
#include "trainer/run/start_check.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Text that looks at the metrics file each time the console finishes a line.
class WatchingBuffer : public std::stringbuf {
 public:
  explicit WatchingBuffer(std::filesystem::path watched) : watched_(std::move(watched)) {}
  int sync() override {
    seen_.push_back({lines_of(str()).back(), lines_of(content_of(watched_))});
    return 0;
  }
  struct Seen {
    std::string last_line;
    std::vector<std::string> metrics;
  };
  const std::vector<Seen>& seen() const { return seen_; }

 private:
  std::filesystem::path watched_;
  std::vector<Seen> seen_;
};

class Run : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = std::filesystem::temp_directory_path() / fmt::format("weft-run-{}", getpid()); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Trains as `weft train` does. The configuration goes through its TOML form.
  TrainResult trained(Config config, bool terminal = false) {
    const auto no_comment = [](const ConfigKey&) { return std::string(); };
    config.run.directory = (folder_ / "run").string();
    resolved_ = read_config_text(write_config(config, config_schema(), no_comment), "run.toml");
    buffer_ = std::make_unique<WatchingBuffer>(folder_ / "run" / "metrics.jsonl");
    std::ostream out(buffer_.get());
    Console console(out, terminal);
    return train(resolved_, {"weft train run.toml", "weft 1.2.3"}, console);
  }
  std::string console() const { return buffer_->str(); }
  std::string written(const char* name) const { return content_of(folder_ / "run" / name); }

  std::filesystem::path folder_;
  ResolvedConfig resolved_;
  std::unique_ptr<WatchingBuffer> buffer_;
};

Config three_steps(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.run.steps = 3;
  return config;
}

const TinyLayout mesh8{
    .name = "mesh8", .layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}};

TEST_F(Run, WritesALineOfMetricsAStep) {
  const Config config = three_steps(mesh8);
  trained(config);
  const std::vector<StepMetrics> steps = run_kept(config).steps;
  const auto lines = lines_of(written("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 3u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const SortedJson line = SortedJson::parse(lines[i]);
    EXPECT_EQ(line.at("step"), i + 1);
    for (const char* key : {"step", "tokens", "peak_bytes", "system_allocations"}) {
      EXPECT_TRUE(line.at(key).is_number_integer()) << key;
    }
    for (const char* key : {"loss", "grad_norm", "lr", "seconds", "data_seconds", "tokens_per_second", "tflops"}) {
      EXPECT_TRUE(line.at(key).is_number_float()) << key;
      EXPECT_GT(line.at(key).get<double>(), 0.0) << key;
    }
    EXPECT_EQ(line.at("loss"), steps[i].loss);
    EXPECT_EQ(line.at("tokens"), 16 * 8);
    std::int64_t sum = 0;
    for (std::size_t b = 0; b < bucket_count; ++b) {
      sum += line.at("memory").at(std::string(name_of(static_cast<Bucket>(b)))).get<std::int64_t>();
    }
    EXPECT_EQ(line.at("memory").size(), bucket_count);
    EXPECT_EQ(line.at("peak_bytes"), sum);
    for (const auto& [group, operations] : line.at("communication").items()) {
      for (const auto& [operation, count] : operations.items()) {
        EXPECT_GT(count.at("count").get<std::int64_t>(), 0) << group << " " << operation;
        EXPECT_TRUE(count.at("bytes").is_number_integer()) << group << " " << operation;
      }
    }
    EXPECT_TRUE(line.at("communication").contains("dp_shard"));
    ASSERT_EQ(line.at("moe").size(), 2u);  // blocks 1 and 3
    for (std::size_t e = 0; e < 2; ++e) {
      const SortedJson& moe = line.at("moe")[e];
      EXPECT_EQ(moe.at("block"), 2 * e + 1);
      EXPECT_EQ(moe.at("dropped"), 0);
      EXPECT_TRUE(moe.at("auxiliary_loss").is_number_float());
      EXPECT_TRUE(moe.at("z_loss").is_number_float());
      EXPECT_GE(moe.at("max_over_mean").get<double>(), 1.0);
    }
  }
}

TEST(RunSteps, MakeABackendForEachRankOnItsOwnThread) {
  Config config = config_of({.degrees = {.data_shard = 2, .tensor = 2}});
  config.run.steps = 1;
  std::mutex mutex;
  std::map<int, std::thread::id> made_on, stepped_on;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    const std::lock_guard lock(mutex);
    stepped_on[run.rank()] = std::this_thread::get_id();
  };
  run_steps(config, observer, [&](int rank) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(made_on.emplace(rank, std::this_thread::get_id()).second) << "a second backend of rank " << rank;
    return make_cpu_backend();
  });
  EXPECT_EQ(made_on.size(), 4u);
  EXPECT_EQ(made_on, stepped_on);
}

TEST_F(Run, ADenseModelHasNoMoeMetrics) {
  trained(three_steps({.degrees = {.data_shard = 2}}));
  for (const std::string& line : lines_of(written("metrics.jsonl")))
    EXPECT_FALSE(SortedJson::parse(line).contains("moe"));
}

// When the console has said a step, its metrics are on disk, and nothing of a later step.
TEST_F(Run, MetricsAreOnDiskAsSoonAsAStepEnds) {
  trained(three_steps(mesh8));
  std::size_t steps_said = 0;
  for (const auto& seen : buffer_->seen()) {
    if (!seen.last_line.starts_with("step ")) continue;
    ++steps_said;
    ASSERT_EQ(seen.metrics.size(), steps_said);
    EXPECT_EQ(SortedJson::parse(seen.metrics.back()).at("step"), steps_said);
  }
  EXPECT_EQ(steps_said, 3u);
}

TEST_F(Run, SummaryComparesEveryRankWithItsPrediction) {
  const TrainResult result = trained(three_steps(mesh8));
  const SortedJson summary = SortedJson::parse(written("summary.json"));
  EXPECT_EQ(summary.at("command_line"), "weft train run.toml");
  EXPECT_EQ(summary.at("versions"), "weft 1.2.3");
  EXPECT_EQ(summary.at("steps"), 3);
  EXPECT_EQ(summary.at("tokens"), 3 * 16 * 8);
  EXPECT_GT(summary.at("seconds").get<double>(), 0.0);
  EXPECT_EQ(summary.at("first_loss"), result.totals.first_loss);
  EXPECT_EQ(summary.at("last_loss"), result.totals.last_loss);
  ASSERT_EQ(summary.at("ranks").size(), 8u);
  const Mesh mesh(resolved_.config.parallelism);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    const SortedJson& entry = summary.at("ranks")[rank];
    // Bytes at the computing actions of the rank's list, added up.
    const Coordinates at = mesh.coordinates(static_cast<int>(rank));
    const Program program = step_program(ResolvedRun(resolved_.config), at);
    const std::vector<LiveAction> live = live_bytes(program, at.pp);
    BucketBytes sum;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (!is_compute(program.ranks[static_cast<std::size_t>(at.pp)][i].op)) continue;
      sum[Bucket::unsharded_parameters] += live[i].after[Bucket::unsharded_parameters];
      sum[Bucket::unsharded_gradients] += live[i].after[Bucket::unsharded_gradients];
      sum[Bucket::communication] += live[i].after[Bucket::communication];
    }
    EXPECT_EQ(entry.at("byte_steps"), SortedJson({{"unsharded_parameters", sum[Bucket::unsharded_parameters]},
                                                  {"unsharded_gradients", sum[Bucket::unsharded_gradients]},
                                                  {"communication", sum[Bucket::communication]}}));
    EXPECT_GT(sum[Bucket::unsharded_gradients], 0);
    EXPECT_EQ(entry.at("rank"), rank);
    EXPECT_EQ(entry.at("peak_bytes"), result.measured[rank].total());
    for (std::size_t b = 0; b < bucket_count; ++b) {
      const auto bucket = static_cast<Bucket>(b);
      const SortedJson& bytes = entry.at("buckets").at(std::string(name_of(bucket)));
      EXPECT_EQ(bytes.at("measured"), result.measured[rank][bucket]);
      EXPECT_EQ(bytes.at("predicted"), result.predicted[rank][bucket]);
      if (is_static(bucket)) {
        EXPECT_EQ(bytes.at("measured"), bytes.at("predicted"));
      }
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run")) {
    EXPECT_NE(entry.path().extension(), ".partial");
  }
}

// Routers move tokens between two ranks from step to step, and with them the peak.
TEST_F(Run, SummaryHasThePeakOfTheStepThatHoldsMost) {
  Config config = config_of({.layers = "d e*3", .degrees = {.data_shard = 2, .expert = 2}});
  config.optimizer.learning_rate = 0.05;
  config.run.steps = 8;
  trained(config);
  SortedJson most, last;
  for (const std::string& line : lines_of(written("metrics.jsonl"))) {
    last = SortedJson::parse(line);
    if (most.is_null() || last.at("peak_bytes") > most.at("peak_bytes")) most = last;
  }
  ASSERT_LT(last.at("peak_bytes"), most.at("peak_bytes")) << "the last step holds most: it shows nothing";
  const SortedJson ranks = SortedJson::parse(written("summary.json")).at("ranks");
  const SortedJson& fullest = ranks[0].at("peak_bytes") >= ranks[1].at("peak_bytes") ? ranks[0] : ranks[1];
  EXPECT_EQ(fullest.at("peak_bytes"), most.at("peak_bytes"));
  for (const auto& [bucket, bytes] : most.at("memory").items()) {
    EXPECT_EQ(fullest.at("buckets").at(bucket).at("measured"), bytes) << bucket;
  }
}

// No target of the step counts.
TEST_F(Run, SummaryHasNoLossOfARunWithoutOne) {
  RunFigures figures;
  figures.totals.add({.step = 1, .skipped = true, .tokens = 16});
  RunDirectory(folder_ / "run").summary(figures, {});
  const SortedJson summary = SortedJson::parse(written("summary.json"));
  EXPECT_EQ(summary.at("steps"), 1);
  for (const char* loss : {"first_loss", "last_loss"}) EXPECT_TRUE(summary.at(loss).is_null()) << summary.at(loss);
}

TEST_F(Run, ItsConfigurationCanBeReadAgain) {
  trained(three_steps(mesh8));
  EXPECT_EQ(read_config(folder_ / "run" / "config.toml").config, resolved_.config);
  EXPECT_EQ(written("config.toml"), resolved_.toml);
}

TEST_F(Run, ALogIsPlainAndATerminalShowsWhatIsLeft) {
  trained(three_steps({}));
  EXPECT_EQ(console().find('\x1b'), std::string::npos);
  EXPECT_EQ(console().find('\r'), std::string::npos);
  trained(three_steps({}), true);
  EXPECT_NE(console().find(" 33 %, "), std::string::npos) << console();
  EXPECT_NE(console().find(" left"), std::string::npos);
}

class ConsoleOfLayout : public Run, public ::testing::WithParamInterface<TinyLayout> {};

TEST_P(ConsoleOfLayout, LossIsVisibleWhateverStageComputesIt) {
  const Config config = three_steps(GetParam());
  trained(config);
  const std::vector<StepMetrics> steps = run_kept(config).steps;
  const auto lines = lines_of(console());
  ASSERT_GE(lines.size(), 10u);
  EXPECT_EQ(lines[0], fmt::format("weft: run on {} ranks (threads, cpu)", config.parallelism.world()));
  EXPECT_TRUE(lines[1].starts_with(fmt::format("  mesh        pp {} x", config.parallelism.pipeline))) << lines[1];
  EXPECT_TRUE(lines[2].starts_with("  model       4 blocks (")) << lines[2];
  EXPECT_TRUE(lines[3].starts_with("  step        16 sequences of 8 tokens, ")) << lines[3];
  EXPECT_TRUE(lines[4].starts_with("  predicted   ")) << lines[4];
  EXPECT_TRUE(lines[5].starts_with("  data        ")) << lines[5];
  EXPECT_EQ(lines[6], "  attention   in blocks, by the CPU");
  for (std::size_t step = 1; step <= 3; ++step) {
    const StepMetrics& metrics = steps[step - 1];
    EXPECT_TRUE(lines[6 + step].starts_with(
        fmt::format("step {}/3  loss {:.4f}  grad_norm {:.4f}  lr ", step, metrics.loss, metrics.gradient_norm)))
        << lines[6 + step];
    EXPECT_GT(metrics.loss, 1.0);
  }
  EXPECT_NE(console().find("static buckets that differ from their prediction: 0\n"), std::string::npos) << console();
}

// With weights near zero the logits vanish and every token has probability 1 / vocab. The rest is 20 normed activations
// (of size 1) times weights of standard deviation 1e-3. They give logits of deviation s = sqrt(20) 1e-3. These move the
// loss of one token by a few s and the mean over 128 tokens by less than one s.
TEST_P(ConsoleOfLayout, TheFirstLossIsThatOfGuessing) {
  Config config = three_steps(GetParam());
  config.model.initializer_range = 1e-3;
  config.run.steps = 1;
  EXPECT_NEAR(run_kept(config).steps.front().loss, std::log(259.0), std::sqrt(20.0) * 1e-3);
}

// P ranks and m microbatches leave (P - 1) / (m + P - 1) of the step under 1F1B and GPipe. With V chunks a rank it is
// (P - 1) / (m V + P - 1). Where weight gradients fill the bubble of ZB-H1, it is (P - 1) of 3 m + P - 1.
TEST_F(Run, TheBannerHasTheBubbleOfTheSchedule) {
  const std::vector<std::pair<TinyLayout, double>> cases = {
      {{}, 0.0},
      {{.degrees = {.pipeline = 4}}, 3.0 / 19},
      {{.degrees = {.pipeline = 4}, .schedule = "gpipe"}, 3.0 / 19},
      {{.degrees = {.pipeline = 2}, .schedule = "interleaved", .chunks = 2}, 1.0 / 33},
      {{.degrees = {.pipeline = 4}, .schedule = "zb_h1"}, 3.0 / 51},
  };
  for (const auto& [layout, bubble] : cases) {
    const Config config = config_of(layout);
    const Mesh mesh(config.parallelism);
    std::ostringstream out;
    Console(out, false).banner(config, step_program(ResolvedRun(config), {}), {});
    const std::string expected = fmt::format("bubble {:.1f} %", 100 * bubble);
    EXPECT_NE(out.str().find(expected), std::string::npos) << expected << " in\n" << out.str();
  }
}

TEST(StartWarnings, AreOfWhatTrainsAndHardlyAsMeant) {
  Config config = config_of({.layers = "e", .degrees = {.pipeline = 1, .data_shard = 8, .tensor = 2}});
  config.checkpoint.at_end = true;
  EXPECT_EQ(start_warnings(config, 4), std::vector<std::string>{});
  EXPECT_EQ(start_warnings(config, 2),
            std::vector<std::string>{"16 ranks on 2 cores take turns: fewer ranks train as fast"});
  config.run.device = DeviceKind::cuda;
  EXPECT_EQ(start_warnings(config, 2), std::vector<std::string>{});
  config.model.moe.router_aux_loss_coef = 0.0;
  EXPECT_EQ(start_warnings(config, 2).size(), 1u);
  config.training.frozen = {Family::routing};
  EXPECT_EQ(start_warnings(config, 2).size(), 0u);
  config.checkpoint.at_end = false;
  EXPECT_EQ(start_warnings(config, 2).size(), 1u);
  config.checkpoint.interval = 2;
  EXPECT_EQ(start_warnings(config, 2).size(), 0u);
  config.model.moe.force_balance = true;
  EXPECT_EQ(start_warnings(config, 2), std::vector<std::string>{std::string(forced_balance_text)});
}

// A score over itself is 1: its derivative is a rounding.
TEST(StartWarnings, AreOfRoutersThatTheLossDoesNotTeach) {
  Config config = config_of({.layers = "e"});
  config.checkpoint.at_end = true;
  config.model.moe.num_experts_per_tok = 1;
  config.model.moe.norm_topk_prob = true;
  const std::vector<std::string> warnings = start_warnings(config, 4);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings.front().starts_with("model.moe.norm_topk_prob is true with num_experts_per_tok 1: "));
  const std::vector<std::function<void(Config&)>> taught = {
      [](Config& c) { c.model.moe.real_fraction = 0.5; },  // two choices, which may both be experts
      [](Config& c) { c.model.moe.norm_topk_prob = false; }, [](Config& c) { c.model.moe.num_experts_per_tok = 2; },
      [](Config& c) { c.training.frozen = {Family::routing}; }, [](Config& c) { c.model = tiny_config("d").model; }};
  for (const auto& change : taught) {
    Config other = config;
    change(other);
    EXPECT_EQ(start_warnings(other, 4), std::vector<std::string>{});
  }
}

TEST(StartWarnings, AreOfNodesOfExpertsThatAreNoneOfTheHardware) {
  Config config = config_of({.layers = "e",
                             .degrees = {.data_shard = 8,
                                         .tensor = 2,
                                         .expert = 8,
                                         .expert_tensor = 2,
                                         .expert_dispatch = ExpertDispatch::hierarchical,
                                         .expert_nodes = 4}});
  config.checkpoint.at_end = true;
  EXPECT_EQ(start_warnings(config, 4), std::vector<std::string>{});  // threads of one machine
  config.hardware.ranks_per_node = 4;                                // four nodes of two experts' ranks
  EXPECT_EQ(start_warnings(config, 4), std::vector<std::string>{});
  const auto ends_with = [&](int ranks_per_node, const std::string& end) {
    config.hardware.ranks_per_node = ranks_per_node;
    const std::string text = misplaced_expert_nodes(config).value_or("");
    EXPECT_TRUE(
        text.starts_with("parallelism.expert_nodes = 4 makes 4 ranks a node of an expert group, and cpu has ") &&
        text.ends_with(end))
        << text;
    EXPECT_EQ(start_warnings(config, 4), std::vector<std::string>{text});
  };
  ends_with(8, "; 2 would fit");
  ends_with(2, "; 8 would fit");
  ends_with(16, "; no number fits, expert_dispatch \"all_to_all\" needs none");
  ends_with(3, "; no number fits, expert_dispatch \"all_to_all\" needs none");
  config.parallelism.expert_dispatch = ExpertDispatch::all_to_all;
  EXPECT_EQ(misplaced_expert_nodes(config), std::nullopt);
  config.parallelism.expert_dispatch = ExpertDispatch::hierarchical;
  config.hardware.ranks_per_node.reset();
  config.run.device = DeviceKind::cuda;  // eight a node
  EXPECT_NE(misplaced_expert_nodes(config), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ConsoleOfLayout,
    ::testing::Values(TinyLayout{.name = "pp1"}, TinyLayout{.name = "pp2", .degrees = {.pipeline = 2}},
                      TinyLayout{.name = "pp4", .degrees = {.pipeline = 4}},
                      TinyLayout{.name = "pp4_gpipe", .degrees = {.pipeline = 4}, .schedule = "gpipe"},
                      TinyLayout{.name = "tp4", .degrees = {.tensor = 4}},
                      TinyLayout{.name = "shard2_replicate2", .degrees = {.data_replicate = 2, .data_shard = 2}},
                      TinyLayout{.name = "moe_ep4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 4}}, mesh8),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
