// What the stages of a layout hold and do on a rank, derived from the configuration before anything is allocated: their
// segments, their shard units with layout, groups and policy, and what the tables of a program say of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "layers/attention.h"
#include "layers/head.h"
#include "layers/kernels/rotary.h"
#include "layers/segment.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "parallel/shard/unit.h"
#include "parallel/shard/unit_plan.h"
#include "trainer/config/config.h"
#include "trainer/plan/stage_blocks.h"

namespace weft {

// Where embedding and head share a weight on different stages each has a unit with a copy of it. The embedding's stands
// for both where distinct parameters are counted.
enum class TiedCopy : std::uint8_t { none, of_embedding, of_head };

struct PlannedUnit {
  UnitPlan plan;
  UnitLayout layout;  // of the rank's box; unused for replicated parameters
  UnitPrecision precision;
  UnitPolicy policy;
  bool frozen = false;
  Group shard_group = Group::dp_shard, replicate_group = Group::dp_replicate, island_group = Group::dp_island;
  TiedCopy tied = TiedCopy::none;
  std::int64_t optimizer_state_bytes = 0;  // on each rank

  // ProgramUnit::tied_unreduced, of a unit that is tied.
  bool ties_unreduced() const { return precision.reduction != DType::float32; }

  // Of a unit that is not replicated.
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

// What stages hand to each other for one microbatch: activations forward, gradients of the same shape back.
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

// What decides the segments that a rank with these coordinates trains with.
SegmentSetup segment_setup(const Config& config, const Coordinates& at);
// What makes the segments that are not the same in every use of the model.
struct SegmentMakers {
  std::function<std::unique_ptr<Segment>(const SegmentSetup& setup, int block)> attention = make_attention;
  std::function<std::unique_ptr<Segment>(const SegmentSetup& setup)> head = make_head;
};
// Of one stage, in forward order.
std::vector<std::unique_ptr<Segment>> make_segments(const Config& config, const SegmentSetup& setup, int stage,
                                                    const StageBlocks& blocks, const SegmentMakers& makers = {});
// One stage of a layout as a rank with these coordinates (tensor, expert, ...) would hold it.
PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage,
                        const std::vector<StageBlocks>& layout);
// The same of segments that compute something else of the stage's parameters, as forward_plan.h makes them.
PlannedStage plan_stage(const Config& config, const Mesh& mesh, int stage, const StageBlocks& blocks,
                        std::vector<std::unique_ptr<Segment>> segments);
// All that the rank with these coordinates runs, ascending.
std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at,
                                      const std::vector<StageBlocks>& layout);

// What a rank's stages compute with, besides parameters: the same for all of them.
struct PlannedInputs {
  RotaryOptions rotary;                // what the blocks' shared table of angles is made from
  std::vector<Range> positions;        // of each sequence that this rank holds
  std::int64_t microbatch_tokens = 0;  // of the whole tensor group, at this context rank
  PlannedBoundary boundary;
};
PlannedInputs plan_inputs(const Config& config, const Coordinates& at);

// Of stages that `plan` gives one after the other. What a step has besides, reductions in flight and update, is left
// out.
ProgramTables stage_tables(const Config& config, const PlannedBoundary& boundary,
                           const std::function<PlannedStage(int stage)>& plan);

// What stages hold all run: parameters, their reduced gradients, optimizer state.
BucketBytes static_bytes(std::span<const PlannedStage> stages);
// What a rank holds when the sum is largest, before it does. Static buckets are parameters, gradients that live all run
// and optimizer state: exact to the byte on any device. On the CPU all are (dry_run.h), but for rows that a router
// sends to other ranks.
struct PredictedMemory {
  BucketBytes bytes;
  static bool is_static(Bucket bucket);
};
// Static buckets whose measured bytes are not those predicted.
std::vector<Bucket> differing_static_buckets(const BucketBytes& predicted, const BucketBytes& measured);
// Every parameter of the model once, whole, in an order that all ranks agree on.
std::vector<ParameterSpec> model_parameters(const ModelConfig& model);

// Parameters of the whole model, and those that one token uses.
struct ParameterCount {
  std::int64_t total = 0, active = 0;
};
ParameterCount count_parameters(const ModelConfig& model);

}  // namespace weft
