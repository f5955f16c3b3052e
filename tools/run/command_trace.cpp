// `weft trace sum`: the time of recorded steps, summed by any labels of spans.
#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <set>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/report/bench_table.h"
#include "tools/report/report_parts.h"
#include "tools/run/nsys_export.h"
#include "trainer/config/config_sources.h"

namespace weft {
namespace {

struct SumRequest {
  std::vector<std::string> paths;
  std::string by = "phase,family";
  bool json = false;
};

void add_file(const std::string& path, std::vector<TimedSpan>& spans) {
  std::vector<TimedSpan> more;
  if (std::filesystem::path(path).extension() == ".sqlite") {
    more = read_nsys_export(path);
  } else {
    const RankTrace trace = parse_chrome_trace(read_text(path), path);
    more = timed_spans({&trace, 1});
  }
  std::ranges::move(more, std::back_inserter(spans));
}

// For a run's directory: the traces of all its ranks.
std::vector<TimedSpan> spans_of(const std::vector<std::string>& paths) {
  std::vector<TimedSpan> spans;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      add_file(path, spans);
      continue;
    }
    std::set<std::string> traces;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("trace_rank") && name.ends_with(".json")) traces.insert(entry.path().string());
    }
    if (traces.empty()) {
      fail_request("{} holds no trace_rank<R>.json; a run writes them where [profiling] names steps", path);
    }
    for (const std::string& trace : traces) add_file(trace, spans);
  }
  return spans;
}

std::string sums_text(const std::vector<TraceSum>& sums, const std::vector<TraceKey>& keys, double all) {
  BenchTable table;
  for (const TraceKey key : keys) table.header.emplace_back(name_of(key));
  table.header.insert(table.header.end(), {"spans", "MB", "ms", "%", "least us", "median us", "most us"});
  for (const TraceSum& sum : sums) {
    std::vector<std::string> row = sum.labels;
    row.push_back(fmt::format("{}", sum.count));
    row.push_back(decimals(static_cast<double>(sum.bytes) / 1e6, 2));
    row.push_back(decimals(1e3 * sum.seconds, 3));
    row.push_back(decimals(all > 0.0 ? 100.0 * sum.seconds / all : 0.0, 1));
    for (const double seconds : {sum.least, sum.median, sum.most}) row.push_back(decimals(1e6 * seconds, 1));
    table.rows.push_back(std::move(row));
  }
  return aligned_text(table);
}

std::string sums_json(const std::vector<TraceSum>& sums, const std::vector<TraceKey>& keys, double all) {
  Json json = {{"seconds", all}, {"sums", Json::array()}};
  for (const TraceSum& sum : sums) {
    Json entry;
    for (std::size_t i = 0; i < keys.size(); ++i) entry[std::string(name_of(keys[i]))] = sum.labels[i];
    entry["spans"] = sum.count;
    entry["bytes"] = sum.bytes;
    entry["seconds"] = sum.seconds;
    entry["least"] = sum.least;
    entry["median"] = sum.median;
    entry["most"] = sum.most;
    json["sums"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

void sum(const SumRequest& request) {
  const std::vector<TraceKey> keys = parse_trace_keys(request.by);
  const std::vector<TraceSum> sums = sum_spans(spans_of(request.paths), keys);
  double all = 0.0;
  for (const TraceSum& each : sums) all += each.seconds;
  fmt::print("{}", request.json ? sums_json(sums, keys, all) : sums_text(sums, keys, all));
}

}  // namespace

void add_trace_sum_command(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand(
      "sum", "spans added up by kind; percentages are of all spans, also of those side by side on lanes");
  const auto request = std::make_shared<SumRequest>();
  command
      ->add_option(
          "PATH", request->paths,
          "a run's directory, a trace_rank<R>.json, or an export of Nsight Systems (.sqlite), of which kernels "
          "are added up by the action that queued them")
      ->required();
  command
      ->add_option("--by", request->by,
                   "labels that tell spans apart: phase, family, part, stage, microbatch, step, lane, rank, name, "
                   "kernel, work (inside experts: route, permute, exchange, products, combine, shared); several with "
                   "commas")
      ->capture_default_str();
  command->add_flag("--json", request->json, "print one JSON document");
  command->callback([request] { sum(*request); });
}

}  // namespace weft
