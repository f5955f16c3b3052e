#include "trainer/rank/rank_step.h"

#include "trainer/layout/stage_layout.h"
#include "trainer/plan/gradient_norm.h"
#include "trainer/plan/unit_policy.h"

namespace weft {

RankStep::RankStep(const Config& config, const Mesh& mesh, Program program, int rank, Backend& backend,
                   PhaseClock& clock, const MakeGroup& make_group, const std::optional<Initialization>& initialization)
    : config_(config),
      mesh_(mesh),
      rank_(rank),
      lanes_(*backend.device),
      ledger_(*backend.device, lanes_[Lane::compute]),
      host_ledger_(*backend.device, lanes_[Lane::compute], MemoryPlace::host),
      products_(backend.make_products(lanes_[Lane::compute], ledger_)),
      kernels_{ledger_, clock, lanes_[Lane::compute], *products_, backend.layer_kernels},
      program_(std::move(program)),
      actions_(program_.ranks[mesh.coordinates(rank).pp]),
      groups_(rank, mesh, islands_of(config), transfers_of(program_), lanes_, tied_ranks_of(program_), make_group,
              config.model.has(BlockKind::moe)),
      optimizer_kernels_(backend.optimizer_kernels),
      optimizer_(config, optimizer_kernels_,
                 {groups_.on(Lane::compute, Group::world), groups_.on(Lane::compute, Group::tokens)}, *products_,
                 {lanes_, ledger_, host_ledger_}, clock),
      trained_groups_(trained_groups(config)),
      text_(ledger_.allocate(Bucket::workspace, DType::int32, config.text_parts().count() * config.rank_tokens(), 1)),
      sums_(lanes_[Lane::compute], ledger_, config.model.blocks.size(), config.model.moe.num_experts, mesh.world()),
      gradient_scale_(ledger_.allocate(Bucket::workspace, DType::float32, 1, 1)) {
  const Coordinates at = mesh.coordinates(rank);
  stages_ = std::make_unique<RankStages>(plan_inputs(config, at), plan_stages(config, mesh, at), program_,
                                         initialization, lanes_, groups_, kernels_, host_ledger_);
  const auto units = stages_->planned_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!units[u]->frozen) optimizer_.add(*units[u], stages_->owned_rows(u), mesh, rank);
  }
}

void RankStep::walk(std::span<ActionObserver* const> observers) {
  WorkForObservers work(observers);
  stages_->set_observer(observers.empty() ? nullptr : &work);
  const auto perform = [this](const Action& action) {
    if (action.op == Op::gradient_norm) return gradient_norm();
    if (action.op == Op::optimizer_step) return optimizer_step();
    stages_->perform(program_, action);
  };
  execute(program_, actions_, perform, observers);
  stages_->set_observer(nullptr);
}

void RankStep::begin(const StepInputs& inputs) {
  inputs_ = inputs;
  const std::int64_t sequences = config_.training.global_batch_size;
  const std::int64_t tokens = sequences * config_.training.sequence_length;
  const TextCounts text = inputs.text.targets > 0 ? inputs.text : TextCounts{tokens, tokens};
  sums_.begin_step();
  stages_->begin_step(parts_of(text_, config_.text_parts()),
                      {1.0 / static_cast<double>(text.targets), 1.0 / static_cast<double>(text.tokens),
                       1.0 / static_cast<double>(sequences)},
                      inputs.loss_scale, sums_.report());
}

void RankStep::forwards(ForwardPlan& plan, std::int64_t passes, const std::function<StepBatch(std::int64_t)>& read,
                        std::span<ActionObserver* const> observers) {
  stages_->exchange_segments(plan.inputs, plan.stages, plan.program);
  sums_.begin_step();
  const auto perform = [&](const Action& action) { stages_->perform(plan.program, action); };
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    stages_->begin_step(read(pass), {}, 1.0, sums_.report());
    execute(plan.program, plan.program.ranks[mesh_.coordinates(rank_).pp], perform, observers);
    stages_->end_step();
  }
  stages_->exchange_segments(plan.inputs, plan.stages, program_);
}

void RankStep::gradient_norm() {
  Stream& compute = kernels_.stream;
  compute.wait_for(lanes_[Lane::reduce]);
  stages_->finish_reductions();
  const TensorView own = sums_.gradient_square_sum();
  const auto units = stages_->planned_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    add_counted_squares(compute, *units[u], stages_->owned_rows(u), mesh_, rank_, own);
  }
  const ConstTensorView sums = sums_.sum_for_update(groups_.on(Lane::compute, Group::world));
  optimizer_kernels_.clip_scale(
      compute, sums, {config_.training.max_grad_norm, 1.0 / inputs_.loss_scale, inputs_.void_above}, gradient_scale_);
}

void RankStep::optimizer_step() {
  if (inputs_.change_after) kernels_.stream.wait(inputs_.change_after());
  optimizer_.step(inputs_.update, gradient_scale_);
}

}  // namespace weft
