// `weft trace sum`: the time of recorded steps, summed by any labels of spans. `weft trace costs`: the measured times
// of a run's actions as a table, with which later runs are planned and solved.
#include <fmt/format.h>
#include <fmt/ranges.h>
#ifdef WEFT_HAVE_SQLITE
#include <sqlite3.h>
#endif

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/work.h"
#include "tools/command/commands.h"
#include "tools/report/given_costs.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config_sources.h"
#include "trainer/diagnosis/trace_sum.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// Kernels of an export of Nsight Systems (nsys export --type sqlite), each with the action that queued it. The action
// is the innermost range of the domain "weft" on the launching thread at the time of the launch.
//
// Kernels, memory copies and memory fills. Spans queued outside all ranges are named "outside". `rank` is the index of
// the span's process in the export, from 0. Throws Error (request) if the file is no such export or has no range of a
// run, and in a build without SQLite.
std::vector<TimedSpan> read_nsys_export(const std::string& file);

#ifdef WEFT_HAVE_SQLITE

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

// Ranges of the domain "weft" by thread, in the order of their begins. An event of type 59 is a range, one of type 75
// the creation of a domain, whose number is its process's own.
std::map<std::int64_t, std::vector<NvtxSpan>> ranges_of(Export& data) {
  std::map<std::int64_t, std::vector<NvtxSpan>> ranges;
  data.rows(
      "WITH events AS (SELECT *, globalTid >> 24 AS process, COALESCE(text, (SELECT value FROM StringIds WHERE id = "
      "textId)) AS name FROM NVTX_EVENTS) "
      "SELECT start, \"end\", globalTid, name FROM events WHERE eventType = 59 AND \"end\" IS NOT NULL AND (process, "
      "domainId) IN (SELECT process, domainId FROM events WHERE eventType = 75 AND name = 'weft') "
      "ORDER BY start, \"end\" DESC",
      [&](sqlite3_stmt* row) {
        ranges[sqlite3_column_int64(row, 2)].push_back(
            {sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1), text_at(row, 3)});
      });
  return ranges;
}

// The action and the work that a call belongs to.
struct Queued {
  std::string action, work = "-";
};

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
    if (open_.size() > 1 && value_named<Work>(name)) return Queued{open_[open_.size() - 2]->name, name};
    return Queued{name};
  }

 private:
  const std::vector<NvtxSpan>& ranges_;
  std::size_t next_ = 0;
  std::vector<const NvtxSpan*> open_;
};

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

#else

std::vector<TimedSpan> read_nsys_export(const std::string& file) {
  fail_request("{}: this build reads no exports of Nsight Systems: SQLite (libsqlite3-dev) was not there", file);
}

#endif

struct SumRequest {
  std::vector<std::string> paths;
  std::string by = "phase,family";
  bool json = false;
};

// The file itself; of a run's directory, the traces of all its ranks.
std::vector<RankTrace> traces_at(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {parse_chrome_trace(read_text(path), path.string())};
  const std::filesystem::path file = path / "config.toml";
  if (!std::filesystem::exists(file)) return read_traces(path);
  const Config config = read_config(file).config;
  std::vector<RankTrace> traces = read_traces(path, config.parallelism.world());
  for (const RankTrace& trace : traces) require_traced_work(config, trace);
  return traces;
}

std::vector<TimedSpan> spans_of(const std::vector<std::string>& paths) {
  std::vector<TimedSpan> spans;
  for (const std::string& path : paths) {
    const bool exported = std::filesystem::path(path).extension() == ".sqlite";
    std::ranges::move(exported ? read_nsys_export(path) : timed_spans(traces_at(path)), std::back_inserter(spans));
  }
  return spans;
}

std::string sums_text(const std::vector<TraceSum>& sums, const std::vector<TraceKey>& keys, double all) {
  BenchTable table;
  for (const TraceKey key : keys) table.header.emplace_back(name_of(key));
  table.header.insert(table.header.end(), {"spans", "MB", "ms", "%", "least us", "median us", "most us"});
  for (const TraceSum& sum : sums) {
    auto& row = table.rows.emplace_back(sum.labels);
    row.push_back(fmt::format("{}", sum.count));
    row.push_back(decimals(static_cast<double>(sum.bytes) / 1e6, 2));
    row.push_back(decimals(1e3 * sum.seconds, 3));
    row.push_back(decimals(all > 0.0 ? 100.0 * sum.seconds / all : 0.0, 1));
    for (const double seconds : {sum.least, sum.median, sum.most}) row.push_back(decimals(1e6 * seconds, 1));
  }
  return aligned_text(table);
}

