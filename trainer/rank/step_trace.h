// What a rank did in chosen steps, and when: every action on its lane, the work inside it, and what the host waited
// for, for the viewers of Chrome's trace format (ui.perfetto.dev, chrome://tracing).
//
// An action lasts from where its lane has done all that was queued before to where it has done the action, so a wait
// for another lane or rank inside it counts as its own. Work (work.h) lasts on the compute lane; what it queues on
// other lanes (the exchange between experts) is not shown by itself. Times come from the lanes' own clocks, counted
// from the begin of the step, when host and device meet: the host has waited for the totals of the step before, so the
// compute lane is idle and a fence on it is reached at once.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/pipeline/execute/execute.h"

namespace weft {

struct TraceSpan {
  std::string name;          // range_names (execute.h), or what the host does
  std::optional<Lane> lane;  // none: the host
  std::int64_t step = 0;
  std::optional<int> microbatch;
  std::int64_t bytes = 0;
  double begin = 0.0, end = 0.0;  // seconds of the machine's steady clock, which its processes share
  std::string inside = {};        // of work: the action's name

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
  // Waits for the step's actions and keeps them, in their order, after the step and the host's spans; and their work.
  void end_step();

  // Of all steps so far: all but work, and work.
  const std::vector<TraceSpan>& spans() const { return spans_; }
  const std::vector<TraceSpan>& work() const { return work_; }

  // Something the host does, from construction to destruction. Does nothing without a trace.
  class HostSpan {
   public:
    HostSpan(StepTrace* trace, const char* name) : trace_(trace), name_(name) {
      if (trace_ != nullptr) begin_ = now();
    }
    ~HostSpan() {
      if (trace_ != nullptr) trace_->add_host_span(name_, begin_);
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
  void add_host_span(const char* name, double begin) {
    spans_.push_back({name, std::nullopt, step_, std::nullopt, 0, begin, now()});
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

// One JSON document: process `rank`, a thread for the host and for each lane.
std::string to_chrome_trace(int rank, std::span<const TraceSpan> spans, std::span<const TraceSpan> work = {});

}  // namespace weft
