#include "trainer/layout/automatic_layout.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <tuple>

#include "parallel/runtime/error.h"
#include "trainer/layout/chunked_layout.h"

namespace weft {
namespace {

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

// The largest cost and bytes of a stage; less is better, and cost comes first.
struct Worst {
  std::int64_t cost = 0, bytes = 0;
  auto operator<=>(const Worst&) const = default;
};
constexpr Worst impossible = {no_limit, no_limit};

Worst larger(const Worst& a, const Worst& b) {
  return {std::max(a.cost, b.cost), std::max(a.bytes, b.bytes)};
}

// Cost and bytes of a stage with the blocks [begin, end). Adding a block lowers neither.
using Measure = std::function<Worst(int stage, int begin, int end)>;

struct Split {
  Worst worst;
  std::vector<int> bounds;  // the first block of each stage, and the number of blocks
};

// The best split of all blocks over the first `rows` stages, at least one each.
Split best_split(const LayoutLoads& loads, const Measure& measure, int rows) {
  const int blocks = loads.blocks();
  const auto cell = [&](int s, int e) { return s * (blocks + std::size_t{1}) + e; };
  // best[s, e]: of the first e blocks on the first s stages; cut[s, e]: the first block of the last of these stages.
  std::vector<Worst> best(cell(rows, blocks) + 1, impossible);
  std::vector<int> cut(best.size(), 0);
  best[cell(0, 0)] = {};
  for (int s = 1; s <= rows; ++s) {
    for (int end = s == rows ? blocks : s; end <= blocks; ++end) {
      Worst& least = best[cell(s, end)];
      for (int begin = end - 1; begin >= s - 1; --begin) {
        const Worst own = measure(s - 1, begin, end);
        if (own.cost > least.cost || own == impossible) break;
        const Worst worst = larger(best[cell(s - 1, begin)], own);
        if (worst > least) continue;
        least = worst;
        cut[cell(s, end)] = begin;
      }
    }
  }
  Split split{best[cell(rows, blocks)], std::vector<int>(loads.stages() + 1, blocks)};
  if (split.worst == impossible) return split;
  for (int s = rows, end = blocks; s >= 1; --s) {
    end = cut[cell(s, end)];
    split.bounds[s - 1] = end;
  }
  return split;
}

// The best split with a block on every stage and, for two stages or more, the best with the head alone on the last.
std::vector<Split> both_splits(const LayoutLoads& loads, const Measure& measure) {
  const int stages = loads.stages(), blocks = loads.blocks();
  std::vector<Split> splits{best_split(loads, measure, stages)};
  if (stages == 1) return splits;
  splits.push_back(best_split(loads, measure, stages - 1));
  splits.back().worst = larger(splits.back().worst, measure(stages - 1, blocks, blocks));
  return splits;
}

Split better_of(std::vector<Split> splits) {
  return splits.size() > 1 && splits[1].worst.cost < splits[0].worst.cost ? std::move(splits[1]) : std::move(splits[0]);
}

std::vector<int> deal_to_stages(const LayoutLoads& loads, std::int64_t limit) {
  std::vector<int> lone(loads.stages() + 1);  // bounds with values for one stage only
  const auto bounds_of = [&](int stage, int begin, int end) -> const std::vector<int>& {
    lone[stage] = begin;
    lone[stage + 1] = end;
    return lone;
  };
  const auto needed = [&](int stage, int begin, int end) {
    return loads.needed_bytes(loads.rank_of(stage), bounds_of(stage, begin, end));
  };
  const auto within = [&](std::int64_t most) {
    return better_of(both_splits(loads, [&, most](int stage, int begin, int end) {
      if (most != no_limit && needed(stage, begin, end) > most) return impossible;
      return Worst{loads.cost(stage, begin, end), loads.bytes(loads.rank_of(stage), bounds_of(stage, begin, end))};
    }));
  };
  const Split split = within(limit);
  if (split.worst.cost != no_limit) return split.bounds;
  const Split least = better_of(both_splits(loads, [&](int stage, int begin, int end) {
    return Worst{needed(stage, begin, end), 0};
  }));
  return within(least.worst.cost).bounds;
}

std::vector<int> deal_several_each(const LayoutLoads& loads, std::int64_t limit, KnownSplits* known) {
  const auto find = [&] {
    std::vector<std::vector<int>> starts;
    for (Split& split : both_splits(loads, [&](int stage, int begin, int end) {
           return Worst{loads.cost(stage, begin, end), 0};
         })) {
      starts.push_back(std::move(split.bounds));
    }
    return cheapest_split(loads, limit, starts);
  };
  return with_fewest_bytes(loads, known && limit == no_limit ? known->find_or(loads, find) : find());
}

// One block a stage, none before stage `first`.
std::vector<int> one_block_each(const LayoutLoads& loads, int first) {
  std::vector<int> bounds;
  for (int stage = 0; stage <= loads.stages(); ++stage) bounds.push_back(std::clamp(stage - first, 0, loads.blocks()));
  return bounds;
}

// One stage without blocks: the embedding alone on the first, or the head alone on the last.
std::vector<int> with_one_stage_to_spare(const LayoutLoads& loads, std::int64_t limit) {
  const std::vector<int> embedding_alone = one_block_each(loads, 1), head_alone = one_block_each(loads, 0);
  const LayoutScore embedding = loads.score(embedding_alone), head = loads.score(head_alone);
  const auto order = [](const LayoutScore& score) {
    return std::tuple(score.rank_cost, score.stage_cost, score.bytes);
  };
  if (std::max(embedding.needed_bytes, head.needed_bytes) > limit && embedding.needed_bytes != head.needed_bytes)
    return embedding.needed_bytes < head.needed_bytes ? embedding_alone : head_alone;
  return order(embedding) <= order(head) ? embedding_alone : head_alone;
}

std::vector<int> deal(const LayoutLoads& loads, std::int64_t limit, KnownSplits* known) {
  if (loads.stages() <= loads.blocks()) {
    return loads.stages() == loads.ranks() ? deal_to_stages(loads, limit) : deal_several_each(loads, limit, known);
  }
  if (loads.stages() == loads.blocks() + 1) return with_one_stage_to_spare(loads, limit);
  return one_block_each(loads, loads.stages() - 1 - loads.blocks());
}

}  // namespace

ScheduleResidents one_stage_each(int stages, int microbatches) {
  ScheduleResidents ranks;
  for (int stage = 0; stage < stages; ++stage) {
    ranks.rank_of_stage.push_back(stage);
    ranks.kept.push_back({{std::min(stages - stage, microbatches)}});
  }
  return ranks;
}

std::vector<int> automatic_layout(const LayoutItems& items, const ScheduleResidents& ranks,
                                  std::optional<double> memory_limit, KnownSplits* known) {
  require(ranks.stages() >= 1 && !items.blocks.empty(), "a layout has stages and blocks");
  const LayoutLoads loads(items, ranks);
  const std::vector<int> bounds =
      deal(loads, memory_limit ? static_cast<std::int64_t>(*memory_limit) : no_limit, known);
  std::vector<int> counts;
  for (std::size_t stage = 0; stage + 1 < bounds.size(); ++stage) counts.push_back(bounds[stage + 1] - bounds[stage]);
  return counts;
}

}  // namespace weft
