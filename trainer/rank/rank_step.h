// What one rank holds of a model that is trained, and does in a step: memory, groups, the compiled list, its stages and
// its optimizer. What it reads, what is made of its totals and who watches is its caller's business (rank_run.h); so a
// rank that only finds out what a step takes (dry_run.h) holds and does the same.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "parallel/pipeline/execute/execute.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/rank/backend.h"
#include "trainer/rank/rank_stages.h"
#include "trainer/rank/step_totals.h"

namespace weft {

// What differs from step to step.
struct StepInputs {
  double loss_scale = 1.0;
  std::int64_t update = 1;  // of the optimizer, from 1
  // Asked before parameters and states are changed: they stay as they are until then. May block the host.
  std::function<Fence()> change_after = {};
};

class RankStep final : private ActionHandler {
 public:
  // Collective over the groups that `make_group` makes. `program` is that of the rank. Contents of parameters are drawn
  // as `initialization` says, or undefined without it. What is handed in as a reference outlives this.
  RankStep(const Config& config, const Mesh& mesh, Program program, int rank, Backend& backend, PhaseClock& clock,
           const MakeGroup& make_group, const std::optional<Initialization>& initialization);

  // A step is begin(), once the text is there, then walk() and end().
  void begin(const StepInputs& inputs);
  void walk(std::span<ActionObserver* const> observers);
  void end() { stages_->end_step(); }

  // Ids of all microbatches, then targets, [2 * tokens, 1] int32 in device memory.
  TensorView text() { return text_; }

  Lanes& lanes() { return lanes_; }
  MemoryLedger& ledger() { return ledger_; }
  KernelContext& kernels() { return kernels_; }
  Stream& stream() { return kernels_.stream; }
  RankGroups& groups() { return groups_; }
  const Program& program() const { return program_; }
  std::span<const Action> actions() const { return actions_; }
  RankStages& stages() { return *stages_; }
  Optimizer& optimizer() { return optimizer_; }
  StepSums& sums() { return sums_; }
  // Of the update of the step in progress, or of the last one.
  std::vector<GroupRate> learning_rates() const {
    return weft::learning_rates(config_, trained_groups_, inputs_.update);
  }

 private:
  void forward(int segment, int microbatch) override { stages_->forward(segment, microbatch); }
  void backward_input(int segment, int microbatch) override { stages_->backward_input(segment, microbatch); }
  void backward_weight(int segment, int microbatch) override { stages_->backward_weight(segment, microbatch); }
  void recompute(int segment, int microbatch) override { stages_->recompute(segment, microbatch); }
  void unshard(Op op, int unit) override { stages_->unshard(op, unit); }
  void reshard(Op op, int unit) override { stages_->reshard(op, unit); }
  void scatter_gradient(int unit) override { stages_->scatter_gradient(unit); }
  void reduce_gradient(int unit) override { stages_->reduce_gradient(unit); }
  void tie_gradient(int unit) override { stages_->tie_gradient(unit); }
  void wait_reduction(int unit) override { stages_->wait_reduction(unit); }
  void send(Lane lane, int stage, int microbatch, int peer) override { stages_->send(lane, stage, microbatch, peer); }
  void receive(Lane lane, int stage, int microbatch, int peer) override {
    stages_->receive(lane, stage, microbatch, peer);
  }
  void gradient_norm() override;
  void optimizer_step() override;

  const Config& config_;
  const Mesh& mesh_;
  int rank_;
  Lanes lanes_;
  MemoryLedger ledger_;
  std::unique_ptr<MatrixProducts> products_;
  KernelContext kernels_;
  Program program_;
  std::span<const Action> actions_;  // this rank's list in program_
  RankGroups groups_;
  const OptimizerKernels& optimizer_kernels_;
  Optimizer optimizer_;
  std::vector<UpdateGroup> trained_groups_;
  Tensor text_;
  StepSums sums_;
  Tensor gradient_scale_;  // [1, 1] float32
  std::unique_ptr<RankStages> stages_;

  // The step in progress.
  StepInputs inputs_;
};

}  // namespace weft
