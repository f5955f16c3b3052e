#include "tools/run_page/reported_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/config/config_sources.h"

namespace weft {
namespace {

using StepLine = nlohmann::json;

class TableWriter {
 public:
  void add(const StepLine& line, const std::string& place) {
    const auto step = line.find("step");
    if (step == line.end() || !step->is_number_integer()) fail_request("{}: the line has no \"step\"", place);
    drop_from(step->get<std::int64_t>());
    const double tokens = value_of(line, "tokens"), seconds = value_of(line, "seconds");
    row_ = table.steps.size();
    table.steps.push_back(step->get<std::int64_t>());
    table.tokens.push_back(sum(table.tokens, tokens));
    table.seconds.push_back(sum(table.seconds, seconds));
    add_fields("", line);
    if (line.contains("memory")) add_fields("memory.", line["memory"]);
    if (line.contains("validation")) add_fields("validation.", line["validation"]);
    if (line.contains("lr") && line["lr"].is_object()) add_rate(line["lr"]);
    if (line.contains("mtp_losses")) add_predictors(line["mtp_losses"]);
    if (line.contains("moe") && line["moe"].is_array()) add_experts(line["moe"]);
    if (is_spike(line)) table.spikes.push_back(row_);
    if (line.contains("hashes")) note_part(line["hashes"]);
  }
  StepTable finished() {
    table.first_own_row = parts_.empty() ? 0 : parts_.back().first;
    return std::move(table);
  }

  StepTable table;

 private:
  static double value_of(const StepLine& line, const char* field) {
    const auto found = line.find(field);
    return found != line.end() && found->is_number() ? found->get<double>() : 0.0;
  }

  static double sum(const std::vector<double>& sums, double next) {
    return (sums.empty() ? 0.0 : sums.back()) + (std::isfinite(next) ? next : 0.0);
  }

  static bool is_spike(const StepLine& line) {
    const auto spike = line.find("spike");
    return spike != line.end() && (spike->is_object() || (spike->is_boolean() && spike->get<bool>()));
  }

  void put(const std::string& field, const StepLine& value) {
    if (!value.is_number() && !value.is_null()) return;
    StepColumn& column = table.columns[field];
    column.rows.push_back(row_);
    column.values.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }

  // The numbers of an object.
  void add_fields(const std::string& prefix, const StepLine& object) {
    if (!object.is_object()) return;
    for (const auto& [field, value] : object.items()) put(prefix + field, value);
  }

  void add_predictors(const StepLine& losses) {
    if (!losses.is_array()) return;
    for (std::size_t i = 0; i < losses.size(); ++i) put(fmt::format("{}{}", predictor_column, i + 1), losses[i]);
  }

  // Of parameter groups; a rate of all is a number like others.
  void add_rate(const StepLine& rate) {
    double largest = 0.0;
    for (const StepLine& of_group : rate) {
      if (of_group.is_number()) largest = std::max(largest, of_group.get<double>());
    }
    put("lr", largest);
  }

  void add_experts(const StepLine& blocks) {
    for (const StepLine& block : blocks) {
      if (!block.is_object() || !block.contains("block") || !block["block"].is_number_integer()) continue;
      const std::string prefix = fmt::format("moe.{}.", block["block"].get<std::int64_t>());
      for (const char* field : {"max_over_mean", "entropy"}) {
        if (block.contains(field)) put(prefix + field, block[field]);
      }
    }
  }

  // The first step of a run, and of one that goes on, has hashes.
  void note_part(const StepLine& hashes) {
    if (!hashes.is_object()) return;
    if (parts_.empty() || parts_.back().second != hashes) parts_.emplace_back(row_, hashes);
  }

  void drop_from(std::int64_t step) {
    const auto kept = std::ranges::lower_bound(table.steps, step) - table.steps.begin();
    const auto rows = static_cast<std::size_t>(kept);
    if (rows == table.steps.size()) return;
    table.steps.resize(rows);
    table.tokens.resize(rows);
    table.seconds.resize(rows);
    std::erase_if(table.spikes, [&](std::size_t row) { return row >= rows; });
    std::erase_if(parts_, [&](const auto& part) { return part.first >= rows; });
    for (auto& [field, column] : table.columns) {
      while (!column.rows.empty() && column.rows.back() >= rows) {
        column.rows.pop_back();
        column.values.pop_back();
      }
    }
  }

  std::size_t row_ = 0;
  std::vector<std::pair<std::size_t, StepLine>> parts_;  // first row, and hashes
};

}  // namespace

const StepColumn* StepTable::find(const std::string& field) const {
  const auto found = columns.find(field);
  return found == columns.end() || found->second.rows.empty() ? nullptr : &found->second;
}

StepColumn StepTable::own(const std::string& field) const {
  StepColumn own;
  const StepColumn* all = find(field);
  for (std::size_t i = 0; all && i < all->rows.size(); ++i) {
    if (all->rows[i] < first_own_row) continue;
    own.rows.push_back(all->rows[i]);
    own.values.push_back(all->values[i]);
  }
  return own;
}

StepTable read_step_table(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  std::vector<std::string_view> lines = parts_between(text, '\n');
  TableWriter writer;
  writer.table.cut_off = !lines.back().empty();
  lines.pop_back();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string place = fmt::format("{}:{}", file.string(), i + 1);
    const StepLine line = StepLine::parse(lines[i], nullptr, false);
    if (!line.is_object()) fail_request("{}: not the metrics of a step: the line is no JSON object", place);
    writer.add(line, place);
  }
  if (writer.table.steps.empty()) {
    fail_request("{} holds no whole step: the run has not ended its first one", file.string());
  }
  return writer.finished();
}

std::vector<PointRange> equal_stretches(std::size_t count, std::size_t most) {
  const std::size_t stretches = std::min(count, most);
  std::vector<PointRange> ranges;
  for (std::size_t i = 0; i < stretches; ++i) ranges.push_back({i * count / stretches, (i + 1) * count / stretches});
  return ranges;
}

std::vector<std::size_t> kept_points(std::span<const double> values, std::size_t most) {
  require(most >= 5, "a curve keeps its ends, and the extremes and the gap of a stretch");
  std::vector<std::size_t> kept(values.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  if (values.size() <= most) return kept;
  kept = {0, values.size() - 1};
  const bool has_gaps = !std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
  for (const PointRange& range : equal_stretches(values.size(), (most - 2) / (has_gaps ? 3 : 2))) {
    std::optional<std::size_t> least, largest, gap;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (!std::isfinite(values[i])) {
        if (!gap) gap = i;
        continue;
      }
      if (!least || values[i] < values[*least]) least = i;
      if (!largest || values[i] > values[*largest]) largest = i;
    }
    for (const auto& index : {least, largest, gap}) {
      if (index) kept.push_back(*index);
    }
  }
  std::ranges::sort(kept);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

}  // namespace weft
