// Contents and work of a layout's stages on a rank, derived from the configuration before anything is allocated. They
// are segments, shard units with layout, groups and policy, and the stages' entries in the tables of a program.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "layers/kernels/token_kernels.h"
#include "layers/segment.h"
#include "layers/segments.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "parallel/shard/fully_shard.h"
#include "trainer/config/config.h"

namespace weft {

// The contiguous part of the model on one stage. The layout decides which stage has which blocks (trainer/layout).
struct StageBlocks {
  int first = 0, count = 0;  // blocks [first, first + count), predictors among them
  bool embedding = false, head = false;

  bool empty() const { return count == 0 && !embedding && !head; }
  bool predicts(const ModelConfig& model) const { return count > 0 && first + count > model.layers(); }
  bool operator==(const StageBlocks&) const = default;
};

// The whole model on one stage.
inline StageBlocks all_blocks(const ModelConfig& model) {
  return {.count = static_cast<int>(model.blocks.size()), .embedding = true, .head = true};
}

struct PlannedUnit : FullyShardedUnit {
  UnitPolicy policy;
  Group shard_group = Group::dp_shard, replicate_group = Group::dp_replicate, island_group = Group::dp_island;
  // A weight that several stages use has a unit with a copy on each. The first one stands for all where distinct
  // parameters are counted.
  int copy = 0, copies = 1;
  std::set<std::string> host_states = {};  // names of the parameters whose optimizer states stay in host memory
  // Bytes of optimizer states on each rank: in device memory, in host memory, and of the largest chunk of these that
  // visits the device (state_layout.h).
  std::int64_t optimizer_state_bytes = 0, host_state_bytes = 0, host_chunk_bytes = 0;

  // Value of ProgramUnit::tied_unreduced for a tied unit.
  bool ties_unreduced() const { return precision.reduction != DType::float32; }

  // Only for units that are not replicated.
  UnitSetup setup() const {
    return {layout,
            precision,
            policy.reduce_every == 0,
            policy.accumulate_sharded,
            frozen,
            policy.island_ranks,
            policy.residency == Residency::solved};
  }
};

// The tensor between stages for one microbatch: activations forward, gradients of the same shape backward.
struct PlannedBoundary {
  DType dtype = DType::float32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t bytes() const { return rows * columns * size_of(dtype); }
};

struct PlannedStage {
  int stage = 0;
  std::vector<std::unique_ptr<Segment>> segments;  // in forward order
  std::vector<PlannedUnit> units;
};

// Setup of the segments that a rank with these coordinates trains.
SegmentSetup segment_setup(const Config& config, const Coordinates& at);
// Makers of the segments that differ between uses of the model, such as training and generation.
struct SegmentMakers {
  std::function<std::unique_ptr<Segment>(const SegmentSetup& setup, int block)> attention = make_attention;
  std::function<std::unique_ptr<Segment>(const SegmentSetup& setup, int block)> state_space = make_state_space;
  std::function<std::unique_ptr<Segment>(const SegmentSetup& setup)> head = make_head;
};
// Segments of one stage, in forward order.
std::vector<std::unique_ptr<Segment>> make_segments(const Config& config, const SegmentSetup& setup, int stage,
                                                    const StageBlocks& blocks, const SegmentMakers& makers = {});
// One stage of a layout as a rank with these coordinates (tensor, expert, ...) holds it.
PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage,
                        const std::vector<StageBlocks>& layout);
// The same for given segments, which may compute something else with the stage's parameters (forward_plan.h).
PlannedStage plan_stage(const Config& config, const Mesh& mesh, int stage, const std::vector<StageBlocks>& layout,
                        std::vector<std::unique_ptr<Segment>> segments);
// The stage without its predictors, whose units stay: what a forward between training steps needs.
PlannedStage without_predictors(PlannedStage stage, const ModelConfig& model);
ModelConfig without_predictors(ModelConfig model);
// All stages of the rank with these coordinates, ascending.
std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at,
                                      const std::vector<StageBlocks>& layout);

// Inputs of a rank's stages besides parameters, the same for all its stages.
struct PlannedInputs {
  RotaryOptions rotary = {};           // for the table of angles that the blocks share
  std::vector<Range> positions;        // the positions of each sequence on this rank
  std::int64_t microbatch_tokens = 0;  // of the whole tensor group, at this context rank
  PlannedBoundary boundary;
  int data_ranks = 1, data_rank = 0;  // those that share the step's text, and this one among them
};
PlannedInputs plan_inputs(const Config& config, const Coordinates& at);

// Bytes that a segment keeps of a microbatch.
struct KeptBySegment {
  // Index in the stage of the first segment of the segment's region; absent if the forward keeps all activations.
  std::optional<int> region = {};
  std::int64_t bytes = 0;      // per microbatch, from the segment's forward on
  std::int64_t even = 0;       // with evenly routed tokens, at least
  std::int64_t may_leave = 0;  // of them, those that may wait in host memory (training.offload)
};
// By segment of the stage. With training.recompute = "full" or "keep_dispatch", a region is a block: segments of one
// scope whose forward can be recomputed. Embedding and head keep their activations: the embedding has almost none, and
// the head's backward follows its forward at once.
std::vector<KeptBySegment> kept_by_segments(const Config& config, const PlannedBoundary& boundary,
                                            const PlannedStage& stage);

// Tables of the stages that `plan` returns one after the other. Reductions in flight and the update of a step are left
// out.
ProgramTables stage_tables(const Config& config, const PlannedBoundary& boundary,
                           const std::function<PlannedStage(int stage)>& plan);

// Bytes that stages hold during the whole run: parameters, their reduced gradients, optimizer state.
BucketBytes static_bytes(std::span<const PlannedStage> stages);
// Without the chunks of states that visit the device.
void add_static_bytes(const PlannedUnit& unit, BucketBytes& bytes);
// Bytes of a rank's optimizer states and activations in host memory.
struct HostBytes {
  std::int64_t predicted = 0, measured = 0;
  bool operator==(const HostBytes&) const = default;
};
std::int64_t host_state_bytes(std::span<const PlannedStage> stages);
// Static buckets with measured bytes that differ from the predicted ones.
std::vector<Bucket> differing_static_buckets(const BucketBytes& predicted, const BucketBytes& measured);
// Every parameter of the model once, whole, in an order that all ranks agree on.
std::vector<ParameterSpec> model_parameters(const ModelConfig& model);

// Parameters of the whole model, and those that one token uses.
struct ParameterCount {
  std::int64_t total = 0, active = 0;
};
ParameterCount count_parameters(const ModelConfig& model);

}  // namespace weft
