#include "tools/walk/walk_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/report/bench_table.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Formats the bytes of a table in one unit, so that columns can be compared.
class Scale {
 public:
  explicit Scale(std::int64_t largest) : megabytes_(largest >= 10'000'000) {}

  std::string unit() const { return megabytes_ ? "MB" : "bytes"; }
  std::string operator()(std::int64_t bytes, bool is_bound = false) const {
    const std::string text =
        megabytes_ ? fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6) : grouped_digits(bytes);
    return is_bound ? "<= " + text : text;
  }

 private:
  bool megabytes_;
};

struct Column {
  std::string header;
  std::function<std::string(const WalkLine&)> cell;
};

std::string or_blank(const std::optional<int>& value) {
  return value ? fmt::format("{}", *value) : std::string();
}

// Columns of the table; columns without any entry are left out.
std::vector<Column> columns_of(const WalkedStrategy& walked, const Scale& scale) {
  const WalkedStep& step = walked.step;
  std::vector<Column> columns = {{"what", what_of}};
  const auto any = [&](auto value) { return std::ranges::any_of(step.lines, value); };
  if (step.program.stages.size() > 1) {
    columns.push_back({"stage", [](const WalkLine& line) { return or_blank(line.stage); }});
  }
  if (walked.microbatches > 1) {
    columns.push_back({"microbatch", [](const WalkLine& line) { return or_blank(line.microbatch); }});
  }
  columns.push_back(
      {"sent", [scale](const WalkLine& line) { return line.sent > 0 ? scale(line.sent, line.is_bound) : ""; }});
  const auto live = [&](const char* header, std::int64_t LiveBytes::*bytes) {
    if (!any([bytes](const WalkLine& line) { return line.live.*bytes > 0; })) return;
    columns.push_back({header, [scale, bytes](const WalkLine& line) { return scale(line.live.*bytes); }});
  };
  live("parameters", &LiveBytes::unsharded_parameters);
  live("gradients", &LiveBytes::unsharded_gradients);
  live("reduced copies", &LiveBytes::communication);
  live("activations", &LiveBytes::activations);
  columns.push_back({"with state", [scale, state = step.summary.state](const WalkLine& line) {
                       return scale(state + line.live.total());
                     }});
  columns.push_back({"peak", [scale](const WalkLine& line) { return scale(line.total_peak); }});
  return columns;
}

std::string mesh_text(const WalkedStep& step) {
  const Degrees& d = step.mesh.degrees();
  std::string text = fmt::format("{} ranks (data_shard {}", d.world(), d.data_shard);
  for (const auto& [name, degree] : {std::pair{"data_replicate", d.data_replicate},
                                     {"pipeline", d.pipeline},
                                     {"context", d.context},
                                     {"tensor", d.tensor},
                                     {"expert", d.expert}}) {
    if (degree > 1) text += fmt::format(" x {} {}", name, degree);
  }
  return text + ")";
}

std::string state_text(const BucketBytes& state, const Scale& scale) {
  std::string text;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    if (state.bytes[b] == 0) continue;
    std::string name(name_of(static_cast<Bucket>(b)));
    std::ranges::replace(name, '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, scale(state.bytes[b]));
  }
  return text;
}

// Appends a remark to each line of the table. The table's first line is the header.
std::string with_remarks(const std::string& table, const std::vector<std::string>& remarks) {
  std::string text;
  std::size_t begin = table.find('\n') + 1;
  text += table.substr(0, begin);
  for (const std::string& remark : remarks) {
    const std::size_t end = table.find('\n', begin);
    text += table.substr(begin, end - begin) + (remark.empty() ? "" : "  " + remark) + "\n";
    begin = end + 1;
  }
  return text;
}

Json live_json(const LiveBytes& live) {
  return {{"unsharded_parameters", live.unsharded_parameters},
          {"unsharded_gradients", live.unsharded_gradients},
          {"communication", live.communication},
          {"activations", live.activations}};
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json line_json(const WalkLine& line, const std::string& remark) {
  return {{"what", what_of(line)},
          {"kind", name_of(line.kind)},
          {"op", name_of(line.op)},
          {"stage", or_null(line.stage)},
          {"microbatch", or_null(line.microbatch)},
          {"first_action", line.first},
          {"actions", line.actions},
          {"sent_bytes", line.sent},
          {"is_bound", line.is_bound},
          {"live", live_json(line.live)},
          {"parameters_peak_bytes", line.parameters_peak},
          {"gradients_peak_bytes", line.gradients_peak},
          {"peak_bytes", line.total_peak},
          {"remark", remark}};
}

}  // namespace

