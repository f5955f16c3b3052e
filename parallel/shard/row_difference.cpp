#include "parallel/shard/row_difference.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace weft {
namespace {

// How often the rank owns a run of rows, and how often its optimizer steps them.
struct RowCount {
  int owned = 0, stepped = 0;
  bool sound() const { return stepped == (owned > 0 ? 1 : 0); }
  bool operator==(const RowCount&) const = default;
};

// Changes of the counts, for one parameter and one box of its columns.
struct RowEvents {
  std::map<std::int64_t, RowCount> change_at;  // by row
  void add(const OwnedRange& range, int RowCount::*count) {
    if (range.rows == 0) return;
    ++(change_at[range.row_begin].*count);
    --(change_at[range.row_begin + range.rows].*count);
  }
};

std::string sentence(std::string_view parameter, std::int64_t begin, std::int64_t end, const RowCount& count) {
  const std::string rows = fmt::format("rows {} to {} of {}", begin, end - 1, parameter);
  if (count.owned == 0) return fmt::format("the optimizer steps {}, which the rank does not own", rows);
  if (count.stepped == 0) return fmt::format("the optimizer misses {}, which the rank owns", rows);
  return fmt::format("the optimizer steps {} {} times", rows, count.stepped);
}

}  // namespace

std::vector<std::string> row_differences(std::span<const OwnedRange> owned, std::span<const OwnedRange> stepped) {
  using Box = std::pair<std::int64_t, std::int64_t>;  // columns
  std::map<std::pair<std::string_view, Box>, RowEvents> events;
  const auto events_of = [&](const OwnedRange& range) -> RowEvents& {
    return events[{range.parameter, {range.column_begin, range.columns}}];
  };
  for (const OwnedRange& range : owned) events_of(range).add(range, &RowCount::owned);
  for (const OwnedRange& range : stepped) events_of(range).add(range, &RowCount::stepped);

  std::vector<std::string> differences;
  for (const auto& [key, rows] : events) {
    RowCount count;
    std::int64_t begin = 0;
    for (const auto& [row, change] : rows.change_at) {
      const RowCount next{count.owned + change.owned, count.stepped + change.stepped};
      if (next == count) continue;  // two adjacent runs with equal counts
      if (!count.sound()) differences.push_back(sentence(key.first, begin, row, count));
      begin = row;
      count = next;
    }
  }
  return differences;
}

}  // namespace weft
