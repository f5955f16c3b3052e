// Sums of trace spans by their labels: phase, part, stage, microbatch, step and others. The labels are in the names of
// actions (range_names, execute.h). The same labels therefore serve the traces of a run and the exports of Nsight.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/measure/measured_costs.h"

namespace weft {

// Labels in the name of an action: "PP:2F blocks.3.experts", "unshard blocks.3.experts", "grad_norm".
struct ActionLabels {
  // "F", "B", "I", "W" or "R"; "gather", "reshard", "reduce", "message", "update"; "other" for names that are no
  // action's.
  std::string_view phase = "other";
  std::string_view family =
      "-";  // "dense", "experts", "embedding", "merge", "predict", "head", "root", "routing", "passage"
  std::string_view part = "-";  // the segment or unit: "blocks.3.experts"
  std::string_view stage = "-";

  bool operator==(const ActionLabels&) const = default;
};
ActionLabels labels_of(std::string_view name);

// A timed span: an action on its lane, or a kernel inside the action.
struct TimedSpan {
  std::string name;          // of the action
  std::string lane;          // or "host"
  std::string kernel = "-";  // "-" if unknown
  std::string work = "-";    // inside the action (work.h); "-" if not given
  int rank = 0;
  std::optional<std::int64_t> step = {}, microbatch = {};
  std::int64_t bytes = 0;
  double seconds = 0.0;
  // For traces with spans of work: whether this is a work span, and seconds of an action's time that lie in work spans.
  bool is_work = false;
  double work_seconds = 0.0;
};
// Spans of whole steps are left out.
std::vector<TimedSpan> timed_spans(std::span<const RankTrace> traces);

enum class TraceKey : std::uint8_t { phase, family, part, stage, microbatch, step, lane, rank, name, kernel, work };
constexpr auto enum_names(TraceKey) {
  return name_list("phase", "family", "part", "stage", "microbatch", "step", "lane", "rank", "name", "kernel", "work");
}
// "phase,family". Throws Error (request) listing the keys there are.
std::vector<TraceKey> parse_trace_keys(std::string_view text);

struct TraceSum {
  std::vector<std::string> labels;  // in the order of the keys
  std::int64_t count = 0, bytes = 0;
  double seconds = 0.0, least = 0.0, median = 0.0, most = 0.0;
};
// Sums, longest first. If `work` is a key, work inside an action is separate from the rest of the action. Otherwise it
// is part of the action. Either way each second counts once.
std::vector<TraceSum> sum_spans(std::span<const TimedSpan> spans, std::span<const TraceKey> keys);

}  // namespace weft
