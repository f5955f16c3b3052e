// A timeline of a rank in chosen steps, for viewers of Chrome's trace format (ui.perfetto.dev, chrome://tracing). It
// has every action on its lane, the work inside it, and the waits of the host.
//
// An action lasts from the moment when its lane has finished all earlier work until its lane has finished the action.
// So a wait for another lane or rank inside an action counts as part of it. Work (work.h) is timed on the compute lane;
// its operations on other lanes (the exchange between experts) are not shown separately. Times come from the clocks of
// the lanes, counted from the begin of the step. Host and device times agree there. The host has waited for the totals
// of the last step, so the compute lane is idle and reaches a fence at once.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/pipeline/execute/execute.h"
#include "trainer/config/config.h"

namespace weft {

struct TraceSpan {
  std::string name;          // range_names (execute.h), or an activity of the host
  std::optional<Lane> lane;  // nothing for the host
  std::int64_t step = 0;
  std::optional<int> microbatch;
  std::int64_t bytes = 0;
  double begin = 0.0, end = 0.0;  // seconds of the steady clock, which all processes of a machine share
  std::string inside = {};        // for work: name of its action

  bool operator==(const TraceSpan&) const = default;
};

class StepTrace final : public ActionObserver {
 public:
  // The arguments outlive the trace.
  StepTrace(const Program& program, std::span<const Action> actions, Lanes& lanes)
      : program_(program), actions_(actions), lanes_(lanes), names_(range_names(program, actions)) {}

  void begin_step(std::int64_t step);
  void begin(std::size_t action) override;
  void end(std::size_t action) override;
  void begin_work(Work work) override;
  void end_work() override;
  // Waits for the step's actions and appends their spans, in order, after the spans of the step and the host. Their
  // work is appended to work().
  void end_step();

  // Spans of all steps so far: those of work in work(), all others in spans().
  const std::vector<TraceSpan>& spans() const { return spans_; }
  const std::vector<TraceSpan>& work() const { return work_; }

  // Records an activity of the host from construction to destruction. Does nothing if `trace` is null.
  class HostSpan {
   public:
    HostSpan(StepTrace* trace, const char* name) : trace_(trace), name_(name) {
      if (trace_ != nullptr) begin_ = now();
    }
    ~HostSpan() {
      if (trace_ != nullptr) {
        trace_->spans_.push_back({name_, std::nullopt, trace_->step_, std::nullopt, 0, begin_, now()});
      }
    }
    HostSpan(const HostSpan&) = delete;
    HostSpan& operator=(const HostSpan&) = delete;

   private:
    StepTrace* trace_;
    const char* name_;
    double begin_ = 0.0;
  };

 private:
  struct Fences {
    std::size_t action;
    Fence begin, end;
  };
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  Stream& lane_of_action(std::size_t action) { return lanes_[lane_of(program_, actions_[action])]; }

  const Program& program_;
  std::span<const Action> actions_;
  Lanes& lanes_;
  std::vector<std::string> names_;
  std::vector<TraceSpan> spans_, work_;

  // The step in progress.
  std::int64_t step_ = 0;
  std::size_t step_span_ = 0;
  Fence step_begin_;
  std::vector<Fences> fences_;
  std::vector<std::pair<Work, Fences>> work_fences_;
};

// One JSON document with process `rank`, and in it one thread for the host and one for each lane. The hashes of the
// run, by name, are metadata.
std::string to_chrome_trace(int rank, std::span<const TraceSpan> spans, std::span<const TraceSpan> work = {},
                            const std::map<std::string, std::string>& hashes = {});

// Profiling of a rank's steps. Every step has NVTX ranges (they cost nanoseconds), and the steps of [profiling] have a
// trace and the start of recording by nsys or ncu.
class StepProfiler {
 public:
  // The arguments outlive the profiler. Sets the NVTX name of the calling thread.
  StepProfiler(const ProfilingConfig& config, NvtxDomain& domain, const Program& program,
               std::span<const Action> actions, Lanes& lanes, Communicator& world);

  // Called around a step, outside of the measured time. Collective over the world in the first and the last step of a
  // recording. Ranks that are threads share one process, which is recorded as a whole. So recording starts before the
  // step of any rank.
  void begin_step(std::int64_t step);
  void end_step();

  // Observers for execute(), between begin_step() and end_step().
  std::span<ActionObserver* const> observers() const { return {observers_.data(), tracing() ? 2u : 1u}; }
  StepTrace::HostSpan host(const char* name) { return {tracing() ? trace_.get() : nullptr, name}; }

  // Null if [profiling] asks for no trace.
  const StepTrace* trace() const { return trace_.get(); }

 private:
  bool tracing() const { return trace_ != nullptr && config_.includes(step_); }

  const ProfilingConfig& config_;
  NvtxDomain& domain_;
  Device& device_;
  Communicator& world_;
  NvtxDomain::Name step_name_, no_family_;
  ActionRanges ranges_;
  std::unique_ptr<StepTrace> trace_;
  std::array<ActionObserver*, 2> observers_;
  std::int64_t step_ = 0;
  std::optional<NvtxRange> step_range_;
};

}  // namespace weft
