#include "trainer/rank/step_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/runtime/chrome_trace.h"

namespace weft {

void StepTrace::begin_step(std::int64_t step) {
  step_ = step;
  fences_.clear();
  fences_.reserve(actions_.size());
  work_fences_.clear();
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

void StepTrace::begin_work(Work work) {
  work_fences_.push_back({work, {fences_.back().action, lanes_[Lane::compute].record_time(), nullptr}});
}

void StepTrace::end_work() {
  work_fences_.back().second.end = lanes_[Lane::compute].record_time();
}

void StepTrace::end_step() {
  step_begin_->synchronize();
  const double begin = spans_[step_span_].begin;
  const auto span_of = [&](const Fences& fences, std::string name, Lane lane) {
    fences.end->synchronize();
    return TraceSpan{.name = std::move(name),
                     .lane = lane,
                     .step = step_,
                     .microbatch = actions_[fences.action].microbatch,
                     .begin = begin + fences.begin->seconds_since(*step_begin_),
                     .end = begin + fences.end->seconds_since(*step_begin_)};
  };
  for (const Fences& fences : fences_) {
    const Action& action = actions_[fences.action];
    spans_.push_back(span_of(fences, names_[fences.action], lane_of(program_, action)));
    spans_.back().bytes = action.bytes;
  }
  for (const auto& [work, fences] : work_fences_) {
    work_.push_back(span_of(fences, std::string(name_of(work)), Lane::compute));
    work_.back().inside = names_[fences.action];
  }
  fences_.clear();
  work_fences_.clear();
  spans_[step_span_].end = now();
}

std::string to_chrome_trace(int rank, std::span<const TraceSpan> spans, std::span<const TraceSpan> work,
                            const std::map<std::string, std::string>& hashes) {
  const auto thread_of = [](std::optional<Lane> lane) { return lane ? 1 + static_cast<int>(*lane) : 0; };
  const auto track_of = [](std::optional<Lane> lane) { return std::string(lane ? name_of(*lane) : "host"); };
  ChromeProcess process{rank, fmt::format("rank {}", rank), {{0, track_of(std::nullopt)}}};
  for (Lane lane : all_lanes) process.threads.push_back({thread_of(lane), track_of(lane)});
  ChromeTrace trace{{std::move(process)}};
  for (const auto& [name, hash] : hashes) trace.facts.emplace_back(name + "_hash", hash);
  const auto add = [&](const TraceSpan& span) {
    ChromeArguments arguments = {{"step", span.step}};
    if (span.microbatch) arguments.emplace_back("microbatch", std::int64_t{*span.microbatch});
    if (span.bytes > 0) arguments.emplace_back("bytes", span.bytes);
    if (!span.inside.empty()) arguments.emplace_back("inside", span.inside);
    trace.events.push_back(
        {rank, thread_of(span.lane), span.name, track_of(span.lane), span.begin, span.end, arguments});
  };
  std::ranges::for_each(spans, add);
  std::ranges::for_each(work, add);
  return to_json(trace);
}

StepProfiler::StepProfiler(const ProfilingConfig& config, NvtxDomain& domain, const Program& program,
                           std::span<const Action> actions, Lanes& lanes, Communicator& world)
    : config_(config),
      domain_(domain),
      device_(lanes[Lane::compute].device()),
      world_(world),
      step_name_(domain.registered("step")),
      no_family_(domain.registered("-")),
      ranges_(domain, program, actions),
      trace_(config.first_step > 0 && config.trace ? std::make_unique<StepTrace>(program, actions, lanes) : nullptr),
      observers_{&ranges_, trace_.get()} {
  nvtx_name_thread(fmt::format("rank {}", world.rank()));
}

void StepProfiler::begin_step(std::int64_t step) {
  step_ = step;
  if (step == config_.first_step) {
    device_.start_profiler();
    world_.barrier();
  }
  ranges_.set_step(step);
  step_range_.emplace(domain_, step_name_, nvtx_step_category,
                      NvtxPayload{.step = static_cast<std::int32_t>(step), .phase = step_name_, .family = no_family_});
  if (tracing()) trace_->begin_step(step);
}

void StepProfiler::end_step() {
  if (tracing()) trace_->end_step();
  step_range_.reset();
  if (config_.first_step > 0 && step_ == config_.last()) {
    world_.barrier();
    device_.stop_profiler();
  }
}

}  // namespace weft
