#include "trainer/stage_layout.h"

#include <algorithm>
#include <limits>

#include "parallel/runtime/error.h"

namespace weft {

double block_flops(const ModelConfig& model, BlockKind kind, std::int64_t sequence_length) {
  const auto h = static_cast<double>(model.hidden_size);
  const auto q = static_cast<double>(model.num_attention_heads * model.head_dim);
  const auto kv = static_cast<double>(model.num_key_value_heads * model.head_dim);
  const double attention = 2 * h * (2 * q + 2 * kv) + 2 * q * static_cast<double>(sequence_length);
  if (kind == BlockKind::dense) return attention + 6 * h * static_cast<double>(model.intermediate_size);
  const MoeConfig& moe = model.moe;
  const auto width =
      static_cast<double>(moe.num_experts_per_tok * moe.moe_intermediate_size + moe.shared_expert_intermediate_size);
  return attention + 6 * h * width + 2 * h * static_cast<double>(moe.num_experts);
}

double head_flops(const ModelConfig& model) {
  return 2.0 * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
}

std::vector<StageBlocks> automatic_layout(const ModelConfig& model, std::int64_t sequence_length, int stages) {
  const int blocks = static_cast<int>(model.blocks.size());
  if (stages > blocks) {
    fail_request("pipeline {} needs at least one block a stage, the model has {}", stages, blocks);
  }
  std::vector<double> until(static_cast<std::size_t>(blocks) + 1, 0.0);
  for (int i = 0; i < blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    until[at + 1] = until[at] + block_flops(model, model.blocks[at], sequence_length);
  }
  const double head = head_flops(model);

  // best[s][e]: the least largest load when the first e blocks stand on the first s stages.
  constexpr double impossible = std::numeric_limits<double>::infinity();
  std::vector best(static_cast<std::size_t>(stages) + 1,
                   std::vector<double>(static_cast<std::size_t>(blocks) + 1, impossible));
  std::vector cut(static_cast<std::size_t>(stages) + 1, std::vector<int>(static_cast<std::size_t>(blocks) + 1, 0));
  best[0][0] = 0.0;
  for (int s = 1; s <= stages; ++s) {
    for (int end = s; end <= blocks; ++end) {
      for (int begin = s - 1; begin < end; ++begin) {
        const auto row = static_cast<std::size_t>(s), b = static_cast<std::size_t>(begin),
                   e = static_cast<std::size_t>(end);
        const double load = until[e] - until[b] + (s == stages ? head : 0.0);
        const double worst = std::max(best[row - 1][b], load);
        if (worst < best[row][e]) {
          best[row][e] = worst;
          cut[row][e] = begin;
        }
      }
    }
  }
  std::vector<StageBlocks> layout(static_cast<std::size_t>(stages));
  int end = blocks;
  for (int s = stages; s >= 1; --s) {
    const int begin = cut[static_cast<std::size_t>(s)][static_cast<std::size_t>(end)];
    layout[static_cast<std::size_t>(s) - 1] = {begin, end - begin, s == 1, s == stages};
    end = begin;
  }
  return layout;
}

}  // namespace weft
