#include "trainer/rank/step_profiler.h"

namespace weft {

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
