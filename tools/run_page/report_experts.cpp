#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tools/run_page/kept_points.h"
#include "tools/run_page/report_columns.h"

namespace weft {
namespace {

// Columns of an expert map.
constexpr std::size_t most_expert_stretches = 240;

// The most uneven value of each stretch: the largest of "max_over_mean", the least of "entropy".
Json stretches_json(const StepColumn& column, const std::vector<PointRange>& stretches, bool largest) {
  Json row = Json::array();
  std::size_t at = 0;
  for (const PointRange& stretch : stretches) {
    std::optional<double> worst;
    for (; at < column.rows.size() && column.rows[at] < stretch.end; ++at) {
      const double value = column.values[at];
      if (column.rows[at] < stretch.begin || !std::isfinite(value)) continue;
      worst = !worst ? value : largest ? std::max(*worst, value) : std::min(*worst, value);
    }
    row.push_back(worst ? drawn_number(*worst) : Json());
  }
  return row;
}

}  // namespace

Json experts_json(const StepTable& table) {
  std::set<int> blocks;
  for (const auto& [field, column] : table.columns) {
    if (field.starts_with("moe.")) blocks.insert(std::atoi(field.c_str() + 4));
  }
  if (blocks.empty()) return nullptr;
  const std::vector<PointRange> stretches = equal_stretches(table.steps.size(), most_expert_stretches);
  // A stretch lasts from the end of the step before it to the end of its last step.
  std::vector<std::size_t> ends;
  for (const PointRange& stretch : stretches) ends.push_back(stretch.end - 1);
  Json json = axes_json(table, ends);
  json["step"].insert(json["step"].begin(), table.steps.front() - 1);
  for (const char* axis : {"tokens", "seconds"}) json[axis].insert(json[axis].begin(), 0);
  json["blocks"] = blocks;
  json["fields"] = Json::object();
  for (const char* field : {"max_over_mean", "entropy"}) {
    Json rows = Json::array(), last = Json::array();
    bool any = false;
    for (const int block : blocks) {
      const StepColumn* column = table.find(fmt::format("moe.{}.{}", block, field));
      any = any || column != nullptr;
      rows.push_back(column ? stretches_json(*column, stretches, std::string_view(field) == "max_over_mean")
                            : Json::array());
      last.push_back(column ? exact_number(column->values.back()) : Json());
    }
    if (any) json["fields"][field] = {{"rows", std::move(rows)}, {"last", std::move(last)}};
  }
  return json;
}

}  // namespace weft
