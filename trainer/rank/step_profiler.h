// Profiling of a rank's steps. Every step has NVTX ranges (they cost nanoseconds), and the steps of [profiling] have a
// trace and the start of recording by nsys or ncu.
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
