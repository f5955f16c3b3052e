// The pipeline stages of one rank at run time: their segments, their shard units and the microbatches in flight. They
// only execute the program's actions, without those of the update.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/execute/execute.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/error.h"
#include "parallel/shard/replicated.h"
#include "parallel/shard/unit.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/host_activations.h"
#include "trainer/rank/initialize.h"
#include "trainer/rank/rank_groups.h"

namespace weft {

// Text of the microbatches of one step, one microbatch after another, [microbatches * tokens, 1] int32 in device
// memory: as MicrobatchInput has it of one. `number` is that of the first. All ranks of a tensor group read the same
// tokens. Context ranks read their own positions of the same sequences.
using StepBatch = MicrobatchInput;
// `text` as parts of equal size, in the order of the fields.
StepBatch parts_of(ConstTensorView text, const TextParts& parts);

// 1 / targets of the global batch that count, 1 / its tokens without padding, and 1 / its sequences (LayerContext).
struct LossFactors {
  double target = 1.0, token = 1.0, sequence = 1.0;
};

class RankStages {
 public:
  // Parameters are drawn according to `initialization`. Without it neither parameters nor the rotary table are written.
  // `planned`: the stages that `tables` puts on one pipeline rank, ascending. `lanes`, `groups`, `kernels` and
  // `host_ledger`, which counts activations in host memory, outlive the stages.
  RankStages(PlannedInputs inputs, std::vector<PlannedStage> planned, const ProgramTables& tables,
             const std::optional<Initialization>& initialization, Lanes& lanes, RankGroups& groups,
             KernelContext& kernels, MemoryLedger& host_ledger);

  // Exchanges the segments, and the inputs that they were planned for, with those of another program over the same
  // parameters in the same units. One for microbatches of another shape is an example. Called between steps. `planned`
  // holds the segments of before, for the way back.
  void exchange_segments(PlannedInputs& inputs, std::vector<PlannedStage>& planned, const ProgramTables& tables);

  // The observer is told of the work of segments. It stays valid until another one, or null, is set.
  void set_observer(WorkObserver* observer) { observer_ = observer; }
  // All lanes wait for the work queued on the compute lane so far. The report's tensors outlive the step. `loss_scale`
  // multiplies every gradient. `generation` is passed to segments that generate (layers/segment.h).
  void begin_step(const StepBatch& batch, LossFactors factors, double loss_scale, StepReport report,
                  GenerationState* generation = nullptr);
  // Releases the inputs of reductions. The compute lane has waited for the reduce lane before.
  void finish_reductions() { reduce_inputs_.finish(); }
  // Waits until peers have received all messages. Throws Error (failure) if a microbatch has not completed.
  void end_step();

  // Carries out an action of a list over `tables`, those of the segments at hand. Throws Error (failure) for GRAD_NORM
  // and STEP, which need an optimizer (rank_step.h).
  void perform(const ProgramTables& tables, const Action& action);

  const PlannedInputs& inputs() const { return inputs_; }
  std::span<const PlannedStage> planned() const { return planned_; }
  // Units of all stages, stage after stage.
  std::span<const PlannedUnit* const> planned_units() const { return planned_units_; }
  // Rows of planned_units()[unit] that this rank owns.
  std::vector<OwnedRows> owned_rows(std::size_t unit);
  // The selection biases of this rank's routers, [experts, 1], with their blocks.
  std::vector<std::pair<int, TensorView>> selection_biases();
  // The first parameter with a non-finite gradient on this rank in this step, before any reduction. Waits for the
  // device.
  std::optional<std::string> nonfinite_parameter();

 private:
  // Unit, and index in the unit, of a segment's parameter.
  struct ParameterPlace {
    std::size_t unit = 0, index = 0;
  };
  // A segment of one of the stages.
  struct StageSegment {
    Segment* segment = nullptr;
    std::vector<ParameterPlace> places = {};  // by parameter
    int stage = 0;
    // Keys in boundary_ for the segment's output (next_stage) and input gradient (previous_stage). They equal `stage`,
    // except at the end of a stage if the neighbouring stage is on this rank too. That stage takes the tensor without a
    // copy. A tensor for another rank stays under `stage` until it is sent.
    int next_stage = 0, previous_stage = 0;
    // For a recompute region of the program's tables (ProgramSegment): forward saves Segment::remembered() of each
    // piece and the input of the first piece. Recompute passes its output to the next piece, except at the last piece.
    bool recomputed = false, begins_region = false, ends_region = false;
    // Its kernels have the same shapes in each microbatch, and no rank sends anything inside: no experts, no traffic.
    bool fixed = false;
  };

