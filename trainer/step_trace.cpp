#include "trainer/step_trace.h"

#include <nlohmann/json.hpp>

namespace weft {

void StepTrace::begin_step(std::int64_t step) {
  step_ = step;
  fences_.clear();
  fences_.reserve(actions_.size());
  step_span_ = spans_.size();
  step_begin_ = lanes_[Lane::compute].record_time();
  const double begin = now();
  spans_.push_back({"step", std::nullopt, step, std::nullopt, 0, begin, begin});
}

void StepTrace::begin(std::size_t action) {
  fences_.push_back({action, lane_of_action(action).record_time(), nullptr});
}

void StepTrace::end(std::size_t action) {
  fences_.back().end = lane_of_action(action).record_time();
}

void StepTrace::end_step() {
  const double begin = spans_[step_span_].begin;
  step_begin_->synchronize();
  for (const Fences& fences : fences_) {
    const Action& action = actions_[fences.action];
    fences.end->synchronize();
    spans_.push_back({names_[fences.action], lane_of(program_, action), step_, action.microbatch, action.bytes,
                      begin + fences.begin->seconds_since(*step_begin_),
                      begin + fences.end->seconds_since(*step_begin_)});
  }
  fences_.clear();
  spans_[step_span_].end = now();
}

std::string to_chrome_trace(int rank, std::span<const TraceSpan> spans) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  const auto name_it = [&](const char* what, int thread, const Json& arguments) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", arguments}});
  };
  const auto thread_of = [](std::optional<Lane> lane) { return lane ? 1 + static_cast<int>(*lane) : 0; };
  const auto track_of = [](std::optional<Lane> lane) { return std::string(lane ? name_of(*lane) : "host"); };
  name_it("process_name", 0, {{"name", fmt::format("rank {}", rank)}});
  name_it("process_sort_index", 0, {{"sort_index", rank}});
  std::vector<std::optional<Lane>> tracks = {std::nullopt};
  tracks.insert(tracks.end(), all_lanes.begin(), all_lanes.end());
  for (const auto& track : tracks) {
    name_it("thread_name", thread_of(track), {{"name", track_of(track)}});
    name_it("thread_sort_index", thread_of(track), {{"sort_index", thread_of(track)}});
  }
  for (const TraceSpan& span : spans) {
    Json arguments = {{"step", span.step}};
    if (span.microbatch) arguments["microbatch"] = *span.microbatch;
    if (span.bytes > 0) arguments["bytes"] = span.bytes;
    // Microseconds.
    events.push_back({{"name", span.name},
                      {"cat", track_of(span.lane)},
                      {"ph", "X"},
                      {"ts", 1e6 * span.begin},
                      {"dur", 1e6 * (span.end - span.begin)},
                      {"pid", rank},
                      {"tid", thread_of(span.lane)},
                      {"args", arguments}});
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

}  // namespace weft
