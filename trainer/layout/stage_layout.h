// The blocks of each stage, from `pipeline.layout` and the keys beside it. Stages are numbered in model order. The
// placement of the schedule decides which rank runs a stage (parallel/pipeline/program/program.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/layout/automatic_layout.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// What a caller knows of the inputs and steps of an automatic layout, which is then not found again; null: nothing.
struct KnownOfLayout {
  const LayoutItems* items = nullptr;            // as layout_items()
  const ScheduleResidents* residents = nullptr;  // as schedule_residents()
  KnownSplits* splits = nullptr;                 // as for automatic_layout()
};

// All stages of the configuration, pipeline x chunks of them. Throws Error (request) with layout_faults() and
// end_stage_faults(), and for "auto" if the schedule refuses the numbers.
std::vector<StageBlocks> stage_layout(const Config& config, const KnownOfLayout& known = {});

// Whether pipeline.layout is "auto".
bool has_automatic_layout(const Config& config);

// Why the written layout is no layout of the model, with the place in its text and a correction. Empty for "auto",
// which always is one.
std::vector<std::string> layout_faults(const Config& config);
// The same for pipeline.first_stage_blocks and last_stage_blocks.
std::vector<std::string> end_stage_faults(const Config& config);

// Warnings about a layout that can run but is probably not intended, a sentence each.
std::vector<std::string> layout_warnings(const Config& config);

// "Ede": the symbols of layout_text.h.
std::string stage_symbols(const StageBlocks& stage, const ModelConfig& model);
// The same configuration with these stages written out if its layout is "auto". A caller that plans many of its stages
// then has blocks assigned only once.
Config with_layout(Config config, const std::vector<StageBlocks>& layout);

// "Ed|(e|)*3eL". As pipeline.layout it gives the same stages.
std::string to_string(const std::vector<StageBlocks>& layout, const ModelConfig& model);

// All stages of the rank with these coordinates, ascending, with the blocks that stage_layout() assigns to them.
// Finding an automatic layout takes time: to plan for several ranks, call stage_layout() once (stage_plan.h).
std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at);
// Calls use(rank, stage, first) for every stage of every rank at a pipeline position. Boxes depend only on the
// coordinates in tensor and expert groups, so ranks share plans; `first` is true for the first rank with a plan.
void for_each_stage(const Config& config, const Mesh& mesh, int pipeline_rank,
                    const std::function<void(int rank, const PlannedStage& stage, bool first)>& use);

// The inputs of the automatic layout: the demands of a model's pieces on a rank, and the microbatches that the schedule
// keeps (layout_inputs.cpp).
//
// Costs are modelled: matrix-product operations of a forward (step_flops.h). Bytes come from the plan of a stage with
// one block of each kind. They are those of a rank with everything of a unit there at once, and the least. Units are
// assumed to hold one block at most.
LayoutItems modelled_items(const Config& config);

// The same, with costs from the table of pipeline.costs if it names one: the seconds of a microbatch, forward and
// backward. Throws Error (request) with the faults of the file.
LayoutItems layout_items(const Config& config);

// The configuration with one block of each kind and width and the predictors, on one stage and without a schedule of
// its own. Every block is recomputed where blocks are.
Config one_of_each(const Config& config);

// As one_stage_each() if each rank runs one stage and there is no memory limit, otherwise from the compute order.
// Throws Error (request) if the schedule refuses the numbers.
ScheduleResidents schedule_residents(const Config& config);

}  // namespace weft
