// A run that fails ends on all ranks, soon, with the first error, and the error says where.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <thread>

#include "parallel/runtime/error.h"
#include "parallel/runtime/staging.h"
#include "tests/trainer/held_out_text.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// Runs until it fails, within 5 seconds. A tiny step takes milliseconds and a rank that is woken ends at once, so that
// the rest is room for a busy machine. A rank left waiting would stay for the 300 seconds of the watchdog.
std::string failure_of(const Config& config, const RunObserver& observer = {}) {
  const auto begin = Clock::now();
  std::string message;
  try {
    run_steps(config, observer);
    ADD_FAILURE() << "the run does not fail";
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::failure) << message;
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  return message;
}

void expect_parts(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

class Failure : public ::testing::TestWithParam<TinyLayout> {};

// The first element of one rank's share of each parameter in turn. Not of the embedding: rows of bytes that the text
// does not hold are never read.
TEST_P(Failure, NanInOneParameterOfOneRank) {
  const Config config = config_of(GetParam());
  const int last = config.parallelism.world() - 1;
  std::vector<std::string> names;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    if (run.rank() != last) return;
    for (std::size_t u = 0; u < run.stages().planned_units().size(); ++u) {
      for (const OwnedRows& rows : run.stages().owned_rows(u)) names.push_back(rows.parameter->name);
    }
  };
  Config short_run = config;
  short_run.run.steps = 1;
  run_steps(short_run, observer);
  ASSERT_FALSE(names.empty());
  for (std::size_t poisoned = 0; poisoned < names.size(); ++poisoned) {
    SCOPED_TRACE(names[poisoned]);
    if (names[poisoned] == "embedding.weight") continue;
    RunObserver poison;
    poison.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() != last || metrics.step != 1) return;
      std::size_t at = 0;
      for (std::size_t u = 0; u < run.stages().planned_units().size(); ++u) {
        for (const OwnedRows& rows : run.stages().owned_rows(u)) {
          if (at++ != poisoned) continue;
          constexpr float nan = std::numeric_limits<float>::quiet_NaN();
          write<float>(run.stream(), {&nan, 1}, rows.values.reshaped(rows.values.size(), 1).rows_from(0, 1));
        }
      }
    };
    // Which rank says so first is a matter of chance; it says which it is, in which step, and which parameter it was.
    const std::string message = failure_of(config, poison);
    expect_parts(
        message,
        {"rank ", ": in step 2 the gradient of ",
         " holds a NaN or an infinity on this rank, before its reduction; so it is when the step is done again"});
  }
}

// Writes a NaN into a reduced gradient of this rank before the norm of a step, as a device that computes wrongly once.
class OneWrongNumber : public ActionObserver {
 public:
  explicit OneWrongNumber(RankRun& run) : run_(run) {}
  void begin(std::size_t action) override {
    if (run_.actions()[action].op != Op::gradient_norm || run_.progress().step != 1) return;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const OwnedRows rows = run_.stages().owned_rows(0).front();
    write<float>(run_.stream(), {&nan, 1}, rows.gradients.reshaped(rows.gradients.size(), 1).rows_from(0, 1));
  }
  void end(std::size_t) override {}

 private:
  RankRun& run_;
};

// The step is done again: a NaN that does not come again is told apart from one of text and parameters.
TEST_P(Failure, ANanThatDoesNotComeAgainIsNoGradientOfTheText) {
  const Config config = config_of(GetParam());
  std::unique_ptr<OneWrongNumber> wrong;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    if (run.rank() == config.parallelism.world() - 1) run.observe(*(wrong = std::make_unique<OneWrongNumber>(run)));
  };
  double norm = 0.0;
  RunObserver sound;
  sound.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (run.rank() == 0 && metrics.step == 2) norm = metrics.gradient_norm;
  };
  run_steps(config, sound);
  ASSERT_GT(norm, 0.0);
  expect_parts(failure_of(config, observer),
               {fmt::format("the gradient norm of step 2 is nan; the step done again has the norm {}: ", norm)});
}

