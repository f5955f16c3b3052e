// The pipeline stages of one rank at run time: their segments, their shard units and the microbatches in flight. They
// do what the program's actions say and nothing on their own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/pipeline/program/program.h"
#include "parallel/shard/replicated.h"
#include "parallel/shard/unit.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/initialize.h"
#include "trainer/rank/rank_groups.h"

namespace weft {

// Tokens and targets of the microbatches of one step, one microbatch after another, [microbatches * tokens, 1] int32 in
// device memory. All ranks of a tensor group read the same ones; context ranks read their positions of the same
// sequences.
struct StepBatch {
  ConstTensorView tokens, targets;
};

class RankStages {
 public:
  // Parameters are drawn as `initialization` says; without it nothing is written, neither parameters nor the table of
  // angles. `planned`: those that `tables` puts on one pipeline rank, ascending. The other arguments outlive the
  // stages.
  RankStages(PlannedInputs inputs, std::vector<PlannedStage> planned, const ProgramTables& tables,
             const std::optional<Initialization>& initialization, Lanes& lanes, RankGroups& groups,
             KernelContext& kernels);

  // From here on the stages compute with these: the same parameters in the same units, and segments for microbatches of
  // another shape. Between steps.
  void replace_segments(PlannedInputs inputs, std::vector<PlannedStage> planned, const ProgramTables& tables);

  // Lanes start after what is queued on the compute lane. The report's tensors outlive the step.
  // `loss_scale` multiplies every gradient, and `generation` is what segments that generate are handed
  // (layers/segment.h).
  // Hears of the work of segments; outlives its being set.
  void set_observer(WorkObserver* observer) { observer_ = observer; }
  void begin_step(const StepBatch& batch, double loss_factor, double loss_scale, StepReport report,
                  GenerationState* generation = nullptr);
  // The caller's compute lane has waited for the reduce lane: inputs of reductions are given back.
  void finish_reductions() { reduce_inputs_.finish(); }
  // Every microbatch has come back; peers have what was sent.
  void end_step();

  // By index into the program's tables.
  void forward(int segment, int microbatch);
  void backward_input(int segment, int microbatch);
  void backward_weight(int segment, int microbatch);
  void recompute(int segment, int microbatch);
  void unshard(Op op, int unit);
  void reshard(Op op, int unit);
  void scatter_gradient(int unit);
  void reduce_gradient(int unit);
  void tie_gradient(int unit);
  void wait_reduction(int unit);
  // Of what the stage made, or for it.
  void send(Lane lane, int stage, int microbatch, int peer);
  void receive(Lane lane, int stage, int microbatch, int peer);

  const PlannedInputs& inputs() const { return inputs_; }
  std::span<const PlannedStage> planned() const { return planned_; }
  // Of all stages, one after the other.
  std::span<const PlannedUnit* const> planned_units() const { return planned_units_; }
  // Rows of planned unit i that this rank owns.
  std::vector<OwnedRows> owned_rows(std::size_t unit);
  // The first parameter whose gradient on this rank was not finite in this step, before any reduction. Waits for the
  // device.
  std::optional<std::string> nonfinite_parameter();

 private:
  // Where a segment's parameter lives.
  struct ParameterPlace {
    std::size_t unit = 0, index = 0;
  };
  // A segment of one of the stages.
  struct Piece {
    Segment* segment = nullptr;
    std::vector<ParameterPlace> places = {};  // by parameter
    int stage = 0;
    // The stages on this rank that take what it makes: its own, or the neighbour's where a stage ends and the next one
    // is here too, which hands the tensor over as it is. What goes to another rank stays with its own until it is sent.
    int next_stage = 0, previous_stage = 0;
    int forwards = 0;  // of the step in progress
    // In a region of the program's tables (ProgramSegment) forward saves what segments remember, and of its first piece
    // the input; recompute hands on to the next piece, unless this is the last.
    bool recomputed = false, begins_region = false, ends_region = false;
  };

  void add_unit(const PlannedUnit& unit);
  void make_rotary_table();
  void add_pieces(const PlannedStage& stage, const ProgramTables& tables, std::size_t first_unit);

  void mark_regions(const PlannedStage& stage, const ProgramTables& tables, std::size_t first_piece);

  Piece& piece(int segment) { return pieces_[local_segment_[static_cast<std::size_t>(segment)]]; }
  std::size_t local_unit(int unit) const { return local_unit_[static_cast<std::size_t>(unit)]; }
  MicrobatchInput text_of(int microbatch) const;
  // Of a segment about to be computed: the compute lane waits for the gathers under way.
  std::vector<ConstTensorView> weights_of(const Piece& piece);
  std::vector<TensorView> gradients_of(const Piece& piece);
  LayerContext context() {
    return {kernels_,
            groups_.on(Lane::compute, Group::tp),
            groups_.on(Lane::compute, Group::cp),
            groups_.on(Lane::exchange, Group::ep),
            groups_.on(Lane::compute, Group::etp),
            groups_.on(Lane::compute, Group::tokens),
            rotary_table_,
            loss_factor_,
            report_,
            loss_scale_,
            generation_,
            observer_};
  }

  // A microbatch's tensor between segments or stages.
  struct Flowing {
    Tensor tensor;
    Fence arrived;  // where it came from another rank: when it is there
  };
  Tensor take_flowing(int stage, int microbatch);

  PlannedInputs inputs_;
  std::vector<PlannedStage> planned_;
  std::vector<const PlannedUnit*> planned_units_;
  // By index into the program's tables; meaningful for what is on this rank.
  std::vector<std::size_t> local_segment_, local_unit_;
  std::vector<std::optional<std::size_t>> local_copy_;  // by planned unit: the copy that it is tied to, if it is here
  bool forward_only_;
  std::optional<Initialization> initialization_;
  Lanes& lanes_;
  RankGroups& groups_;
  KernelContext& kernels_;
  ReduceInputs reduce_inputs_;
  Tensor rotary_table_;
  // By planned unit; exactly one of the two is set.
  std::vector<std::unique_ptr<ShardUnit>> units_;
  std::vector<std::unique_ptr<ReplicatedParameters>> replicated_;
  std::vector<Piece> pieces_;

  // The step in progress.
  StepBatch batch_;
  double loss_factor_ = 0.0, loss_scale_ = 1.0;
  StepReport report_;
  GenerationState* generation_ = nullptr;
  WorkObserver* observer_ = nullptr;
  // By stage and microbatch: activations on their way forward, or gradients on their way back. A stage has at most one
  // of a microbatch.
  std::map<std::pair<int, int>, Flowing> flowing_;
  std::map<std::pair<const Segment*, int>, std::unique_ptr<Saved>> saved_;  // by segment and microbatch
  // By segment that takes it again and microbatch: inputs of regions between forward and recompute, and what recompute
  // hands on inside a region.
  std::map<std::pair<const Segment*, int>, Tensor> checkpoints_;
  std::map<std::pair<Lane, int>, Tensor> sent_;  // by lane and peer: the last message, kept until the peer has it
};

}  // namespace weft
