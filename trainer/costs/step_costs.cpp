#include "trainer/costs/step_costs.h"

#include <charconv>
#include <fstream>
#include <sstream>

#include "parallel/runtime/error.h"
#include "trainer/costs/cost_table.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

// Of one token: with weights on one side, and without.
struct TokenFlops {
  double products = 0.0, scores = 0.0;
};

// The block of "blocks.3.attention".
std::size_t block_of(std::string_view segment) {
  const std::string_view number = segment.substr(segment.find('.') + 1);
  std::size_t block = 0;
  std::from_chars(number.data(), number.data() + number.size(), block);
  return block;
}

TokenFlops token_flops(const Config& config, std::string_view segment) {
  if (segment == "embedding") return {};
  if (segment == "head") return {head_flops(config.model), 0.0};
  // A dense block without its MLP is attention, and without positions to look at, its projections.
  ModelConfig attention = config.model;
  attention.intermediate_size = 0;
  const double projections = block_flops(attention, BlockKind::dense, 0);
  const double whole = block_flops(attention, BlockKind::dense, config.training.sequence_length);
  if (segment.ends_with(".attention")) return {projections, whole - projections};
  const BlockKind kind = config.model.blocks.at(block_of(segment));
  return {block_flops(config.model, kind, config.training.sequence_length) - whole, 0.0};
}

}  // namespace

std::vector<SegmentFlops> segment_flops(const Config& config, const ProgramTables& tables) {
  const double tokens =
      static_cast<double>(config.microbatch_tokens()) / (config.parallelism.context * config.parallelism.tensor);
  std::vector<SegmentFlops> flops;
  for (const ProgramSegment& segment : tables.segments) {
    const TokenFlops token = token_flops(config, segment.name);
    bool trains = false;
    for (int unit : segment.units) trains = trains || !tables.units[static_cast<std::size_t>(unit)].frozen;
    flops.push_back({tokens * (token.products + token.scores), tokens * (token.products + 2.0 * token.scores),
                     trains ? tokens * token.products : 0.0});
  }
  return flops;
}

ProgramCosts modelled_costs(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const HardwareCosts& hardware) {
  const ProgramTables tables = program_tables(config, mesh, at);
  return modelled_costs(tables, segment_flops(config, tables), hardware, group_sizes(mesh));
}

ProgramCosts step_costs(const Config& config, const Mesh& mesh, const Coordinates& at) {
  if (!config.pipeline.has_cost_table()) {
    return modelled_costs(config, mesh, at, hardware_costs(hardware_of(config), config, mesh));
  }
  std::ifstream file(config.pipeline.costs, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    fail_request("pipeline.costs: {} cannot be read, or is empty", config.pipeline.costs);
  }
  return table_costs(parse_cost_table(text.str(), config.pipeline.costs), program_tables(config, mesh, at),
                     group_sizes(mesh));
}

}  // namespace weft