TEST_P(Failure, AnExceptionOnOneRankEndsAll) {
  const Config config = config_of(GetParam());
  const int world = config.parallelism.world();
  for (const int rank : {0, world / 2, world - 1}) {
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() == rank && metrics.step == 3) fail("this rank gives up after step {}", metrics.step);
    };
    EXPECT_EQ(failure_of(config, observer), fmt::format("rank {}: this rank gives up after step 3", rank));
    observer = {};
    observer.before_first_step = [&](RankRun& run) {
      if (run.rank() == rank) throw std::runtime_error("not an Error of Weft");
    };
    expect_parts(failure_of(config, observer), {fmt::format("rank {}: ", rank), "not an Error of Weft"});
  }
}

// The others wait as long as the configuration says, and name whom they waited for.
TEST_P(Failure, ARankThatDoesNotComeEndsAllAfterTheTimeout) {
  Config config = config_of(GetParam());
  config.run.communication_timeout_seconds = 1;
  const int last = config.parallelism.world() - 1;
  if (last == 0) GTEST_SKIP() << "one rank waits for nobody";
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (run.rank() == last && metrics.step == 2) std::this_thread::sleep_for(std::chrono::seconds(2));
  };
  expect_parts(failure_of(config, observer), {"group ", " waited 1000 ms in ", "which did not come"});
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Failure,
    ::testing::Values(TinyLayout{.name = "one_rank"}, TinyLayout{.name = "pp2", .degrees = {.pipeline = 2}},
                      TinyLayout{.name = "shard4", .degrees = {.data_shard = 4}},
                      TinyLayout{.name = "moe_ep2", .layers = "e*2", .degrees = {.data_shard = 2, .expert = 2}},
                      TinyLayout{.name = "mesh8",
                                 .layers = "d e d e",
                                 .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}}),
    [](const auto& instance) { return instance.param.name; });

// Seen between two steps, by the ranks that read it: a failure of the run too.
TEST(FailureOfData, AHeldOutTokenOutsideTheVocabularyIsNamed) {
  HeldOutText text("weft-failure");
  text.add("abcdef");
  Config config = config_of({.layers = "d e", .degrees = {.pipeline = 2}});
  config.model.vocab_size = 128;
  config.data.train = {text.files().front() + ".train"};
  std::ofstream(config.data.train.front().path, std::ios::binary) << std::string(400, 'a');
  config.validation.data = text.files();
  config.validation.interval = 1;
  RunObserver observer;
  observer.identified = [&](const RunHashes&) {
    std::ofstream(text.files().front(), std::ios::binary) << "abc" << static_cast<char>(200) << "de";
  };
  EXPECT_NE(failure_of(config, observer).find("the byte 200 at offset 3 is outside the vocabulary of 128 tokens"),
            std::string::npos);
}

// A byte that only data rank 2 reads, and only in its second microbatch of the second step.
TEST(FailureOfData, ATokenOutsideTheVocabularyIsNamedByFileAndOffset) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("weft-outside-{}.txt", getpid());
  Config config = config_of({.degrees = {.data_shard = 4}});
  config.model.vocab_size = 128;
  config.data.train = {path.string()};
  constexpr std::int64_t windows = 100;
  const std::int64_t length = config.training.sequence_length;
  const BatchPlan plan{config.microbatches(), 4, 1};
  const std::int64_t window =
      shuffled_position(config.run.seed, "data.order.0", plan.sample(plan.sequences(), 1, 2, 0), windows);
  const std::int64_t offset = window * length + 3;  // inside the window: at its ends two windows share a token
  std::string text(static_cast<std::size_t>(windows * length + 1), 'a');
  std::ofstream(path, std::ios::binary) << text;
  std::int64_t steps = 0;
  RunObserver observer;
  // A file that is damaged after the start.
  observer.identified = [&](const RunHashes&) {
    text[static_cast<std::size_t>(offset)] = static_cast<char>(200);
    std::ofstream(path, std::ios::binary) << text;
  };
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (run.rank() == 0) steps = metrics.step;
  };
  EXPECT_EQ(failure_of(config, observer),
            fmt::format("rank 2: \"{}\": the byte 200 at offset {} is outside the vocabulary of 128 tokens",
                        path.string(), offset));
  EXPECT_EQ(steps, 1);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace weft
