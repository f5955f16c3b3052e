#include "trainer/step_trace.h"

#include <fmt/format.h>

#include "parallel/runtime/chrome_trace.h"

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
  const auto thread_of = [](std::optional<Lane> lane) { return lane ? 1 + static_cast<int>(*lane) : 0; };
  const auto track_of = [](std::optional<Lane> lane) { return std::string(lane ? name_of(*lane) : "host"); };
  ChromeProcess process{rank, fmt::format("rank {}", rank), {{0, track_of(std::nullopt)}}};
  for (Lane lane : all_lanes) process.threads.push_back({thread_of(lane), track_of(lane)});
  ChromeTrace trace{{std::move(process)}};
  for (const TraceSpan& span : spans) {
    ChromeArguments arguments = {{"step", span.step}};
    if (span.microbatch) arguments.emplace_back("microbatch", std::int64_t{*span.microbatch});
    if (span.bytes > 0) arguments.emplace_back("bytes", span.bytes);
    trace.events.push_back(
        {rank, thread_of(span.lane), span.name, track_of(span.lane), span.begin, span.end, arguments});
  }
  return to_json(trace);
}

}  // namespace weft
