// What watches a rank's steps: NVTX ranges always (they cost nanoseconds), and in the steps that [profiling] names a
// trace, and the word to nsys or ncu to record.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"
#include "trainer/rank/step_trace.h"

namespace weft {

class StepProfiler {
 public:
  // The arguments outlive the profiler. Names the calling thread for tools.
  StepProfiler(const ProfilingConfig& config, NvtxDomain& domain, const Program& program,
               std::span<const Action> actions, Lanes& lanes, Communicator& world);

  // Around a step, outside of what it measures. Collective over the world in the first and the last step of a
  // recording: threads share one process, which records as a whole, so it starts before any of them does.
  void begin_step(std::int64_t step);
  void end_step();

  // For execute(), between begin and end of a step.
  std::span<ActionObserver* const> observers() const { return {observers_.data(), tracing() ? 2u : 1u}; }
  StepTrace::HostSpan host(const char* name) { return {tracing() ? trace_.get() : nullptr, name}; }

  // Nothing where none was asked for.
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
