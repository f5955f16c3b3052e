// The training state of one rank and its step: memory, groups, the compiled list, the stages and the optimizer. The
// caller (rank_run.h) reads the text, evaluates the totals and provides observers. So a dry run (dry_run.h) holds and
// executes the same as a run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "parallel/pipeline/execute/execute.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/rank/backend.h"
#include "trainer/rank/forward_plan.h"
#include "trainer/rank/rank_stages.h"
#include "trainer/rank/step_totals.h"

namespace weft {

// The values that differ from step to step.
struct StepInputs {
  TextCounts text = {};  // of the global batch; without targets: all its tokens count
  double loss_scale = 1.0;
  std::int64_t update = 1;    // step number of the optimizer, from 1
  SumLimits void_above = {};  // the update leaves everything as it is if a sum is larger
  // Called before the update is queued: parameters and states do not change before the returned fence. May block the
  // host.
  std::function<Fence()> change_after = {};
};

class RankStep {
 public:
  // Collective over the groups that `make_group` makes. `program` is the rank's. Parameters are drawn according to
  // `initialization`, or are undefined without it. Config, mesh, backend and clock outlive the RankStep.
  RankStep(const Config& config, const Mesh& mesh, Program program, int rank, Backend& backend, PhaseClock& clock,
           const MakeGroup& make_group, const std::optional<Initialization>& initialization);

  // A step is begin(), then walk(), then end(). text() is filled before begin().
  void begin(const StepInputs& inputs);
  void walk(std::span<ActionObserver* const> observers);
  void end() { stages_->end_step(); }

  // Between two steps: forwards of `plan` over the parameters of the step, `passes` times, each over the batch that
  // `read` returns. The plan's stages and units are those of the step. Losses add up in sums(). Of training nothing is
  // read or changed except the parameters and text(), which `read` may fill.
  void forwards(ForwardPlan& plan, std::int64_t passes, const std::function<StepBatch(std::int64_t pass)>& read,
                std::span<ActionObserver* const> observers);

  // The text of all microbatches, [text_parts() * tokens, 1] int32 in device memory (parts_of).
  TensorView text() { return text_; }

  Lanes& lanes() { return lanes_; }
  MemoryLedger& ledger() { return ledger_; }
  // Of what stays in host memory.
  const MemoryLedger& host_ledger() const { return host_ledger_; }
  KernelContext& kernels() { return kernels_; }
  Stream& stream() { return kernels_.stream; }
  RankGroups& groups() { return groups_; }
  const Program& program() const { return program_; }
  std::span<const Action> actions() const { return actions_; }
  RankStages& stages() { return *stages_; }
  Optimizer& optimizer() { return optimizer_; }
  StepSums& sums() { return sums_; }
  // Of the step, or of forwards (StepSums::total).
  StepTotals total(const RankMeasurements& own) { return sums_.total(groups_.on(Lane::compute, Group::world), own); }
  // Rates of the update in progress, or of the last update.
  std::vector<GroupRate> learning_rates() const {
    return weft::learning_rates(config_, trained_groups_, inputs_.update);
  }

 private:
  void gradient_norm();
  void optimizer_step();

  const Config& config_;
  const Mesh& mesh_;
  int rank_;
  Lanes lanes_;
  MemoryLedger ledger_, host_ledger_;
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
