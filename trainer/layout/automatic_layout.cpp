#include "trainer/layout/automatic_layout.h"

#include <algorithm>
#include <compare>
#include <limits>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Of the stage with most; less is better, and cost comes first.
struct Worst {
  double cost = 0.0, bytes = 0.0;
  auto operator<=>(const Worst&) const = default;
};
constexpr double infinite = std::numeric_limits<double>::infinity();

Worst larger(const Worst& a, const Worst& b) {
  return {std::max(a.cost, b.cost), std::max(a.bytes, b.bytes)};
}

// Of stages by the blocks [begin, end) they hold.
class Loads {
 public:
  Loads(const LayoutItems& items, int stages, int microbatches)
      : items_(items), stages_(stages), microbatches_(microbatches), until_(items.blocks.size() + 1) {
    for (std::size_t i = 0; i < items.blocks.size(); ++i) add(until_[i], items.blocks[i], until_[i + 1]);
  }

  int stages() const { return stages_; }
  int blocks() const { return static_cast<int>(items_.blocks.size()); }
  Worst of(int stage, int begin, int end) const {
    const LayoutItem all = sum(stage, begin, end);
    return {all.cost, all.resident_bytes + std::min(stages_ - stage, microbatches_) * all.activation_bytes};
  }

 private:
  static void add(const LayoutItem& a, const LayoutItem& b, LayoutItem& sum) {
    sum = {a.cost + b.cost, a.resident_bytes + b.resident_bytes, a.activation_bytes + b.activation_bytes};
  }
  LayoutItem sum(int stage, int begin, int end) const {
    const LayoutItem &from = until_[static_cast<std::size_t>(begin)], &to = until_[static_cast<std::size_t>(end)];
    LayoutItem all = {to.cost - from.cost, to.resident_bytes - from.resident_bytes,
                      to.activation_bytes - from.activation_bytes};
    if (stage == 0) add(all, items_.embedding, all);
    if (stage == stages_ - 1) add(all, items_.head, all);
    return all;
  }

  const LayoutItems& items_;
  int stages_, microbatches_;
  std::vector<LayoutItem> until_;  // sums of the blocks before each
};

struct Split {
  Worst worst;
  std::vector<int> counts;
};

// All blocks on the first `rows` stages, at least one each. Costs do not fall when a block is added.
Split best_split(const Loads& loads, int rows) {
  const int blocks = loads.blocks();
  const auto cell = [&](int s, int e) {
    return static_cast<std::size_t>(s) * static_cast<std::size_t>(blocks + 1) + static_cast<std::size_t>(e);
  };
  // best[s, e]: of the first e blocks on the first s stages; cut[s, e]: where the last of these begins.
  std::vector<Worst> best(cell(rows, blocks) + 1, Worst{infinite, infinite});
  std::vector<int> cut(best.size(), 0);
  best[cell(0, 0)] = {};
  for (int s = 1; s <= rows; ++s) {
    for (int end = s == rows ? blocks : s; end <= blocks; ++end) {
      Worst& least = best[cell(s, end)];
      for (int begin = end - 1; begin >= s - 1; --begin) {
        const Worst own = loads.of(s - 1, begin, end);
        if (own.cost > least.cost) break;
        const Worst worst = larger(best[cell(s - 1, begin)], own);
        if (worst > least) continue;
        least = worst;
        cut[cell(s, end)] = begin;
      }
    }
  }
  Split split{best[cell(rows, blocks)], std::vector<int>(static_cast<std::size_t>(loads.stages()), 0)};
  for (int s = rows, end = blocks; s >= 1; --s) {
    const int begin = cut[cell(s, end)];
    split.counts[static_cast<std::size_t>(s) - 1] = end - begin;
    end = begin;
  }
  return split;
}

std::vector<int> with_blocks_everywhere(const Loads& loads) {
  const int stages = loads.stages(), blocks = loads.blocks();
  Split split = best_split(loads, stages);
  if (stages > 1) {
    Split head_alone = best_split(loads, stages - 1);
    const Worst worst = larger(head_alone.worst, loads.of(stages - 1, blocks, blocks));
    if (worst.cost < split.worst.cost) return head_alone.counts;
  }
  return split.counts;
}

// One block a stage, none before stage `first`.
std::vector<int> one_block_each(const Loads& loads, int first) {
  std::vector<int> counts(static_cast<std::size_t>(loads.stages()), 0);
  std::fill_n(counts.begin() + first, loads.blocks(), 1);
  return counts;
}

// The embedding or the head alone.
std::vector<int> with_one_stage_to_spare(const Loads& loads) {
  const auto worst = [&](int first) {
    Worst most;
    for (int s = 0; s < loads.stages(); ++s) {
      const int begin = std::clamp(s - first, 0, loads.blocks()), end = std::clamp(s - first + 1, 0, loads.blocks());
      most = larger(most, loads.of(s, begin, end));
    }
    return most;
  };
  return one_block_each(loads, worst(1) <= worst(0) ? 1 : 0);
}

}  // namespace

std::vector<int> automatic_layout(const LayoutItems& items, int stages, int microbatches) {
  require(stages >= 1 && !items.blocks.empty(), "a layout has stages and blocks");
  const Loads loads(items, stages, microbatches);
  if (stages <= loads.blocks()) return with_blocks_everywhere(loads);
  if (stages == loads.blocks() + 1) return with_one_stage_to_spare(loads);
  return one_block_each(loads, stages - 1 - loads.blocks());
}

}  // namespace weft
