#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_reports.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config_schema.h"
#include "trainer/planning/published.h"

namespace weft {
namespace {

double variant_tokens(const Config& config, const PlannedVariant& variant) {
  return static_cast<double>(variant.batch * config.training.sequence_length) / variant.time.seconds;
}

// Of the largest peak.
ByteUnit peak_unit(const std::vector<AdvisedStep>& steps) {
  std::int64_t most = 0;
  for (const AdvisedStep& step : steps) {
    for (const TriedValue& tried : step.tried) most = std::max(most, tried.variant.peak.total());
  }
  return byte_unit(most);
}

BenchTable tried_table(const Config& config, const std::vector<AdvisedStep>& steps) {
  const ByteUnit unit = peak_unit(steps);
  BenchTable table{
      {"tried", "value", fmt::format("peak {}", unit.name()), "exposed", "step", "tokens/s", "kept", "verdict"}};
  for (const AdvisedStep& step : steps) {
    for (std::size_t i = 0; i < step.tried.size(); ++i) {
      const auto& [value, variant] = step.tried[i];
      const std::string kept = i == step.kept ? "*" : "";
      if (variant.refused.empty()) {
        table.add(step.what, value, unit.number(variant.peak.total(), 3),
                  format_time(variant.time.waits.total(), false), format_time(variant.time.seconds, false),
                  decimals(variant_tokens(config, variant), 0), kept, words_of(variant.verdict.fit));
      } else {
        table.add(step.what, value, "-", "-", "-", "-", kept, variant.refused);
      }
    }
  }
  return table;
}

// "wrap: blocks 2, peak +0.120 GiB, exposed -3.1 ms, tokens/s +0.4 %".
std::string gain_text(const AdvisedStep& step, ByteUnit unit) {
  const PlannedVariant &before = step.before(), &after = step.after();
  if (step.kept == 0) return fmt::format("{}: as before, no other value is better\n", step.what);
  double exposed = after.time.waits.total() - before.time.waits.total();
  if (std::abs(exposed) < 1e-12) exposed = 0.0;  // rounding of the two sums
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
  const PlannedVariant& variant = tried.variant;
  Json json = {{"value", tried.value}, {"words", variant.words}};
  if (!variant.refused.empty()) {
    json["refused"] = variant.refused;
    return json;
  }
  json.update({{"peak_bytes", variant.peak.total()},
               {"needed_bytes", variant.verdict.needed},
               {"fit", name_of(variant.verdict.fit)},
               {"exposed_seconds", variant.time.waits.total()},
               {"step_seconds", variant.time.seconds},
               {"tokens_per_second", variant_tokens(config, variant)}});
  return json;
}

}  // namespace

std::string plan_advise_text(const std::vector<AdvisedStep>& steps, const std::string& file, const Overrides& given) {
  const PlannedVariant& result = steps.back().after();
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
  const auto tried = [&](const TriedValue& each) { return tried_json(config, each); };
  const auto advised = [&](const AdvisedStep& step) {
    return Json{{"what", step.what}, {"tried", json_list(step.tried, tried)}, {"kept", step.kept}};
  };
  return Json{{"hardware", hardware.name},
              {"certainty", certainty.text},
              {"tie_factor", certainty.apart},
              {"steps", json_list(steps, advised)},
              {"words", words},
              {"toml", keys_toml(file, config, words)}}
             .dump() +
         "\n";
}

}  // namespace weft
