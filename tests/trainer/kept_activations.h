// Activations of a rank, from its program alone: what a run's ledger must hold at its peak, and what may come on top.
#pragma once

#include <algorithm>
#include <set>
#include <utility>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/program.h"
#include "trainer/config/config.h"

namespace weft {

// The largest that kept activations become along one rank's list, whatever else is alive.
inline std::int64_t largest_kept(Program program, int pipeline_rank) {
  for (ProgramUnit& unit : program.units) {
    unit.unsharded_bytes = unit.island_bytes = 0;
    unit.gradient_bytes = unit.reduce_input_bytes = unit.reduce_part_bytes = 0;
  }
  return transient_peak(program, pipeline_rank).buckets[Bucket::activations];
}

// Tensors between stages that a rank may hold at once. They are messages not yet read, the output of a stage for the
// next one on the same rank, and messages sent. The last one on each lane to each peer stays until the next.
inline std::int64_t most_between_stages(const Program& program, int pipeline_rank) {
  std::set<std::pair<int, int>> waiting;  // (stage that reads it, microbatch)
  std::set<std::pair<Lane, int>> sent;
  std::size_t most = 0;
  const auto is_here = [&](int stage) {
    return stage >= 0 && stage < static_cast<int>(program.stages.size()) &&
           program.stages[static_cast<std::size_t>(stage)].rank == pipeline_rank;
  };
  for (const Action& action : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    if (is_send(action.op)) sent.insert({lane_of(program, action), *action.peer});
    if (is_receive(action.op)) waiting.insert({*action.stage, *action.microbatch});
    if (hands_on(action.op)) {
      const auto& segments = program.stages[static_cast<std::size_t>(*action.stage)].segments;
      const bool forward = action.op == Op::forward;
      const int first = forward ? segments.front() : segments.back(),
                last = forward ? segments.back() : segments.front();
      const int next = *action.stage + (forward ? 1 : -1);
      if (*action.segment == first) waiting.erase({*action.stage, *action.microbatch});
      if (*action.segment == last && is_here(next)) waiting.insert({next, *action.microbatch});
    }
    most = std::max(most, waiting.size() + sent.size());
  }
  return static_cast<std::int64_t>(most);
}

// The memory of one running segment besides, in float32 on one tensor rank. It has the tensor it is handed or hands on.
// An input gradient has more, on top of the larger of what is kept before it and after it. Attention has all it kept
// when it makes dqkv, beside its copy of dy, dout and dqkv itself. An MLP has what it kept, beside its copy of dy,
// dactivated and dx. The head has dnormed. A forward makes nothing but what it keeps and hands on, a weight gradient
// nothing.
inline std::int64_t most_of_a_segment(const Config& config) {
  const ModelConfig& model = config.model;
  const std::int64_t queries = model.num_attention_heads * model.head_dim;
  const std::int64_t keys_values = 2 * model.num_key_value_heads * model.head_dim;
  const std::int64_t inside =
      std::max(model.hidden_size + queries + (queries + keys_values), 2 * model.hidden_size + model.intermediate_size);
  return config.microbatch_tokens() * (model.hidden_size + inside) * 4;
}

}  // namespace weft
