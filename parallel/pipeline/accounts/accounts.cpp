#include "parallel/pipeline/accounts/accounts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "parallel/pipeline/accounts/live_bytes.h"

namespace weft {

namespace {

bool performs(const Action& action, const ProgramCollective& part) {
  const Op during = part.during;
  if (is_row_exchange(action.op)) {
    return is_compute(during) && during != Op::backward_weight && row_exchange_of(during) == action.op &&
           part.beside == action.part.index + 1;
  }
  if (action.part.count > 1 && part.beside > 0) return false;
  // The weight gradient of a B in parts belongs to its last, other collectives to its first.
  if (during == Op::backward_weight && !action.part.last()) return false;
  if (during != Op::backward_weight && !action.part.first()) return false;
  if (during == Op::backward_input) return makes_input_gradient(action.op);
  if (during == Op::backward_weight) return makes_weight_gradient(action.op);
  return action.op == during;
}

}  // namespace

std::vector<ProgramCollective> collectives_of(const ProgramTables& tables, const Action& action) {
  std::vector<ProgramCollective> collectives;
  const auto add = [&](const std::vector<ProgramCollective>& parts) {
    std::ranges::copy_if(parts, std::back_inserter(collectives),
                         [&](const ProgramCollective& part) { return performs(action, part); });
  };
  if (action.unit) add(tables.units[*action.unit].collectives);
  if (action.segment) add(tables.segments[*action.segment].collectives);
  if (is_send(action.op)) collectives.push_back({action.op, CollectiveOp::send, Group::pp, 1, action.bytes});
  if (is_receive(action.op)) collectives.push_back({action.op, CollectiveOp::receive, Group::pp, 1, 0});
  add(tables.update);
  return collectives;
}

namespace {

// The units that an action of microbatch 0 reads.
std::span<const int> read_of_first(const Program& program, const Action& action) {
  if (action.microbatch != 0 || !action.segment) return {};
  const ProgramSegment& segment = program.segments[*action.segment];
  if (!reads_units(segment, action.op)) return {};
  return segment.units;
}

// The bytes kept of a unit between its last read in the forward of microbatch 0 and the first read in its backward.
struct Held {
  bool forward_over = false, read_again = false;
  std::int64_t bytes = 0;
};

std::int64_t held_bytes(const Program& program, int pipeline_rank) {
  std::vector<Held> units(program.units.size());
  for (const Action& action : program.ranks.at(pipeline_rank)) {
    for (const int unit : read_of_first(program, action)) {
      Held& held = units[unit];
      if (held.read_again) continue;
      if (action.op == Op::forward) {
        held.forward_over = true;
        held.bytes = program.units[unit].unsharded_bytes;
      } else {
        held.read_again = true;
      }
    }
    if (!action.unit) continue;
    Held& held = units[*action.unit];
    if (!held.forward_over || held.read_again) continue;
    if (action.op == Op::reshard) held.bytes = 0;
    if (action.op == Op::reshard_secondary) held.bytes = program.units[*action.unit].island_bytes;
  }
  std::int64_t sum = 0;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (!program.units[unit].replicated) sum += units[unit].bytes;
  }
  return sum;
}

}  // namespace

ParameterWindow parameter_window(const Program& program, int pipeline_rank) {
  ParameterWindow window{.peak_bytes = live_integral(program, pipeline_rank).peak[Bucket::unsharded_parameters],
                         .held_bytes = held_bytes(program, pipeline_rank)};
  for (const Action& action : program.ranks[pipeline_rank]) {
    if (is_gather(action.op)) {
      window.gathered_bytes += action.bytes;
      ++window.gathers;
    }
    if (action.op == Op::unshard_secondary) ++window.island_gathers;
    if (is_reduction(action.op)) ++window.reductions;
  }
  return window;
}

std::int64_t host_activation_bytes(const Program& program, int pipeline_rank) {
  struct Blocks {
    std::int64_t used = 0, most = 0;
  };
  std::map<std::int64_t, Blocks> by_size;
  for (const Action& action : program.ranks.at(pipeline_rank)) {
    if (!is_host_copy(action.op)) continue;
    Blocks& blocks = by_size[action.bytes];
    blocks.used += action.op == Op::offload ? 1 : -1;
    blocks.most = std::max(blocks.most, blocks.used);
  }
  std::int64_t bytes = 0;
  for (const auto& [size, blocks] : by_size) bytes += size * blocks.most;
  return bytes;
}

}  // namespace weft