std::string sums_json(const std::vector<TraceSum>& sums, const std::vector<TraceKey>& keys, double all) {
  const Json entries = json_list(sums, [&](const TraceSum& sum) {
    Json entry;
    for (std::size_t i = 0; i < keys.size(); ++i) entry[std::string(name_of(keys[i]))] = sum.labels[i];
    entry["spans"] = sum.count;
    entry["bytes"] = sum.bytes;
    entry["seconds"] = sum.seconds;
    entry["least"] = sum.least;
    entry["median"] = sum.median;
    entry["most"] = sum.most;
    return entry;
  });
  return Json{{"seconds", all}, {"sums", entries}}.dump(2) + "\n";
}

void sum(const SumRequest& request) {
  const std::vector<TraceKey> keys = parse_trace_keys(request.by);
  const std::vector<TraceSum> sums = sum_spans(spans_of(request.paths), keys);
  double all = 0.0;
  for (const TraceSum& each : sums) all += each.seconds;
  fmt::print("{}", request.json ? sums_json(sums, keys, all) : sums_text(sums, keys, all));
}

struct TraceCostsRequest {
  std::string run, output;
};

// Units that other strategies share among ranks, and this run never gathered. The table cannot tell what that takes.
std::vector<std::string> never_gathered(const Config& config, const CostTable& costs) {
  const Mesh mesh(config.parallelism);
  std::vector<std::string> names;
  for (const ProgramUnit& unit : program_tables(config, mesh, mesh.coordinates(0)).units) {
    const auto found = costs.units.find(unit.name);
    if (unit.replicated || found == costs.units.end() || found->second.gather > 0.0) continue;
    if (shard_ranks(config.parallelism, unit.family) > 1) names.push_back(unit.name);
  }
  return names;
}

void write_costs(const CLI::App& command, const TraceCostsRequest& request) {
  const std::filesystem::path file = std::filesystem::path(request.run) / "config.toml";
  refuse_replaced_sources(command, file);
  const Config config = read_config(file).config;
  const CostTable costs = table_of_run(request.run, config);
  const Degrees& d = config.parallelism;
  const std::string heading = fmt::format(
      "# Seconds of the actions of {}, by its traces: pipeline.costs = \"FILE\", or --costs FILE.\n"
      "# For the same [model], [precision], microbatch, sequence length and device, with data_shard {}, data_replicate "
      "{}, context {}, tensor {}, expert {}.\n",
      request.run, d.data_shard, d.data_replicate, d.context, d.tensor, d.expert);
  write_result("weft trace costs", heading + to_toml(costs), request.output);
  if (const auto names = never_gathered(config, costs); !names.empty()) {
    print_warnings(config, {fmt::format("the run never gathered {}: in this table a gather of them takes no time",
                                        fmt::join(names, ", "))});
  }
}

}  // namespace

void add_trace_sum_command(CLI::App& trace) {
  const auto [command, request] = add_command<SumRequest>(
      trace, "sum", "spans added up by kind; percentages are of all spans, also of those side by side on lanes", sum);
  command
      .add_option("PATH", request.paths,
                  "a run's directory, a trace_rank<R>.json, or an export of Nsight Systems (.sqlite), of which kernels "
                  "are added up by the action that queued them")
      ->required();
  command
      .add_option("--by", request.by,
                  "labels that tell spans apart: phase, family, part, stage, microbatch, step, lane, rank, name, "
                  "kernel, work (inside experts: route, permute, exchange, products, combine, shared); several with "
                  "commas")
      ->capture_default_str();
  command.add_flag("--json", request.json, "print one JSON document");
}

void add_trace_costs_command(CLI::App& trace) {
  const auto [command, request] = add_command<TraceCostsRequest>(
      trace, "costs", "measured seconds of each action, as a table for pipeline.costs and --costs", write_costs);
  command.add_option("RUN", request.run, "the directory of a run with traces, all of one machine")->required();
  command.add_option("--output", request.output, "write to this file instead of standard output")->check(writable());
}

}  // namespace weft
