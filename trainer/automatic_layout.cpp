#include "trainer/automatic_layout.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

// Of stages by the blocks [begin, end) they hold.
class Loads {
 public:
  Loads(const LayoutItems& items, int stages, int microbatches)
      : items_(items), stages_(stages), microbatches_(microbatches), until_(items.blocks.size() + 1) {
    for (std::size_t i = 0; i < items.blocks.size(); ++i) add(until_[i], items.blocks[i], until_[i + 1]);
  }

  int stages() const { return stages_; }
  int blocks() const { return static_cast<int>(items_.blocks.size()); }
  double cost(int stage, int begin, int end) const { return sum(stage, begin, end).cost; }
  double memory(int stage, int begin, int end) const {
    const LayoutItem all = sum(stage, begin, end);
    return all.resident_bytes + std::min(stages_ - stage, microbatches_) * all.activation_bytes;
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
  double worst = infinite;
  std::vector<int> counts = {};
};

using Load = std::function<double(int stage, int begin, int end)>;

// All blocks on the first `rows` stages, at least one each, so that the largest `load` is smallest; every prefix of the
// stages is as good as it can be for its blocks, and among equals a later stage gets more. Splits with a stage whose
// `other` load is beyond `bound` are left out. Neither load falls when a block is added.
Split best_split(const Loads& loads, int rows, const Load& load, const Load& other, double bound) {
  const int blocks = loads.blocks();
  const auto cell = [&](int s, int e) {
    return static_cast<std::size_t>(s) * static_cast<std::size_t>(blocks + 1) + static_cast<std::size_t>(e);
  };
  // best[s, e]: of the first e blocks on the first s stages; cut[s, e]: where its last stage begins.
  std::vector<double> best(cell(rows, blocks) + 1, infinite);
  std::vector<int> cut(best.size(), 0);
  best[cell(0, 0)] = 0.0;
  for (int s = 1; s <= rows; ++s) {
    for (int end = s == rows ? blocks : s; end <= blocks; ++end) {
      double& least = best[cell(s, end)];
      for (int begin = end - 1; begin >= s - 1; --begin) {
        const double own = load(s - 1, begin, end);
        if (own > least || other(s - 1, begin, end) > bound) break;
        const double worst = std::max(best[cell(s - 1, begin)], own);
        if (worst > least || worst == infinite) continue;
        least = worst;
        cut[cell(s, end)] = begin;
      }
    }
  }
  Split split{best[cell(rows, blocks)], std::vector<int>(static_cast<std::size_t>(loads.stages()), 0)};
  for (int s = rows, end = blocks; s >= 1 && split.worst < infinite; --s) {
    const int begin = cut[cell(s, end)];
    split.counts[static_cast<std::size_t>(s) - 1] = end - begin;
    end = begin;
  }
  return split;
}

std::vector<int> with_blocks_everywhere(const Loads& loads) {
  const int stages = loads.stages(), blocks = loads.blocks();
  const Load cost = [&](int s, int begin, int end) { return loads.cost(s, begin, end); };
  const Load memory = [&](int s, int begin, int end) { return loads.memory(s, begin, end); };
  int rows = stages;
  double least_cost = best_split(loads, rows, cost, memory, infinite).worst, least_memory = 0.0;
  if (stages > 1) {
    const double head = loads.cost(stages - 1, blocks, blocks);
    const double alone = std::max(head, best_split(loads, rows - 1, cost, memory, infinite).worst);
    if (alone < least_cost) {
      rows = stages - 1;
      least_cost = alone;
      least_memory = loads.memory(stages - 1, blocks, blocks);
    }
  }
  least_memory = std::max(least_memory, best_split(loads, rows, memory, cost, least_cost).worst);
  return best_split(loads, rows, cost, memory, least_memory).counts;
}

// One block a stage at most; `first` is the first stage that holds one.
std::vector<int> one_block_each(const Loads& loads, int first) {
  std::vector<int> counts(static_cast<std::size_t>(loads.stages()), 0);
  std::fill_n(counts.begin() + first, loads.blocks(), 1);
  return counts;
}

std::vector<int> with_one_stage_more_than_blocks(const Loads& loads) {
  const auto worst = [&](int first, auto load) {
    double most = 0.0;
    for (int s = 0; s < loads.stages(); ++s) {
      const int begin = std::clamp(s - first, 0, loads.blocks()), end = std::clamp(s - first + 1, 0, loads.blocks());
      most = std::max(most, load(s, begin, end));
    }
    return most;
  };
  const auto cost = [&](int s, int begin, int end) { return loads.cost(s, begin, end); };
  const auto memory = [&](int s, int begin, int end) { return loads.memory(s, begin, end); };
  const double embedding_alone = worst(1, cost), head_alone = worst(0, cost);
  const bool ends_equal = embedding_alone == head_alone;
  const bool embedding = ends_equal ? worst(1, memory) <= worst(0, memory) : embedding_alone < head_alone;
  return one_block_each(loads, embedding ? 1 : 0);
}

}  // namespace

std::vector<int> automatic_layout(const LayoutItems& items, int stages, int microbatches) {
  require(stages >= 1 && !items.blocks.empty(), "a layout has stages and blocks");
  const Loads loads(items, stages, microbatches);
  if (stages <= loads.blocks()) return with_blocks_everywhere(loads);
  if (stages == loads.blocks() + 1) return with_one_stage_more_than_blocks(loads);
  return one_block_each(loads, stages - 1 - loads.blocks());
}

}  // namespace weft
