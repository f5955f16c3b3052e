// Parts that several reports share, as JSON for scripts and as text.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/ledger.h"

namespace weft {

// A table of text cells: aligned columns for a terminal, or Markdown for the documents.
struct BenchTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows = {};  // each as long as the header

  // Adds a row of cells, each as fmt writes it. Returns the row, for cells of further columns.
  template <typename... Cells>
  std::vector<std::string>& add(const Cells&... cells) {
    return rows.emplace_back(std::initializer_list<std::string>{fmt::format("{}", cells)...});
  }
};
// "1.50": a number with this many digits after the point.
std::string decimals(double number, int digits);

// Columns are as wide as their widest cell. All columns except the first are flush right.
std::string aligned_text(const BenchTable& table);
std::string markdown_text(const BenchTable& table);

using Json = nlohmann::ordered_json;

// In one line. Bytes that are not UTF-8, as a name of a file may have, are replaced.
inline std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The list of what `entry` makes of each value.
template <typename Values, typename Entry>
Json json_list(const Values& values, Entry entry) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(std::invoke(entry, value));
  return list;
}

// The value of something optional; null if there is none.
template <typename Optional>
Json or_null(const Optional& value) {
  return value ? Json(*value) : Json();
}

// {"sharded_parameters": 1024, ...}: every bucket.
Json buckets_json(const BucketBytes& bytes);
// {"sharded_parameters": {"predicted", "measured"}, ...}
Json buckets_json(const BucketBytes& predicted, const BucketBytes& measured);

// {"unsharded_parameters": 1024, ...}: of what units hold.
template <typename Number>
Json unit_bytes_json(const ByBucket<Number>& bytes) {
  Json json;
  for (const Bucket bucket : unit_buckets) json[std::string(name_of(bucket))] = bytes[bucket];
  return json;
}

// "sharded parameters"
std::string bucket_words(Bucket bucket);

// The text with `mark` in front of every line, and `gap` between the mark and what the line has.
std::string marked(const std::string& text, const std::string& mark, const std::string& gap);

// The waits of computation in a simulated step.
//
// Adds "exposed_gathers" and the like, each name with `suffix`.
void add_waits(Json& json, const StepWaits& waits, const std::string& suffix = "");
// Puts columns of waits in front of column `at`. Those for rows of experts and for host copies are left out if no step
// has any. `steps` has one entry a row. `unit_time` is that of format_time.
void insert_wait_columns(BenchTable& table, std::size_t at, const std::vector<StepWaits>& steps, bool unit_time);

}  // namespace weft
