#include "tools/report/report_parts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "parallel/runtime/quantities.h"

namespace weft {

std::string decimals(double number, int digits) {
  return fmt::format("{:.{}f}", number, digits);
}

std::string aligned_text(const BenchTable& table) {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < table.header.size(); ++column) {
    std::size_t width = table.header[column].size();
    for (const auto& row : table.rows) width = std::max(width, row[column].size());
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = fmt::format("{:<{}}", cells.front(), widths.front());
    for (std::size_t c = 1; c < cells.size(); ++c) text += fmt::format("  {:>{}}", cells[c], widths[c]);
    return text + "\n";
  };
  std::string text = line(table.header);
  for (const auto& row : table.rows) text += line(row);
  return text;
}

std::string markdown_text(const BenchTable& table) {
  std::string text = fmt::format("| {} |\n|---|", fmt::join(table.header, " | "));
  for (std::size_t c = 1; c < table.header.size(); ++c) text += "---:|";
  text += "\n";
  for (const auto& row : table.rows) text += fmt::format("| {} |\n", fmt::join(row, " | "));
  return text;
}

Json buckets_json(const BucketBytes& bytes) {
  Json json = Json::object();
  for (const Bucket bucket : all_values<Bucket>) json[std::string(name_of(bucket))] = bytes[bucket];
  return json;
}

Json buckets_json(const BucketBytes& predicted, const BucketBytes& measured) {
  Json json = Json::object();
  for (const Bucket bucket : all_values<Bucket>) {
    json[std::string(name_of(bucket))] = {{"predicted", predicted[bucket]}, {"measured", measured[bucket]}};
  }
  return json;
}

std::string bucket_words(Bucket bucket) {
  std::string name(name_of(bucket));
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string marked(const std::string& text, const std::string& mark, const std::string& gap) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += mark + (line.empty() ? "" : gap + line) + "\n";
  return result;
}

namespace {

// A cause of waits, and the head of its column.
struct WaitCause {
  double StepWaits::*seconds;
  const char* name;
  const char* head;
  bool always;  // has a column also if no step waits for it
};
constexpr WaitCause wait_causes[] = {{&StepWaits::gathers, "exposed_gathers", "waits for gathers", true},
                                     {&StepWaits::reductions, "exposed_reductions", "for reductions", true},
                                     {&StepWaits::rows, "exposed_rows", "for rows", false},
                                     {&StepWaits::host, "exposed_host", "for host copies", false}};

}  // namespace

void add_waits(Json& json, const StepWaits& waits, const std::string& suffix) {
  for (const WaitCause& cause : wait_causes) json[cause.name + suffix] = waits.*cause.seconds;
}

void insert_wait_columns(BenchTable& table, std::size_t at, const std::vector<StepWaits>& steps, bool unit_time) {
  for (const WaitCause& cause : wait_causes) {
    const auto waits = [&](const StepWaits& step) { return step.*cause.seconds > 0.0; };
    if (!cause.always && std::ranges::none_of(steps, waits)) continue;
    const auto place = static_cast<std::ptrdiff_t>(at++);
    table.header.insert(table.header.begin() + place, cause.head);
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      table.rows[row].insert(table.rows[row].begin() + place, format_time(steps.at(row).*cause.seconds, unit_time));
    }
  }
}

}  // namespace weft
