#include "tools/run/nsys_export.h"

#include "parallel/runtime/error.h"
#include "parallel/runtime/work.h"

#ifdef WEFT_HAVE_SQLITE
#include <sqlite3.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace weft {
namespace {

// nsys numbers threads within their process; the number without its last 24 bits is the process.
std::int64_t process_of(std::int64_t thread) {
  return thread >> 24 << 24;
}

class Export {
 public:
  explicit Export(const std::string& file) : file_(file) {
    sqlite3* opened = nullptr;
    const int status = sqlite3_open_v2(file.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
    data_.reset(opened);
    if (status != SQLITE_OK) fail_request("{} cannot be opened: {}", file, sqlite3_errmsg(data_.get()));
  }

  bool has(const std::string& table) {
    bool found = false;
    rows("SELECT 1 FROM sqlite_master WHERE name = '" + table + "'", [&](sqlite3_stmt*) { found = true; });
    return found;
  }
  void rows(const std::string& query, const std::function<void(sqlite3_stmt*)>& visit) {
    sqlite3_stmt* prepared = nullptr;
    const int status = sqlite3_prepare_v2(data_.get(), query.c_str(), -1, &prepared, nullptr);
    const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(prepared, sqlite3_finalize);
    if (status != SQLITE_OK) refuse();
    int step = sqlite3_step(prepared);
    for (; step == SQLITE_ROW; step = sqlite3_step(prepared)) visit(prepared);
    if (step != SQLITE_DONE) refuse();
  }

 private:
  [[noreturn]] void refuse() const {
    fail_request("{} is no export of Nsight Systems (nsys export --type sqlite): {}", file_,
                 sqlite3_errmsg(data_.get()));
  }

  std::string file_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> data_{nullptr, sqlite3_close};
};

std::string text_at(sqlite3_stmt* row, int column) {
  const unsigned char* text = sqlite3_column_text(row, column);
  return text == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(text));
}

struct NvtxSpan {
  std::int64_t begin = 0, end = 0;
  std::string name;
};

// Ranges by thread, in the order of their begins.
std::map<std::int64_t, std::vector<NvtxSpan>> ranges_of(Export& data) {
  constexpr int push_pop = 59, domain_created = 75;         // eventType
  std::set<std::pair<std::int64_t, std::int64_t>> domains;  // process and number
  data.rows(
      "SELECT globalTid, domainId, COALESCE(text, (SELECT value FROM StringIds WHERE id = textId)) FROM NVTX_EVENTS "
      "WHERE eventType = " +
          std::to_string(domain_created),
      [&](sqlite3_stmt* row) {
        if (text_at(row, 2) != "weft") return;
        domains.emplace(process_of(sqlite3_column_int64(row, 0)), sqlite3_column_int64(row, 1));
      });
  std::map<std::int64_t, std::vector<NvtxSpan>> ranges;
  data.rows(
      "SELECT start, \"end\", globalTid, domainId, COALESCE(text, (SELECT value FROM StringIds WHERE id = textId)) "
      "FROM NVTX_EVENTS WHERE eventType = " +
          std::to_string(push_pop) + " AND \"end\" IS NOT NULL ORDER BY start, \"end\" DESC",
      [&](sqlite3_stmt* row) {
        const std::int64_t thread = sqlite3_column_int64(row, 2);
        if (!domains.contains({process_of(thread), sqlite3_column_int64(row, 3)})) return;
        ranges[thread].push_back({sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1), text_at(row, 4)});
      });
  return ranges;
}

// The action and the work that a call belongs to.
struct Queued {
  std::string action, work = "-";
};

bool is_work(const std::string& name) {
  return value_named<Work>(name).has_value();
}

