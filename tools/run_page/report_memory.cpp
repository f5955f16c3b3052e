#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "tools/run_page/kept_points.h"
#include "tools/run_page/report_columns.h"

namespace weft {
namespace {

// A memory curve has a value a bucket, so it has fewer points than another.
constexpr std::size_t most_memory_points = 500;

// Bytes of every bucket in a row of the table.
BucketBytes buckets_in(const StepTable& table, std::size_t row) {
  BucketBytes bytes;
  for (const Bucket bucket : all_values<Bucket>) {
    const StepColumn* column = table.find(fmt::format("memory.{}", name_of(bucket)));
    if (!column) continue;
    const auto at = std::ranges::lower_bound(column->rows, row);
    if (at == column->rows.end() || *at != row) continue;
    const double value = column->values[static_cast<std::size_t>(at - column->rows.begin())];
    if (std::isfinite(value)) bytes[bucket] = std::llround(value);
  }
  return bytes;
}

// The metrics do not name the rank of their bytes. Bytes that live all run are known exactly. So the planned rank with
// the nearest ones is the rank, or has as many; of several, the fullest.
const BucketBytes* plan_of_rank(const std::vector<BucketBytes>& peaks, const BucketBytes& measured) {
  const auto order = [&](const BucketBytes& peak) {
    std::int64_t apart = 0;
    for (const Bucket bucket : all_values<Bucket>) {
      if (is_static(bucket)) apart += std::abs(peak[bucket] - measured[bucket]);
    }
    return std::pair(apart, -peak.total());
  };
  return peaks.empty() ? nullptr : &*std::ranges::min_element(peaks, {}, order);
}

}  // namespace

Json memory_json(const ReportedRun& run) {
  const StepColumn* peaks = run.table.find("peak_bytes");
  if (!peaks) return nullptr;
  const StepColumn own = run.table.own("peak_bytes");
  if (own.rows.empty()) return nullptr;
  const std::size_t highest = own.rows[highest_of(own)];
  const BucketBytes measured = buckets_in(run.table, highest);
  const BucketBytes* planned = run.lanes ? plan_of_rank(run.lanes->peaks, measured) : nullptr;
  std::vector<std::size_t> rows;
  for (const std::size_t index : kept_points(peaks->values, most_memory_points)) rows.push_back(peaks->rows[index]);
  Json json = axes_json(run.table, rows);
  json["buckets"] = Json::array();
  for (const Bucket bucket : all_values<Bucket>) {
    const StepColumn* column = run.table.find(fmt::format("memory.{}", name_of(bucket)));
    Json bytes = Json::array();
    for (std::size_t i = 0, at = 0; column && i < rows.size(); ++i) {
      while (at < column->rows.size() && column->rows[at] < rows[i]) ++at;
      const bool there = at < column->rows.size() && column->rows[at] == rows[i];
      bytes.push_back(there ? exact_number(column->values[at]) : Json());
    }
    // A bucket that holds nothing at either peak can still be drawn: it may at another one.
    const bool used = column && std::ranges::any_of(column->values, [](double value) { return value > 0.0; });
    if (!used && (!planned || (*planned)[bucket] == 0)) continue;
    json["buckets"].push_back({{"name", bucket_words(bucket)},
                               {"bytes", std::move(bytes)},
                               {"measured", measured[bucket]},
                               {"planned", planned ? Json((*planned)[bucket]) : Json()}});
  }
  json["highest_step"] = run.table.steps[highest];
  json["planned"] = planned ? Json(planned->total()) : Json();
  return json;
}

}  // namespace weft
