// The meaning of a stage layout, stage by stage and rank by rank, before anything runs: the table of `weft layout
// show`.
#pragma once

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/layout/stage_layout.h"

namespace weft {

// Demands of a stage, or of all stages of a pipeline rank. Parameters and operations are those of the model. Bytes are
// those of one rank, the first of the stage's ranks, and live all step. step_forecast.h gives the other bytes of a run.
struct LayoutDemands {
  std::int64_t parameters = 0;
  std::int64_t active_parameters = 0;  // those that a token uses
  double forward_flops = 0;            // of a token
  std::int64_t parameter_bytes = 0;    // stored, sharded and replicated
  std::int64_t gradient_bytes = 0;     // of shards and of replicated parameters
  std::int64_t optimizer_bytes = 0;
  double cost = 0;  // of a microbatch, as pipeline.layout = "auto" weighs it (layout_items)
  double load = 0;  // cost relative to the mean of the stages, or of the ranks

  void add(const LayoutDemands& other);  // all except the load
};

struct StageSummary : LayoutDemands {
  int stage = 0, rank = 0, chunk = 0;  // the pipeline rank that runs the stage, and its chunk there
  std::string layers;                  // "E d e*2"; empty if the stage holds nothing
};

struct RankSummary : LayoutDemands {
  int rank = 0;
  std::vector<int> stages;  // by chunk
};

struct LayoutSummary {
  std::string layout;  // as text that pipeline.layout takes
  std::string schedule;
  std::string placement;  // "looped", "v", or "own"
  int chunks = 1;
  std::vector<StageSummary> stages = {};
  std::vector<RankSummary> ranks = {};

  // The largest load of a stage or rank relative to the mean, which the pipeline waits for; 1: even.
  double stage_imbalance() const;
  double rank_imbalance() const;
};

// Throws Error (request) with the faults of a table of costs.
LayoutSummary summarize_layout(const Config& config, const std::vector<StageBlocks>& layout);
// For the layout of the configuration, written or automatic. Throws Error (request) if it has none.
LayoutSummary summarize_layout(const Config& config);

}  // namespace weft
