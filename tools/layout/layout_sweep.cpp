#include "tools/layout/layout_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_schema.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/planning/remedies.h"
#include "trainer/planning/search_space.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

constexpr const char* said_by = "weft layout sweep: error: ";

// Splits a list into entries; adds faults of its brackets and quotes to `faults`.
std::vector<std::string> entries_of(const std::string& list, const std::string& option, std::string& faults) {
  std::vector<std::string> entries(1);
  int depth = 0;
  char quote = 0;
  for (const char c : list) {
    const bool quoted = quote != 0;
    if (quoted ? c == quote : c == '"' || c == '\'') {
      quote = quoted ? 0 : c;
    } else if (!quoted && depth == 0 && c == ',') {
      entries.emplace_back();
    } else {
      if (!quoted && (c == '[' || c == '(')) ++depth;
      if (!quoted && (c == ']' || c == ')')) --depth;
      entries.back() += c;
    }
  }
  if (quote != 0) faults += fmt::format("{}{} {}: a {} is not closed\n", said_by, option, list, quote);
  for (std::string& entry : entries) {
    entry.erase(0, std::min(entry.find_first_not_of(' '), entry.size()));
    entry.erase(entry.find_last_not_of(' ') + 1);
  }
  return entries;
}

// All lists given for one option, in order.
std::vector<std::string> all_entries(const std::vector<std::string>& lists, const std::string& option,
                                     std::string& faults) {
  std::vector<std::string> all;
  for (const std::string& list : lists) {
    for (std::string& entry : entries_of(list, option, faults)) {
      if (entry.empty()) {
        faults += fmt::format("{}{} \"{}\": an entry is empty\n", said_by, option, list);
      } else if (std::find(all.begin(), all.end(), entry) != all.end()) {
        faults += fmt::format("{}{} names {} twice\n", said_by, option, entry);
      } else {
        all.push_back(std::move(entry));
      }
    }
  }
  return all;
}

// Adds values that the key does not take by itself to `faults`. Rules across keys are checked per combination.
void judge(const std::string& path, const std::vector<std::string>& values, std::string& faults) {
  if (values.empty()) return;
  const auto schema = config_schema();
  const ConfigKey& key = *std::ranges::find(schema, path, &ConfigKey::path);
  for (const std::string& value : values) {
    if (const Faults found = value_faults(key, value); !found.empty()) faults += format_faults(found) + "\n";
  }
}

void judge_microbatches(const std::vector<std::string>& values, std::string& faults) {
  for (const std::string& value : values) {
    if (parsed_number<int>(value).value_or(0) >= 1) continue;
    faults += fmt::format("{}--microbatches: {} is not a number of at least 1\n", said_by, value);
  }
}

// The batch stays the same, so more microbatches are smaller.
std::string microbatch_size_for(const Config& config, int microbatches) {
  const std::int64_t sequences = config.training.global_batch_size / config.parallelism.data();
  if (sequences % microbatches != 0) {
    fail_request("{} sequences a data rank do not divide into {} microbatches", sequences, microbatches);
  }
  return fmt::format("--training.microbatch_size={}", sequences / microbatches);
}

Overrides words_of_choice(const SweepChoice& choice, const Config& base) {
  Overrides words;
  for (std::size_t axis = 0; axis < sweep_axes.size(); ++axis) {
    if (sweep_axes[axis].key && choice[axis])
      words.push_back(fmt::format("--{}={}", sweep_axes[axis].key, *choice[axis]));
  }
  // Only residency "auto" takes a budget.
  if (choice[SweepAxis::residency].value_or("auto") != "auto" && base.memory_budget) {
    words.emplace_back("--shard.memory_budget=none");
  }
  const auto& microbatches = choice[SweepAxis::microbatches];
  if (microbatches) words.push_back(microbatch_size_for(base, std::stoi(*microbatches)));
  return words;
}

// The first sentence of a refusal, without its place and its advice. With those, every combination would have a reason
// of its own.
std::string sentence_of(std::string_view refusal) {
  std::string reason = reason_of(refusal);
  for (const char* advice : {"; ", ": write ", ": pipeline rank "}) reason = reason.substr(0, reason.find(advice));
  return reason;
}

