#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_reports.h"
#include "tools/report/bench_table.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config_schema.h"
#include "trainer/planning/published.h"

namespace weft {
namespace {

double trial_tokens(const Config& config, const Trial& trial) {
  return static_cast<double>(trial.batch * config.training.sequence_length) / trial.time.seconds;
}

// Of the largest peak.
ByteUnit peak_unit(const std::vector<AdvisedStep>& steps) {
  std::int64_t most = 0;
  for (const AdvisedStep& step : steps) {
    for (const TriedValue& tried : step.tried) most = std::max(most, tried.trial.peak.total());
  }
  return byte_unit(most);
}

BenchTable tried_table(const Config& config, const std::vector<AdvisedStep>& steps) {
  const ByteUnit unit = peak_unit(steps);
  BenchTable table{
      {"tried", "value", fmt::format("peak {}", unit.name()), "exposed", "step", "tokens/s", "kept", "verdict"}};
  for (const AdvisedStep& step : steps) {
    for (std::size_t i = 0; i < step.tried.size(); ++i) {
      const auto& [value, trial] = step.tried[i];
      const std::string kept = i == step.kept ? "*" : "";
      if (trial.refused.empty()) {
        table.add(step.what, value, unit.number(trial.peak.total(), 3), format_time(trial.time.waits.total(), false),
                  format_time(trial.time.seconds, false), decimals(trial_tokens(config, trial), 0), kept,
                  words_of(trial.verdict.fit));
      } else {
        table.add(step.what, value, "-", "-", "-", "-", kept, trial.refused);
      }
    }
  }
  return table;
}

// "wrap: blocks 2, peak +0.120 GiB, exposed -3.1 ms, tokens/s +0.4 %".
std::string gain_text(const AdvisedStep& step, ByteUnit unit) {
  const Trial &before = step.before(), &after = step.after();
  if (step.kept == 0) return fmt::format("{}: as before, no other value is better\n", step.what);
  const double exposed = after.time.waits.total() - before.time.waits.total();
  const std::int64_t peak = after.peak.total() - before.peak.total();
  return fmt::format("{}: {}, peak {}{} {}, exposed {}{}, tokens/s {:+.1f} %\n", step.what, step.tried[step.kept].value,
                     peak < 0 ? "-" : "+", unit.number(std::abs(peak), 3), unit.name(), exposed < 0.0 ? "-" : "+",
                     format_time(std::abs(exposed), false), 100.0 * (before.time.seconds / after.time.seconds - 1.0));
}

// A file that includes `file`, with the keys of `words`.
std::string keys_toml(const std::string& file, const Config& config, const Overrides& words) {
  std::string text = fmt::format("include = {}\n", toml_text(std::vector<std::string>{file}));
  for (const ConfigKey& key : config_schema()) {
    const bool named =
        std::ranges::any_of(words, [&](const std::string& word) { return word.starts_with("--" + key.path() + "="); });
    if (named) text += fmt::format("{} = {}\n", key.path(), key.write(config));
  }
  return text;
}

Json tried_json(const Config& config, const TriedValue& tried) {
  const Trial& trial = tried.trial;
  Json json = {{"value", tried.value}, {"words", trial.words}};
  if (!trial.refused.empty()) {
    json["refused"] = trial.refused;
    return json;
  }
  json.update({{"peak_bytes", trial.peak.total()},
               {"needed_bytes", trial.verdict.needed},
               {"fit", name_of(trial.verdict.fit)},
               {"exposed_seconds", trial.time.waits.total()},
               {"step_seconds", trial.time.seconds},
               {"tokens_per_second", trial_tokens(config, trial)}});
  return json;
}

}  // namespace

std::string plan_advise_text(const std::vector<AdvisedStep>& steps, const std::string& file, const Overrides& given) {
  const Trial& result = steps.back().after();
  const Overrides words = merged_words(given, result.words);
  const Config config = read_config(file, words).config;
  const Hardware hardware = hardware_of(config);
  std::string text =
      fmt::format("{} on {} ranks of {}, each key with those before it as kept\n\n", file, result.world, hardware.name);
  text += aligned_text(tried_table(config, steps)) + "\n";
  for (const AdvisedStep& step : steps) text += gain_text(step, peak_unit(steps));
  text +=
      fmt::format("{}\nmemory of the fullest rank: {}\n", certainty_of(config, hardware).text, result.verdict.text());
  return marked(text, "#", " ") + "\n" + keys_toml(file, config, words);
}

std::string plan_advise_json(const std::vector<AdvisedStep>& steps, const std::string& file, const Overrides& given) {
  const Overrides words = merged_words(given, steps.back().after().words);
  const Config config = read_config(file, words).config;
  const Hardware hardware = hardware_of(config);
  const Certainty certainty = certainty_of(config, hardware);
  Json all = Json::array();
  for (const AdvisedStep& step : steps) {
    Json tried = Json::array();
    for (const TriedValue& each : step.tried) tried.push_back(tried_json(config, each));
    all.push_back({{"what", step.what}, {"tried", std::move(tried)}, {"kept", step.kept}});
  }
  return Json{{"hardware", hardware.name},
              {"certainty", certainty.text},
              {"tie_factor", certainty.apart},
              {"steps", std::move(all)},
              {"words", words},
              {"toml", keys_toml(file, config, words)}}
             .dump() +
         "\n";
}

}  // namespace weft
