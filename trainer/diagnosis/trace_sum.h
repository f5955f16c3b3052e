// Spans of traces, added up by what they are: which phase of which part, of which stage, microbatch or step. What an
// action is stands in its name (range_names, execute.h), so that traces of a run and exports of Nsight are told apart
// by the same labels.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/measure/measured_costs.h"

namespace weft {

// What the name of an action says: "PP:2F blocks.3.experts", "unshard blocks.3.experts", "grad_norm".
struct ActionLabels {
  // "F", "B", "I", "W" or "R"; "gather", "reshard", "reduce", "message", "update"; "other" where it is no action's
  // name.
  std::string_view phase = "other";
  std::string_view family = "-";  // "dense", "experts", "embedding", "head", "root", "routing", "passage"
  std::string_view part = "-";    // the segment or unit: "blocks.3.experts"
  std::string_view stage = "-";

  bool operator==(const ActionLabels&) const = default;
};
ActionLabels labels_of(std::string_view name);

// Something that took its time: an action on its lane, or a kernel inside it.
struct TimedSpan {
  std::string name;          // of the action
  std::string lane;          // or "host"
  std::string kernel = "-";  // where one is known
  std::string work = "-";    // inside the action (work.h), where it says so
  int rank = 0;
  std::optional<std::int64_t> step = {}, microbatch = {};
  std::int64_t bytes = 0;
  double seconds = 0.0;
  // Of traces, where work has spans of its own: whether this is one, and how much of an action's time is in them.
  bool is_work = false;
  double work_seconds = 0.0;
};
// Without the spans of whole steps.
std::vector<TimedSpan> timed_spans(std::span<const RankTrace> traces);

enum class TraceKey : std::uint8_t { phase, family, part, stage, microbatch, step, lane, rank, name, kernel, work };
// "phase,family". Throws Error (request) naming those that there are.
std::vector<TraceKey> parse_trace_keys(std::string_view text);
std::string_view name_of(TraceKey key);

struct TraceSum {
  std::vector<std::string> labels;  // in the order of the keys
  std::int64_t count = 0, bytes = 0;
  double seconds = 0.0, least = 0.0, median = 0.0, most = 0.0;
};
// Longest first. Of an action with work inside, work is told apart from the rest where `work` is a key, and is part of
// the action otherwise: either way the time is counted once.
std::vector<TraceSum> sum_spans(std::span<const TimedSpan> spans, std::span<const TraceKey> keys);

}  // namespace weft
