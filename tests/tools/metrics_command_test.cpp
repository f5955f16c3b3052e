// The reports of a run on its steps: lines of the console, records for TensorBoard, and its action at a spike.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/tools/tiny_training.h"
#include "tests/trainer/event_reading.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class ToldMetrics : public TinyTraining {
 protected:
  std::vector<SortedJson> metrics(const std::string& directory = "out/tiny") const {
    std::vector<SortedJson> steps;
    std::ifstream file(folder_ / directory / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) steps.push_back(SortedJson::parse(line));
    return steps;
  }
  std::vector<std::filesystem::path> event_files() const {
    const auto folder = folder_ / "out/tiny/tensorboard";
    std::vector<std::filesystem::path> files;
    if (std::filesystem::exists(folder)) files.assign(std::filesystem::directory_iterator(folder), {});
    std::ranges::sort(files, {}, [](const auto& file) { return std::filesystem::last_write_time(file); });
    return files;
  }
  static std::vector<std::int64_t> steps_shown(const std::string& output) {
    std::vector<std::int64_t> steps;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("step ") && line.find("  loss ") != std::string::npos)
        steps.push_back(std::stoll(line.substr(5)));
    }
    return steps;
  }
  // A configuration without clipping or updates, whose losses and norms are those of its text.
  void put_still_run() const {
    put("still.toml",
        "include = [\"run.toml\"]\n[optimizer]\nlearning_rate = 0.0\n[run]\nsteps = 6\ndirectory = \"still\"\n");
  }
};

TEST_F(ToldMetrics, OfAnIntervalAreOnTheConsoleAndInEventFilesAndOfEveryStepInTheLines) {
  const auto result = weft("train run.toml --run.steps=8 --metrics.interval=3");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::vector<std::int64_t> expected = {1, 3, 6, 8};
  EXPECT_EQ(steps_shown(result.output), expected) << result.output;
  EXPECT_EQ(result.output.find('\x1b'), std::string::npos);
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 8u);
  ASSERT_EQ(event_files().size(), 1u);
  std::vector<std::int64_t> recorded;
  for (const ReadEvent& event : read_event_file(event_files().front())) {
    if (event.scalars.empty()) continue;
    recorded.push_back(event.step);
    const SortedJson& line = lines.at(static_cast<std::size_t>(event.step - 1));
    for (const char* tag : {"loss", "grad_norm", "lr"})
      EXPECT_EQ(event.scalars.at(tag), line.at(tag).get<float>()) << tag;
    const SortedJson& moe = line.at("moe").at(0);
    EXPECT_EQ(event.scalars.at("moe/block_1/entropy"), moe.at("entropy").get<float>());
    EXPECT_EQ(event.scalars.at("moe/block_1/max_over_mean"), moe.at("max_over_mean").get<float>());
    EXPECT_EQ(event.scalars.at("memory_gib"), static_cast<float>(line.at("peak_bytes").get<double>() / 0x1p30));
  }
  EXPECT_EQ(recorded, expected);
}

// One rate is that of `weft plan`, for the tokens of a step, of one of the eight ranks.
TEST_F(ToldMetrics, HaveTheRateOfThePlansOperations) {
  ASSERT_EQ(weft("train run.toml --hardware.flops_per_second=1e12").exit_code, 0);
  const double flops = SortedJson::parse(weft("plan run.toml --json").output).at("flops_per_token");
  for (const SortedJson& line : metrics()) {
    const double tflops = flops * line.at("tokens").get<double>() / line.at("seconds").get<double>() / 8 / 1e12;
    EXPECT_NEAR(line.at("tflops").get<double>(), tflops, 1e-12 * tflops);
    EXPECT_NEAR(line.at("mfu").get<double>(), tflops, 1e-12 * tflops);  // of a peak of 1 TFLOP/s
    EXPECT_GT(line.at("data_seconds").get<double>(), 0.0);
    EXPECT_LT(line.at("data_seconds").get<double>(), line.at("seconds").get<double>());
    EXPECT_FALSE(line.contains("spike"));
  }
  // The peak of a CPU is known to nobody else.
  ASSERT_EQ(weft("train run.toml --run.directory=other").exit_code, 0);
  EXPECT_FALSE(metrics("other").front().contains("mfu"));
}

TEST_F(ToldMetrics, OfARunThatGoesOnAreInAFileOfTheirOwn) {
  ASSERT_EQ(weft("train run.toml --run.steps=2").exit_code, 0);
  ASSERT_EQ(weft("train run.toml --run.steps=4").exit_code, 0);
  ASSERT_EQ(event_files().size(), 2u);
  // A run from the first step on has no use for those of an earlier run.
  ASSERT_EQ(weft("train run.toml --run.steps=2 --checkpoint.resume=false --checkpoint.directory=new").exit_code, 0);
  EXPECT_EQ(event_files().size(), 1u);
  ASSERT_EQ(weft("train run.toml --checkpoint.directory=newer --metrics.tensorboard=false").exit_code, 0);
  EXPECT_EQ(event_files().size(), 0u);
}