StepForecast simulated(const Config& written, const CostSource& costs) {
  const ResolvedRun run(on_hardware(written));
  Program program = step_program(run, run.mesh().coordinates(0));
  const StepCosts given = costs.costs_of(run.config(), run.mesh(), program);
  return forecast_of(run, simulate_run(run, std::move(program), given.costs, given.channels));
}

void rank(std::vector<SweepPoint>& points) {
  std::vector<SweepPoint*> order;
  for (SweepPoint& point : points) order.push_back(&point);
  std::ranges::stable_sort(order, {}, [](const SweepPoint* point) {
    return std::pair(point->forecast.seconds, point->forecast.peak.total());
  });
  // In this order only earlier points can be better in both figures.
  std::optional<std::pair<double, std::int64_t>> least;  // by memory, so far
  for (std::size_t place = 0; place < order.size(); ++place) {
    SweepPoint& point = *order[place];
    point.rank = static_cast<int>(place) + 1;
    const std::pair figures{point.forecast.seconds, point.forecast.peak.total()};
    point.front = !least || figures.second < least->second || figures == *least;
    if (point.front) least = figures;
  }
}

}  // namespace

std::vector<SweepChoice> sweep_choices(const SweepLists& lists) {
  std::string faults;
  SweepLists values;
  for (std::size_t axis = 0; axis < sweep_axes.size(); ++axis) {
    values[axis] = all_entries(lists[axis], sweep_axes[axis].option, faults);
  }
  for (std::size_t axis = 0; axis < sweep_axes.size(); ++axis) {
    if (sweep_axes[axis].key) judge(sweep_axes[axis].key, values[axis], faults);
  }
  judge_microbatches(values[SweepAxis::microbatches], faults);
  if (!faults.empty()) {
    faults.pop_back();
    throw Error(ErrorKind::request, faults);
  }
  std::vector<SweepChoice> choices(1);
  for (std::size_t axis = 0; axis < sweep_axes.size(); ++axis) {
    std::vector<SweepChoice> more;
    for (const SweepChoice& choice : choices) {
      // Only solved residencies read a budget.
      const bool read = axis != static_cast<std::size_t>(SweepAxis::budget) ||
                        choice[SweepAxis::residency].value_or("auto") == "auto";
      if (values[axis].empty() || !read) more.push_back(choice);
      for (const std::string& value : read ? values[axis] : std::vector<std::string>()) {
        more.push_back(choice);
        more.back()[axis] = value;
      }
    }
    choices = std::move(more);
  }
  return choices;
}

Sweep run_sweep(const std::string& file, const Overrides& common, const std::vector<SweepChoice>& choices,
                const CostSource& costs, const std::function<void(std::size_t)>& progress) {
  Sweep sweep;
  sweep.choices = choices.size();
  const Config base = read_config(file, common).config;
  // Results by all settings that distinguish combinations, with the layout as it was dealt, or "auto".
  std::map<std::tuple<std::string, int, std::string, std::string, std::string, std::int64_t>, StepForecast> known;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const auto refused = refusal_of([&] {
      SweepPoint point;
      point.words = words_of_choice(choices[i], base);
      Config config = read_config(file, merged_words(common, point.words)).config;
      // Under a budget the blocks of an automatic layout are dealt together with the timing (ResolvedRun::solve).
      if (!is_solved(config) || !has_automatic_layout(config)) {
        config.pipeline.layout = to_string(stage_layout(config), config.model);
        config.pipeline.first_stage_blocks = config.pipeline.last_stage_blocks = std::nullopt;
      }
      point.schedule = config.pipeline.schedule;
      point.chunks = config.pipeline.chunks;
      point.residency = choices[i][SweepAxis::residency].value_or(to_string(config.shard.residency));
      point.budget = choices[i][SweepAxis::budget].value_or("");
      point.microbatches = config.microbatches();
      const std::tuple key(point.schedule, point.chunks, std::get<std::string>(config.pipeline.layout), point.residency,
                           point.budget, point.microbatches);
      auto found = known.find(key);
      if (found == known.end()) found = known.emplace(key, simulated(config, costs)).first;
      point.forecast = found->second;
      sweep.points.push_back(std::move(point));
    });
    if (refused) ++sweep.refused[sentence_of(*refused)];
    progress(i + 1);
  }
  sweep.simulated = known.size();
  rank(sweep.points);
  return sweep;
}

}  // namespace weft