std::string walk_text(const WalkedStrategy& walked) {
  const WalkedStep& step = walked.step;
  const Scale scale(step.summary.total_peak);
  BenchTable table;
  const std::vector<Column> columns = columns_of(walked, scale);
  for (const Column& column : columns) table.header.push_back(column.header);
  const std::vector<std::string> all_remarks = walk_remarks(step);
  std::vector<std::string> remarks;
  for (std::size_t i = 0; i < step.lines.size(); ++i) {
    if (step.lines[i].kind == WalkKind::in_place) continue;
    auto& row = table.rows.emplace_back();
    for (const Column& column : columns) row.push_back(column.cell(step.lines[i]));
    remarks.push_back(all_remarks[i]);
  }
  std::string text = fmt::format("{}: rank {} of {}, {} microbatch{}; {}\n", walked.name, step.rank, mesh_text(step),
                                 walked.microbatches, walked.microbatches == 1 ? "" : "es", scale.unit());
  text += fmt::format("  state, held all step: {}: {}\n", scale(step.summary.state), state_text(step.state, scale));
  const std::size_t in_place = step.lines.size() - remarks.size();
  if (in_place > 0) {
    text += fmt::format(
        "  {} gathers and frees of parameters that are computed on where they lie do nothing and are not shown\n",
        in_place);
  }
  return text + "\n" + with_remarks(aligned_text(table), remarks);
}

std::string summary_text(std::span<const WalkedStrategy> strategies) {
  std::int64_t largest = 0;
  for (const WalkedStrategy& walked : strategies) largest = std::max(largest, walked.step.summary.total_peak);
  const Scale scale(largest);
  BenchTable table;
  table.header = {"strategy",      "gathers",         "reductions",     "sent",  "sent by gathers",
                  "by reductions", "peak parameters", "peak gradients", "state", "peak"};
  for (const WalkedStrategy& walked : strategies) {
    const WalkSummary& summary = walked.step.summary;
    table.rows.push_back(
        {walked.name,
         summary.island_gathers > 0 ? fmt::format("{} ({} in the island)", summary.gathers, summary.island_gathers)
                                    : fmt::format("{}", summary.gathers),
         fmt::format("{}", summary.reductions), scale(summary.sent, summary.is_bound), scale(summary.sent_by_gathers),
         scale(summary.sent_by_reductions), scale(summary.parameters_peak), scale(summary.gradients_peak),
         scale(summary.state), scale(summary.total_peak)});
  }
  std::string text = fmt::format("A step of one rank, {}:\n\n{}", scale.unit(), aligned_text(table));
  for (const std::string& lesson : walk_lessons(strategies)) text += "\n- " + lesson;
  return text + "\n";
}

Json walk_json(const WalkedStrategy& walked) {
  const WalkedStep& step = walked.step;
  const WalkSummary& summary = step.summary;
  const std::vector<std::string> remarks = walk_remarks(step);
  Json lines = Json::array(), state = Json::object();
  for (std::size_t i = 0; i < step.lines.size(); ++i) lines.push_back(line_json(step.lines[i], remarks[i]));
  for (std::size_t b = 0; b < bucket_count; ++b) {
    if (step.state.bytes[b] > 0) state[std::string(name_of(static_cast<Bucket>(b)))] = step.state.bytes[b];
  }
  return {{"strategy", walked.name},
          {"rank", step.rank},
          {"world", step.mesh.world()},
          {"microbatches", walked.microbatches},
          {"state", state},
          {"lines", lines},
          {"summary",
           {{"gathers", summary.gathers},
            {"island_gathers", summary.island_gathers},
            {"reductions", summary.reductions},
            {"sent_bytes", summary.sent},
            {"sent_by_gathers_bytes", summary.sent_by_gathers},
            {"sent_by_reductions_bytes", summary.sent_by_reductions},
            {"is_bound", summary.is_bound},
            {"parameters_peak_bytes", summary.parameters_peak},
            {"gradients_peak_bytes", summary.gradients_peak},
            {"state_bytes", summary.state},
            {"peak_bytes", summary.total_peak},
            {"peak_line", summary.peak_line}}}};
}

}  // namespace weft