// The state of another run is where this one begins; the lines in its directory are of a third.
TEST_F(ToldMetrics, OfARunThatBeginsWithAnothersStateAreItsOwn) {
  ASSERT_EQ(weft("train run.toml --run.directory=first --run.steps=2").exit_code, 0);
  ASSERT_EQ(weft("train run.toml --checkpoint.at_end=false").exit_code, 0);
  const std::string command =
      "train run.toml --checkpoint.start_from=first --checkpoint.weights_only=false --run.steps=";
  const auto expect_steps = [&](const std::vector<std::int64_t>& expected) {
    std::vector<std::int64_t> steps;
    for (const SortedJson& line : metrics()) steps.push_back(line.at("step"));
    EXPECT_EQ(steps, expected);
  };
  const auto result = weft(command + "4");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  expect_steps({3, 4});
  EXPECT_EQ(event_files().size(), 1u);
  // Those of its own checkpoint stay.
  ASSERT_EQ(weft(command + "5").exit_code, 0);
  expect_steps({3, 4, 5});
  EXPECT_EQ(event_files().size(), 2u);
}

TEST_F(ToldMetrics, BehindALineThatCannotBeReadAreKept) {
  ASSERT_EQ(weft("train run.toml --run.steps=5").exit_code, 0);
  for (const char* bad : {"{\"step\": 2, \"lo", "{\"step\": \"x\"}", "[2]", "2", ""}) {
    const std::vector<SortedJson> lines = metrics();
    std::string text;
    for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 1 ? bad : lines[i].dump()) + std::string("\n");
    put("out/tiny/metrics.jsonl", text);
    const auto result = weft(fmt::format("train run.toml --run.steps={}", lines.back().at("step").get<int>() + 1));
    ASSERT_EQ(result.exit_code, 0) << bad << result.messages;
    EXPECT_NE(result.output.find("1 lines of out/tiny/metrics.jsonl cannot be read and are left out, the first is "
                                 "line 2\n"),
              std::string::npos)
        << bad << result.output;
    // The line of the new step comes in place of the one left out.
    EXPECT_EQ(metrics().size(), lines.size()) << bad;
  }
}

// A link to itself cannot be read, not even by root.
TEST_F(ToldMetrics, ThatCannotBeReadAreNotReplaced) {
  ASSERT_EQ(weft("train run.toml --run.steps=2").exit_code, 0);
  const std::filesystem::path file = folder_ / "out/tiny/metrics.jsonl";
  std::filesystem::remove(file);
  std::filesystem::create_symlink("metrics.jsonl", file);
  const std::string config = run("cat out/tiny/config.toml").output;
  const ProgramResult refused = weft("train run.toml --run.steps=3");
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.messages.find("out/tiny/metrics.jsonl"), std::string::npos) << refused.messages;
  EXPECT_TRUE(std::filesystem::is_symlink(file));
  EXPECT_EQ(run("cat out/tiny/config.toml").output, config);
}

TEST_F(ToldMetrics, OfASpikeAreLoggedWhateverTheInterval) {
  put_still_run();
  ASSERT_EQ(weft("train still.toml").exit_code, 0);
  std::vector<double> norms;
  for (const SortedJson& line : metrics("still")) norms.push_back(line.at("grad_norm"));
  const auto largest = std::ranges::max_element(norms);
  const auto at = largest - norms.begin() + 1;
  const std::string limit = fmt::format(" --spikes.grad_norm={:.17g}", *largest * (1 - 1e-12));
  const auto told = [&](const std::string& action) {
    return weft("train still.toml --metrics.interval=100 --run.directory=" + action + limit +
                " --spikes.action=" + action);
  };
  for (const char* action : {"log", "skip"}) {
    const auto result = told(action);
    ASSERT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_TRUE(std::ranges::count(steps_shown(result.output), at) == 1) << result.output;
    EXPECT_NE(result.output.find("  spike: grad_norm "), std::string::npos) << result.output;
    for (const SortedJson& line : metrics(action)) {
      EXPECT_EQ(line.contains("spike"), line.at("step") == at);
      EXPECT_EQ(line.contains("skipped"), line.at("step") == at && action == std::string("skip"));
      if (line.at("step") != at) continue;
      EXPECT_EQ(line.at("spike").at("what"), "grad_norm");
      EXPECT_EQ(line.at("spike").at("action"), action);
      EXPECT_EQ(line.at("spike").at("value"), line.at("grad_norm"));
    }
  }
  const auto stopped = told("stop");
  EXPECT_EQ(stopped.exit_code, 3) << stopped.output;
  const std::string saved = fmt::format("stop/checkpoints/step-{:08}", at - 1);
  for (const std::string& part : {fmt::format("step {} has a spike and was not taken: grad_norm ", at), saved}) {
    EXPECT_NE(stopped.messages.find(part), std::string::npos) << stopped.messages;
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / saved / "manifest.json"));
  EXPECT_EQ(std::ssize(metrics("stop")), at);
  ASSERT_GT(at, 1) << "this text shows nothing";
  std::ifstream summary(folder_ / "stop/summary.json");
  EXPECT_EQ(SortedJson::parse(summary).at("steps"), at - 1);
  // It does not count as taken: the command goes on there.
  EXPECT_EQ(told("stop").exit_code, 3);
  const auto on = weft("train still.toml --run.directory=stop" + limit + " --spikes.action=skip");
  EXPECT_EQ(on.exit_code, 0) << on.messages;
  EXPECT_EQ(metrics("stop").size(), 6u);
}