// Finds the innermost range around each call, for calls in the order of time. Ranges of a thread nest. The innermost
// range is an action, or work inside an action.
class Innermost {
 public:
  explicit Innermost(const std::vector<NvtxSpan>& ranges) : ranges_(ranges) {}
  std::optional<Queued> at(std::int64_t time) {
    while (!open_.empty() && open_.back()->end < time) open_.pop_back();
    for (; next_ < ranges_.size() && ranges_[next_].begin <= time; ++next_) {
      while (!open_.empty() && open_.back()->end < ranges_[next_].begin) open_.pop_back();
      if (ranges_[next_].end >= time) open_.push_back(&ranges_[next_]);
    }
    if (open_.empty()) return std::nullopt;
    const std::string& name = open_.back()->name;
    if (open_.size() > 1 && is_work(name)) return Queued{open_[open_.size() - 2]->name, name};
    return Queued{name};
  }

 private:
  const std::vector<NvtxSpan>& ranges_;
  std::size_t next_ = 0;
  std::vector<const NvtxSpan*> open_;
};

}  // namespace

std::vector<TimedSpan> read_nsys_export(const std::string& file) {
  Export data(file);
  for (const char* table : {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"}) {
    if (!data.has(table)) {
      fail_request(
          "{} has no table {}: record with nsys profile --trace=cuda,nvtx, and export with nsys export "
          "--type sqlite",
          file, table);
    }
  }
  const auto ranges = ranges_of(data);
  if (ranges.empty()) fail_request("{} holds no range of the domain \"weft\"", file);

  // Keys are process and correlation.
  std::map<std::pair<std::int64_t, std::int64_t>, Queued> queued;
  std::map<std::int64_t, Innermost> innermost;
  for (const auto& [thread, all] : ranges) innermost.try_emplace(thread, all);
  data.rows("SELECT start, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start",
            [&](sqlite3_stmt* row) {
              const std::int64_t thread = sqlite3_column_int64(row, 1);
              const auto found = innermost.find(thread);
              if (found == innermost.end()) return;
              const auto within = found->second.at(sqlite3_column_int64(row, 0));
              if (within) queued[{process_of(thread), sqlite3_column_int64(row, 2)}] = *within;
            });

  std::map<std::int64_t, int> number_of_process;
  for (const auto& [thread, all] : ranges) number_of_process.try_emplace(process_of(thread), 0);
  for (int next = 0; auto& [process, number] : number_of_process) number = next++;
  std::vector<TimedSpan> spans;
  const auto add = [&](const char* table, const std::string& kernel, const std::string& bytes) {
    if (!data.has(table)) return;
    data.rows("SELECT start, \"end\", globalPid, correlationId, streamId, " + kernel + ", " + bytes + " FROM " + table,
              [&](sqlite3_stmt* row) {
                const std::int64_t process = sqlite3_column_int64(row, 2);
                const auto action = queued.find({process, sqlite3_column_int64(row, 3)});
                const auto number = number_of_process.find(process);
                TimedSpan span;
                span.name = action == queued.end() ? "outside" : action->second.action;
                if (action != queued.end()) span.work = action->second.work;
                span.lane = "stream " + std::to_string(sqlite3_column_int64(row, 4));
                span.kernel = text_at(row, 5);
                span.rank = number == number_of_process.end() ? -1 : number->second;
                span.bytes = sqlite3_column_int64(row, 6);
                span.seconds = 1e-9 * static_cast<double>(sqlite3_column_int64(row, 1) - sqlite3_column_int64(row, 0));
                spans.push_back(std::move(span));
              });
  };
  add("CUPTI_ACTIVITY_KIND_KERNEL", "(SELECT value FROM StringIds WHERE id = shortName)", "0");
  add("CUPTI_ACTIVITY_KIND_MEMCPY", "'copy'", "bytes");
  add("CUPTI_ACTIVITY_KIND_MEMSET", "'fill'", "bytes");
  return spans;
}

}  // namespace weft

#else

namespace weft {

std::vector<TimedSpan> read_nsys_export(const std::string& file) {
  fail_request("{}: this build reads no exports of Nsight Systems: SQLite (libsqlite3-dev) was not there", file);
}

}  // namespace weft

#endif