  void add_unit(const PlannedUnit& unit);
  void make_rotary_table();
  void add_pieces(const PlannedStage& stage, const ProgramTables& tables, std::size_t first_unit);

  void mark_regions(const PlannedStage& stage, const ProgramTables& tables, std::size_t first_piece);

  StageSegment& piece(int segment) { return pieces_[local_segment_[segment]]; }
  // The result of `use` for the unit, which is sharded or replicated.
  template <typename Use>
  auto with_unit(std::size_t unit, Use use) {
    return units_[unit] ? use(*units_[unit]) : use(*replicated_[unit]);
  }
  // By index into the program's tables.
  void forward(int segment, int microbatch, ComputePart part);
  void backward_input(int segment, int microbatch, ComputePart part);
  void backward_weight(int segment, int microbatch);
  void recompute(int segment, int microbatch, ComputePart part);
  void exchange_rows(int segment, int microbatch);
  void offload(int segment, int microbatch);
  // `unit`: index in planned_units().
  void tie_gradient(std::size_t unit);
  // `stage`: the local stage that produced the sent tensor, or that takes the received tensor.
  void send(Lane lane, int stage, int microbatch, int peer);
  void receive(Lane lane, int stage, int microbatch, int peer);

  // Calls of a segment that the compute lane may capture; each has its own sequence of kernels.
  enum class Captured : std::uint8_t { forward, recompute, backward_input, backward_weight };
  // The call that follows, up to the stream's end_capture(). Nothing if its kernels are not the same each time.
  void begin_capture(int segment, Captured call);
  MicrobatchInput text_of(int microbatch) const;
  // Weights of a segment that is computed next; the compute lane waits for their gathers in flight.
  std::vector<ConstTensorView> weights_of(const StageSegment& piece);
  std::vector<Gradient> gradients_of(const StageSegment& piece);
  LayerContext context(ComputePart part = {}) {
    return {kernels_,
            groups_.on(Lane::compute, Group::tp),
            groups_.on(Lane::compute, Group::cp),
            groups_.on(Lane::exchange, groups_.relays_tokens() ? Group::ep_inner : Group::ep),
            groups_.on(Lane::exchange, Group::ep_relay),
            groups_.on(Lane::compute, Group::etp),
            groups_.on(Lane::compute, Group::tokens),
            rotary_table_,
            factors_.target,
            factors_.token,
            factors_.sequence,
            report_,
            loss_scale_,
            generation_,
            observer_,
            /*recomputing=*/false,
            part};
  }

  // The tensor of a microbatch between segments or stages.
  struct BoundaryTensor {
    Tensor tensor;
    Fence arrived;  // completion of the receive; null if the tensor is from this rank
  };
  Tensor take_boundary(int stage, int microbatch);

  PlannedInputs inputs_;
  std::vector<PlannedStage> planned_;
  std::vector<const PlannedUnit*> planned_units_;
  // By index into the program's tables; valid only for segments and units on this rank.
  std::vector<std::size_t> local_segment_, local_unit_;
  // Of a tied weight: its copies on this rank, as planned units, and the pipeline ranks of all copies.
  struct TiedUnits {
    std::vector<std::size_t> here;
    std::vector<int> ranks;
  };
  std::vector<TiedUnits> tied_;  // by planned unit
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
  std::vector<StageSegment> pieces_;

  // The step in progress.
  StepBatch batch_;
  LossFactors factors_;
  double loss_scale_ = 1.0;
  StepReport report_;
  GenerationState* generation_ = nullptr;
  WorkObserver* observer_ = nullptr;
  // By stage and microbatch: the activation of a forward, or the gradient of a backward. A stage has at most one such
  // tensor of a microbatch.
  std::map<std::pair<int, int>, BoundaryTensor> boundary_;
  std::map<std::pair<const Segment*, int>, std::unique_ptr<Saved>> saved_;  // by segment and microbatch
  // Inputs of recompute, by segment and microbatch. They are the input of a region between forward and recompute, and
  // inside a region the output of the recomputed piece before.
  std::map<std::pair<const Segment*, int>, Tensor> checkpoints_;
  HostActivations host_activations_;             // of saved_ and checkpoints_
  std::map<std::pair<Lane, int>, Tensor> sent_;  // by lane and peer: the last message, kept until the peer has it
};

}  // namespace weft
