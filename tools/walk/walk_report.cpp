#include "tools/walk/walk_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "parallel/runtime/quantities.h"
#include "tools/report/report_parts.h"

namespace weft {
namespace {

std::string message_text(const WalkLine& line) {
  const bool activations = line.op == Op::send_forward || line.op == Op::receive_forward;
  return fmt::format("{} {} {} pp {}", is_send(line.op) ? "send" : "receive", activations ? "activations" : "gradients",
                     is_send(line.op) ? "to" : "from", line.peer.value_or(0));
}

// "gather blocks.0", "reduce-scatter blocks.0".
std::string what_of(const WalkLine& line) {
  if (line.kind == WalkKind::message) return message_text(line);
  if (line.kind == WalkKind::compute) return fmt::format("{} {}", computation_name(line.op), line.subject);
  if (line.kind == WalkKind::in_place) {
    return fmt::format("{} {} in place", is_gather(line.op) ? "use" : "leave", line.subject);
  }
  constexpr std::string_view texts[] = {"gather {}",
                                        "gather {} in island",
                                        "copy {}",
                                        "free {}",
                                        "free {}, keep a part",
                                        "",
                                        "",
                                        "reduce-scatter {}",
                                        "scatter gradient {}",
                                        "all-reduce {}",
                                        "add gradient {}",
                                        "tie {}",
                                        "wait for reduction {}",
                                        "",
                                        "norm",
                                        "step",
                                        "exchange rows of {}",
                                        "copy {} to the host",
                                        "free {} once on the host",
                                        "copy {} from the host"};
  return fmt::format(fmt::runtime(texts[static_cast<std::size_t>(line.kind)]), line.subject);
}

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
std::vector<Column> columns_of(const WalkedStep& step, const Scale& scale) {
  std::vector<Column> columns = {{"what", what_of}};
  const auto any = [&](auto value) { return std::ranges::any_of(step.lines, value); };
  if (step.program.stages.size() > 1) {
    columns.push_back({"stage", [](const WalkLine& line) { return or_blank(line.stage); }});
  }
  if (step.program.microbatches > 1) {
    columns.push_back({"microbatch", [](const WalkLine& line) { return or_blank(line.microbatch); }});
  }
  columns.push_back(
      {"sent", [scale](const WalkLine& line) { return line.sent > 0 ? scale(line.sent, line.is_bound) : ""; }});
  const auto live = [&](const char* header, Bucket bucket) {
    if (!any([bucket](const WalkLine& line) { return line.live[bucket] > 0; })) return;
    columns.push_back({header, [scale, bucket](const WalkLine& line) { return scale(line.live[bucket]); }});
  };
  live("parameters", Bucket::unsharded_parameters);
  live("gradients", Bucket::unsharded_gradients);
  live("reduced copies", Bucket::communication);
  live("activations", Bucket::activations);
  columns.push_back({"with state", [scale, state = step.summary.state](const WalkLine& line) {
                       return scale(state + line.live.total());
                     }});
  columns.push_back({"peak", [scale](const WalkLine& line) { return scale(line.total_peak); }});
  return columns;
}

std::string mesh_text(const WalkedStep& step) {
  const Degrees& d = step.mesh.degrees();
  std::string text = fmt::format("{} ranks (data_shard {}", d.world(), d.data_shard);
  for (const auto& [name, degree] : named_degrees) {
    if (degree != &Degrees::data_shard && d.*degree > 1) text += fmt::format(" x {} {}", name, d.*degree);
  }
  return text + ")";
}

// After the unit of a table with bytes that tokens decide.
std::string routing_text(bool is_bound) {
  return is_bound ? ", with worst routing" : "";
}

std::string state_text(const BucketBytes& state, const Scale& scale) {
  std::string text;
  for (const Bucket bucket : all_values<Bucket>) {
    if (state[bucket] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", bucket_words(bucket), scale(state[bucket]));
  }
  return text;
}

Json line_json(const WalkLine& line) {
  Json live = unit_bytes_json(line.live);
  live["activations"] = line.live[Bucket::activations];
  return {{"what", what_of(line)},
          {"kind", name_of(line.kind)},
          {"op", name_of(line.op)},
          {"stage", or_null(line.stage)},
          {"microbatch", or_null(line.microbatch)},
          {"first_action", line.first},
          {"actions", line.actions},
          {"sent_bytes", line.sent},
          {"is_bound", line.is_bound},
          {"live", std::move(live)},
          {"parameters_peak_bytes", line.parameters_peak},
          {"gradients_peak_bytes", line.gradients_peak},
          {"peak_bytes", line.total_peak}};
}

}  // namespace

std::string walk_text(const WalkedStrategy& walked) {
  const WalkedStep& step = walked.step;
  const Scale scale(step.summary.total_peak);
  BenchTable table;
  const std::vector<Column> columns = columns_of(step, scale);
  for (const Column& column : columns) table.header.push_back(column.header);
  for (const WalkLine& line : step.lines) {
    if (line.kind == WalkKind::in_place) continue;
    auto& row = table.rows.emplace_back();
    for (const Column& column : columns) row.push_back(column.cell(line));
  }
  std::string text = fmt::format("{}: rank {} of {}, {} microbatch{}; {}{}\n", walked.name, step.rank, mesh_text(step),
                                 step.program.microbatches, step.program.microbatches == 1 ? "" : "es", scale.unit(),
                                 routing_text(step.summary.is_bound));
  text += fmt::format("  state, held all step: {}: {}\n", scale(step.summary.state), state_text(step.state, scale));
  const std::size_t in_place = step.lines.size() - table.rows.size();
  if (in_place > 0) {
    text += fmt::format(
        "  {} gathers and frees of parameters that are computed on where they lie do nothing and are not shown\n",
        in_place);
  }
  return text + "\n" + aligned_text(table);
}

std::string summary_text(std::span<const WalkedStrategy> strategies) {
  std::int64_t largest = 0;
  bool is_bound = false;
  for (const WalkedStrategy& walked : strategies) {
    largest = std::max(largest, walked.step.summary.total_peak);
    is_bound = is_bound || walked.step.summary.is_bound;
  }
  const Scale scale(largest);
  BenchTable table{{"strategy", "gathers", "reductions", "sent", "sent by gathers", "by reductions", "peak parameters",
                    "peak gradients", "parameters x actions", "gradients x actions", "state", "peak"}};
  for (const WalkedStrategy& walked : strategies) {
    const WalkSummary& summary = walked.step.summary;
    table.add(walked.name,
              summary.island_gathers > 0 ? fmt::format("{} ({} in the island)", summary.gathers, summary.island_gathers)
                                         : fmt::format("{}", summary.gathers),
              summary.reductions, scale(summary.sent, summary.is_bound), scale(summary.sent_by_gathers),
              scale(summary.sent_by_reductions), scale(summary.parameters_peak), scale(summary.gradients_peak),
              scale(walked.step.byte_steps[Bucket::unsharded_parameters]),
              scale(walked.step.byte_steps[Bucket::unsharded_gradients]), scale(summary.state),
              scale(summary.total_peak));
  }
  return fmt::format("A step of one rank, {}{}:\n\n{}", scale.unit(), routing_text(is_bound), aligned_text(table));
}

Json walk_json(const WalkedStrategy& walked) {
  const WalkedStep& step = walked.step;
  const WalkSummary& summary = step.summary;
  Json state = Json::object();
  for (const Bucket bucket : all_values<Bucket>) {
    if (step.state[bucket] > 0) state[std::string(name_of(bucket))] = step.state[bucket];
  }
  return {{"strategy", walked.name},
          {"rank", step.rank},
          {"world", step.mesh.world()},
          {"microbatches", step.program.microbatches},
          {"state", state},
          {"lines", json_list(step.lines, line_json)},
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
            {"peak_line", summary.peak_line},
            {"byte_steps", unit_bytes_json(step.byte_steps)}}}};
}

}  // namespace weft