// The limit of a norm is that of the mean of the two before it and of its own step, whatever the interval.
TEST_F(ToldMetrics, OfANormFarAboveItsMeanAreAWarningOrASpike) {
  put_still_run();
  ASSERT_EQ(weft("train still.toml").exit_code, 0);
  std::vector<double> norms;
  for (const SortedJson& line : metrics("still")) norms.push_back(line.at("grad_norm"));
  double mean = 0.0, factor = 0.0, mean_before = 0.0;
  std::int64_t at = 0;  // of the first two norms none is told
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (i >= 2 && norms[i] / mean > factor) {
      factor = norms[i] / mean;
      mean_before = mean;
      at = static_cast<std::int64_t>(i) + 1;
    }
    mean += (i == 0 ? 1.0 : 2.0 / 3) * (norms[i] - mean);
  }
  ASSERT_GT(factor, 1.0 + 1e-9) << "these texts show nothing";
  const std::string keys = fmt::format("{:.17g}", factor * (1 - 1e-12));
  const auto told = [&](const std::string& directory, const std::string& words) {
    return weft("train still.toml --metrics.interval=100 --spikes.window=2 --run.directory=" + directory + words);
  };
  const auto warned = told("warned", " --spikes.grad_norm_warning=" + keys);
  ASSERT_EQ(warned.exit_code, 0) << warned.messages;
  EXPECT_EQ(std::ranges::count(steps_shown(warned.output), at), 1) << warned.output;
  EXPECT_NE(warned.output.find("  WARNING: grad_norm "), std::string::npos) << warned.output;
  EXPECT_NE(warned.output.find(fmt::format("(mean {:.4f})", mean_before)), std::string::npos) << warned.output;
  for (const SortedJson& line : metrics("warned")) {
    EXPECT_EQ(line.contains("warning"), line.at("step") == at) << line;
    EXPECT_FALSE(line.contains("spike")) << line;
    if (line.at("step") != at) continue;
    EXPECT_EQ(line.at("warning").at("value"), line.at("grad_norm"));
    EXPECT_NEAR(line.at("warning").at("mean").get<double>(), mean_before, 1e-12 * mean_before);
  }
  const auto stopped =
      told("stopped", " --spikes.grad_norm_warning=0 --spikes.action=stop --spikes.grad_norm_spike=" + keys);
  EXPECT_EQ(stopped.exit_code, 3) << stopped.output;
  EXPECT_NE(stopped.messages.find(fmt::format("step {} has a spike and was not taken: grad_norm ", at)),
            std::string::npos)
      << stopped.messages;
  EXPECT_EQ(std::ssize(metrics("stopped")), at);
}

TEST_F(ToldMetrics, AreAskedForByKeysThatARunReads) {
  for (const auto& [key, part] :
       {std::pair("--spikes.window=1 --spikes.loss_deviations=2", "1 is out of range"),
        std::pair("--spikes.window=8 --spikes.grad_norm_warning=0 --spikes.grad_norm_spike=0",
                  "loss_deviations, grad_norm_warning or grad_norm_spike is not 0"),
        std::pair("--spikes.action=skip --spikes.grad_norm_spike=0 --spikes.grad_norm_warning=0",
                  "loss_deviations, grad_norm or grad_norm_spike is not 0"),
        std::pair("--spikes.grad_norm_spike=-1", "at least 0"),
        std::pair("--spikes.grad_norm_spike=0.5", "grad_norm_spike 0.5 is below 1"),
        std::pair("--spikes.grad_norm_warning=0.5", "grad_norm_warning 0.5 is below 1"),
        std::pair("--spikes.grad_norm_warning=200", "grad_norm_warning 200 is above grad_norm_spike 100"),
        std::pair("--spikes.grad_norm=-1", "at least 0"), std::pair("--metrics.interval=0", "0 is out of range"),
        std::pair("--spikes.action=halt --spikes.grad_norm=1", "\"halt\"")}) {
    const auto result = weft(std::string("check run.toml ") + key);
    EXPECT_EQ(result.exit_code, 2) << key;
    EXPECT_NE(result.messages.find(part), std::string::npos) << result.messages;
  }
}

}  // namespace
}  // namespace weft
