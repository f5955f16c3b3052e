#include "trainer/planning/published.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>

#include "parallel/runtime/error.h"
#include "trainer/costs/step_flops.h"
#include "trainer/planning/run_plan.h"

namespace weft {
namespace {

// Settings common to all runs: no files are read, and mixed precision as is usual.
constexpr const char* common = R"([run]
device = "cuda"
launch = "processes"
[precision]
parameters = "float32"
compute = "bfloat16"
reduction = "float32"
[data]
train = ["nothing is read"]
)";

PublishedRun run_of(const toml::table& table, const std::filesystem::path& file, std::size_t number) {
  const auto text = [&](std::string_view key) {
    const auto value = table[key].value<std::string>();
    if (!value) fail_request("{}: run {} says no {}", file.string(), number, key);
    return *value;
  };
  PublishedRun run{.name = text("name"),
                   .model = file.parent_path() / text("model"),
                   .hardware = text("hardware"),
                   .source = text("source"),
                   .tokens_per_second = table["tokens_per_second"].value<double>(),
                   .flops_per_second = table["flops_per_second"].value<double>()};
  if (run.tokens_per_second.has_value() == run.flops_per_second.has_value()) {
    fail_request("{}: run {} says tokens_per_second or flops_per_second, one of them", file.string(), number);
  }
  if (const toml::array* words = table["words"].as_array()) {
    for (const toml::node& word : *words) run.words.push_back(word.value_or(std::string()));
  }
  return run;
}

// The quotient of both, or its inverse: at least 1.
double factor(double one, double other) {
  return std::max(one / other, other / one);
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::filesystem::path& file) {
  std::vector<PublishedRun> runs;
  try {
    const toml::table document = toml::parse_file(file.string());
    if (const toml::array* entries = document["run"].as_array()) {
      for (const toml::node& entry : *entries) {
        if (const toml::table* table = entry.as_table()) runs.push_back(run_of(*table, file, runs.size() + 1));
      }
    }
  } catch (const toml::parse_error& error) {
    fail_request("{}: {}", file.string(), error.description());
  }
  if (runs.empty()) fail_request("{}: has no [[run]]", file.string());
  return runs;
}

PublishedStep plan_published(const PublishedRun& run) {
  const std::string text = fmt::format("include = [\"{}\"]\n{}", std::filesystem::absolute(run.model).string(), common);
  const Config config = read_config_text(text, run.name, run.words).config;
  PublishedStep step{.run = run,
                     .gpus = config.parallelism.world(),
                     .sequence_length = config.training.sequence_length,
                     .sequences = config.training.global_batch_size};
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  const double work =
      run.tokens_per_second ? tokens : tokens * training_flops_per_token(config.model, config.training.sequence_length);
  step.published = work / (run.tokens_per_second.value_or(run.flops_per_second.value_or(1.0)) * step.gpus);
  step.modelled = plan_run(config, find_hardware(run.hardware)).time.seconds;
  return step;
}

bool PublishedStep::same_work(const PublishedStep& other) const {
  return run.model == other.run.model && run.hardware == other.run.hardware && gpus == other.gpus &&
         sequence_length == other.sequence_length && sequences == other.sequences;
}

ModelError model_error_of(std::span<const PublishedStep> steps) {
  ModelError error{.runs = static_cast<int>(steps.size())};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const PublishedStep& step = steps[i];
    error.least = i == 0 ? step.ratio() : std::min(error.least, step.ratio());
    error.most = std::max(error.most, step.ratio());
    for (const PublishedStep& other : steps.subspan(i + 1)) {
      if (!step.same_work(other)) continue;
      ++error.pairs;
      if ((step.modelled < other.modelled) != (step.published < other.published)) ++error.misordered;
      error.apart = std::max(error.apart, factor(step.ratio(), other.ratio()));
    }
  }
  return error;
}

bool Certainty::ties(double one, double other) const {
  return factor(one, other) < apart;
}

Certainty modelled_certainty(const Hardware& hardware) {
  // The published time over the modelled one, rounded outwards.
  const double least = std::floor(100.0 / model_error.most) / 100.0;
  const double most = std::ceil(100.0 / model_error.least) / 100.0;
  if (hardware.name == "cpu") {
    return {fmt::format("modelled for cpu: no published run is behind it, and small models take several times as long; "
                        "steps within a factor of {:.1f} tie",
                        model_error.apart),
            model_error.apart};
  }
  return {fmt::format("modelled: a run takes {:.2f} to {:.2f} times as long ({} published runs: weft bench published); "
                      "products at {:.0f} % of the peak, links as weft hardware has them; steps within a factor of "
                      "{:.1f} tie",
                      least, most, model_error.runs, 100.0 * hardware.reached.value, model_error.apart),
          model_error.apart};
}

Certainty given_certainty(const std::string& source) {
  return {fmt::format("costs of {}, not modelled: steps are told apart as they come out", source), 1.0};
}

Certainty certainty_of(const Config& config, const Hardware& hardware) {
  return config.pipeline.has_cost_table() ? given_certainty(config.pipeline.costs) : modelled_certainty(hardware);
}

std::string rank_text(std::span<const int> ranks, std::size_t index) {
  return fmt::format("{}{}", ranks[index], std::ranges::count(ranks, ranks[index]) > 1 ? "=" : "");
}

}  // namespace weft
