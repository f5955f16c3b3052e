// Costs as a file: measured or assumed figures by name, so that one table serves many layouts. In TOML, as
// docs/profiling.md tells users:
//
//   [segments]                                # seconds for one microbatch, collectives inside included
//   attention = { forward = 1e-3, backward_input = 2e-3, backward_weight = 1e-3 }
//   "blocks.0.*" = { forward = 3e-3, backward_input = 3e-3, backward_weight = 3e-3 }
//   [units]                                   # seconds on the lane of the action
//   "blocks.*" = { gather = 1e-3, island_gather = 0.0, scatter = 0.0, reduce = 2e-3 }
//   "*embedding" = { gather = 1e-3, reduce = 2e-3, tie = 1e-3 }  # with copies on two stages
//   [messages]                                # seconds, by the earlier of the two stages
//   "*" = 1e-4
//   [links]                                   # for units and messages without an entry above; pp carries messages
//   dp_shard = { latency = 1e-5, bytes_per_second = 1e11 }
//   [update]
//   gradient_norm = 1e-4
//   optimizer_step = 1e-3
//
// A key of the first three sections is a name, or a pattern with `*` and `?`. For segments it may be a kind: embedding,
// attention, state_space, mlp, experts, head, passage. A passage is a stage without blocks and takes no time by
// default. The best fit of a name is used: the name itself, then the pattern with the most other characters, then the
// kind. Fields that a value leaves out are 0. Segments with experts may say how long their exchanges of rows take:
// forward_out, forward_back, backward_out, backward_back (costs.h). A shared expert covers forward_covered and
// backward_covered of them. `host_copy` is the time of OFFLOAD, or of RELOAD.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/cost_model.h"

namespace weft {

struct CostTable {
  std::map<std::string, ComputeCost> segments = {};
  std::map<std::string, UnitCost> units = {};
  std::map<std::string, double> messages = {};
  std::map<Group, LinkCost> links = {};
  double gradient_norm = 0.0, optimizer_step = 0.0;

  bool operator==(const CostTable&) const = default;
};

// `name` stands for the file in messages. Throws Error (request) with all faults, each with line, column and a caret.
CostTable parse_cost_table(const std::string& text, const std::string& name);
// Of the file that pipeline.costs names. Throws Error (request) naming the key if it cannot be read.
CostTable configured_cost_table(const std::string& file);
// Reads back as the same table, bit for bit.
std::string to_toml(const CostTable& table);

// By segment. Throws Error (request) naming a segment without an entry, or with two entries that fit equally well.
std::vector<ComputeCost> segment_costs(const CostTable& table, std::span<const ProgramSegment> segments);
// Throws Error (request) the same for units and messages, too.
ProgramCosts table_costs(const CostTable& table, const ProgramTables& tables, const GroupSizes& sizes);

}  // namespace weft
