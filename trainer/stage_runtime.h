// One pipeline stage of one rank at run time: its segments, its shard units and the microbatches in flight. It does
// what the program's actions say and nothing on its own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/pipeline/program.h"
#include "parallel/shard/replicated.h"
#include "parallel/shard/unit.h"
#include "trainer/rank_groups.h"
#include "trainer/step_plan.h"

namespace weft {

// Tokens and targets of the microbatches of one step. All ranks of a tensor group read the same ones;
// context ranks read their positions of the same sequences.
struct StepBatch {
  std::vector<std::vector<std::int32_t>> tokens, targets;  // by microbatch
};

class StageRuntime {
 public:
  // Parameters are initialised from `seed`. The arguments outlive the stage.
  StageRuntime(PlannedStage planned, const ProgramTables& tables, std::uint64_t seed, RankGroups& groups,
               KernelContext& kernels);

  void begin_step(const StepBatch& batch, double loss_factor, StepReport& report);
  // Every microbatch has come back; peers have what was sent.
  void end_step();

  // By index into the program's tables.
  void forward(int segment, int microbatch);
  void backward_input(int segment, int microbatch);
  void backward_weight(int segment, int microbatch);
  void unshard(int unit);
  void reshard(int unit);
  void reduce_gradient(int unit);
  void send(int microbatch, int peer);
  void receive(int microbatch, int peer);

  std::span<const PlannedUnit> planned_units() const { return planned_.units; }
  // Rows of planned unit i that this rank owns.
  std::vector<OwnedRows> owned_rows(std::size_t unit);

 private:
  // Where a segment's parameter lives.
  struct ParameterPlace {
    std::size_t unit = 0, index = 0;
  };
  std::size_t local_segment(int segment) const;
  std::size_t local_unit(int unit) const;
  std::vector<ConstTensorView> weights_of(std::size_t segment) const;
  std::vector<TensorView> gradients_of(std::size_t segment);
  LayerContext context() {
    return {kernels_,
            groups_[Group::tp],
            groups_[Group::cp],
            groups_[Group::ep],
            groups_[Group::etp],
            rotary_table_,
            loss_factor_,
            *report_};
  }

  PlannedStage planned_;
  int first_segment_ = 0, first_unit_ = 0;
  RankGroups& groups_;
  KernelContext& kernels_;
  Tensor rotary_table_;
  // By planned unit; exactly one of the two is set.
  std::vector<std::unique_ptr<ShardUnit>> units_;
  std::vector<std::unique_ptr<ReplicatedParameters>> replicated_;
  std::vector<std::vector<ParameterPlace>> places_;  // by segment, by parameter

  // The step in progress.
  const StepBatch* batch_ = nullptr;
  double loss_factor_ = 0.0;
  StepReport* report_ = nullptr;
  std::map<int, Tensor> flowing_;  // by microbatch: activations on their way forward, or gradients on their way back
  std::map<std::pair<std::size_t, int>, std::unique_ptr<Saved>> saved_;  // by segment and microbatch
  std::map<int, Tensor> sent_;  // by peer: the last message, kept until the peer has it
};

}  // namespace weft
