// The automatic layout where ranks run several stages, and under a limit of memory, against all layouts there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "parallel/pipeline/program/program.h"
#include "trainer/layout/automatic_layout.h"

namespace weft {
namespace {

using Counts = std::vector<int>;

// All ways to deal `blocks` to `stages`, one at least to each.
void all_counts(int blocks, int stages, Counts& dealt, std::vector<Counts>& all) {
  if (stages == 0) {
    if (blocks == 0) all.push_back(dealt);
    return;
  }
  for (int count = 1; count <= blocks; ++count) {
    dealt.push_back(count);
    all_counts(blocks - count, stages - 1, dealt, all);
    dealt.pop_back();
  }
}

struct Load {
  double rank = 0, stage = 0, needed = 0, bytes = 0;
  auto costs() const { return std::tuple(rank, stage); }
  auto all() const { return std::tuple(rank, stage, bytes); }
};

struct Instance {
  LayoutItems items;
  ScheduleResidents ranks;

  // From the definitions alone.
  Load load(const Counts& counts) const {
    Load worst;
    for (int rank = 0; rank < ranks.ranks(); ++rank) {
      double cost = 0, resident = 0, always = 0, passing = 0;
      std::vector<double> activations, kept;
      int block = 0;
      for (std::size_t stage = 0; stage < counts.size(); ++stage) {
        const bool own = ranks.rank_of_stage[stage] == rank;
        LayoutItem all;
        const auto hold = [&](const LayoutItem& item) {
          all.cost += item.cost;
          all.activation_bytes += item.activation_bytes;
          all.kept_bytes += item.kept_bytes;
          resident += own ? item.resident_bytes : 0;
          always += own ? item.always_bytes : 0;
          passing = std::max(passing, own ? item.passing_bytes : 0);
        };
        if (stage == 0) hold(items.embedding);
        for (int i = 0; i < counts[stage]; ++i) hold(items.blocks[static_cast<std::size_t>(block++)]);
        if (stage + 1 == counts.size()) hold(items.head);
        if (!own) continue;
        worst.stage = std::max(worst.stage, all.cost);
        cost += all.cost;
        activations.push_back(all.activation_bytes);
        kept.push_back(all.kept_bytes);
      }
      double fullest = 0, fullest_needed = 0;
      for (const auto& instant : ranks.kept[static_cast<std::size_t>(rank)]) {
        fullest = std::max(fullest, std::inner_product(instant.begin(), instant.end(), activations.begin(), 0.0));
        fullest_needed =
            std::max(fullest_needed, std::inner_product(instant.begin(), instant.end(), kept.begin(), 0.0));
      }
      worst.rank = std::max(worst.rank, cost);
      worst.bytes = std::max(worst.bytes, resident + fullest);
      worst.needed = std::max(worst.needed, always + fullest_needed + passing);
    }
    return worst;
  }
};

class InstanceDraw {
 public:
  explicit InstanceDraw(unsigned seed) : random_(seed) {}
  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

  // Small whole numbers, where ties are common.
  LayoutItem item(int least) {
    return {static_cast<double>(least + below(4)), static_cast<double>(below(20)), static_cast<double>(below(5)),
            static_cast<double>(below(10)),        static_cast<double>(below(5)),  static_cast<double>(below(8))};
  }
  // Ranks run `chunks` stages each, as placed or anywhere; two instants a rank.
  Instance instance(int blocks, int ranks, int chunks) {
    Instance drawn;
    drawn.items = {item(0), item(below(2) * 3), {}};
    const LayoutItem common = item(1);
    for (int i = 0; i < blocks; ++i) drawn.items.blocks.push_back(below(2) == 0 ? common : item(1));
    const int placement = below(3);
    for (int stage = 0; stage < ranks * chunks; ++stage) {
      drawn.ranks.rank_of_stage.push_back(rank_of(placement == 0 ? Placement::looped : Placement::v, ranks, stage));
    }
    if (placement == 2) std::ranges::shuffle(drawn.ranks.rank_of_stage, random_);
    for (int rank = 0; rank < ranks; ++rank) {
      drawn.ranks.kept.emplace_back();
      for (int instant = 0; instant < 2; ++instant) {
        std::vector<int> kept;
        for (int chunk = 0; chunk < chunks; ++chunk) kept.push_back(below(5));
        drawn.ranks.kept.back().push_back(kept);
      }
    }
    return drawn;
  }

 private:
  std::mt19937 random_;
};

// Splits with a block everywhere, and those with the head alone.
struct Candidates {
  std::vector<std::pair<Counts, Load>> everywhere, head_alone;

  explicit Candidates(const Instance& instance) {
    const int stages = instance.ranks.stages(), blocks = static_cast<int>(instance.items.blocks.size());
    std::vector<Counts> all;
    Counts dealt;
    all_counts(blocks, stages, dealt, all);
    for (const Counts& counts : all) everywhere.emplace_back(counts, instance.load(counts));
    if (stages == 1) return;
    all.clear();
    all_counts(blocks, stages - 1, dealt, all);
    for (Counts& counts : all) {
      counts.push_back(0);
      head_alone.emplace_back(counts, instance.load(counts));
    }
  }
  std::vector<double> needs() const {
    std::vector<double> needs;
    for (const auto* some : {&everywhere, &head_alone}) {
      for (const auto& [counts, load] : *some) needs.push_back(load.needed);
    }
    std::ranges::sort(needs);
    return needs;
  }
  // By cost of rank, then stage, then bytes, of those that fit; the head alone only where that is cheaper.
  std::optional<Load> best(double limit) const {
    std::optional<Load> best;
    for (const auto* some : {&everywhere, &head_alone}) {
      std::optional<Load> own;
      for (const auto& [counts, load] : *some) {
        if (load.needed <= limit && (!own || load.all() < own->all())) own = load;
      }
      if (own && (!best || own->costs() < best->costs())) best = own;
    }
    return best;
  }
};

constexpr double unlimited_bytes = std::numeric_limits<double>::infinity();

TEST(RankLayout, IsTheBestOfAllLayouts) {
  int head_alone = 0, unlike_stages = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    InstanceDraw draw(seed);
    const int ranks = 1 + draw.below(3), chunks = 2 + (ranks < 3 ? draw.below(2) : 0);
    const Instance instance = draw.instance(ranks * chunks + draw.below(5), ranks, chunks);
    const Counts found = automatic_layout(instance.items, instance.ranks);
    const Load load = instance.load(found);
    const Candidates candidates(instance);
    const Load best = *candidates.best(unlimited_bytes);
    EXPECT_EQ(load.all(), best.all()) << "seed " << seed;
    EXPECT_EQ(std::ranges::count(found, 0), found.back() == 0 ? 1 : 0) << "seed " << seed;
    head_alone += found.back() == 0;
    // Stages alone would have been dealt otherwise.
    double least_stage = unlimited_bytes;
    for (const auto& [counts, other] : candidates.everywhere) least_stage = std::min(least_stage, other.stage);
    unlike_stages += found.back() != 0 && load.stage > least_stage;
  }
  EXPECT_GT(head_alone, 30);
  EXPECT_GT(unlike_stages, 15);
}

// Of the splits that fit, the best; where none does, one whose fullest rank takes least. With one stage a rank and with
// several.
TEST(RankLayout, KeepsToALimitOfMemoryWhereItCan) {
  int refused = 0, changed = 0;
  for (unsigned seed = 0; seed < 800; ++seed) {
    InstanceDraw draw(seed + 1000);
    const bool several = seed % 2 == 0;
    const int ranks = several ? 1 + draw.below(3) : 2 + draw.below(3);
    const Instance instance = draw.instance((several ? 2 : 1) * ranks + draw.below(5), ranks, several ? 2 : 1);
    const Candidates candidates(instance);
    const std::vector<double> needs = candidates.needs();
    // Among the lower half of what splits need, or below all.
    const double limit =
        needs[static_cast<std::size_t>(draw.below(1 + static_cast<int>(needs.size()) / 2))] - draw.below(2);
    const Load load = instance.load(automatic_layout(instance.items, instance.ranks, limit));
    const auto best = candidates.best(limit);
    if (!best) {
      ++refused;
      EXPECT_EQ(load.needed, needs.front()) << "seed " << seed;
      EXPECT_EQ(load.costs(), candidates.best(needs.front())->costs()) << "seed " << seed;
      continue;
    }
    EXPECT_LE(load.needed, limit) << "seed " << seed;
    EXPECT_EQ(load.costs(), best->costs()) << "seed " << seed;
    changed += best->costs() != candidates.best(unlimited_bytes)->costs();
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(changed, 50);
}

// 256 blocks on 64 stages. With equal blocks no rank can have less than its share rounded up, and it has no more. Other
// costs have every bit of a double. With them the most loaded rank is found within half a block of the mean, which no
// split can be below.
TEST(RankLayout, DealsWhatPeopleTrain) {
  for (const Placement placement : {Placement::looped, Placement::v}) {
    for (const int chunks : {2, 4}) {
      const int ranks = 64 / chunks;
      ScheduleResidents shape;
      for (int stage = 0; stage < 64; ++stage) shape.rank_of_stage.push_back(rank_of(placement, ranks, stage));
      shape.kept.assign(static_cast<std::size_t>(ranks), {std::vector<int>(static_cast<std::size_t>(chunks), 3)});
      Instance instance;
      instance.items.head = {3, 0, 0};
      instance.items.blocks.assign(256, {1, 1, 1});
      instance.ranks = shape;
      const Load even = instance.load(automatic_layout(instance.items, shape));
      EXPECT_EQ(even.rank, 256 / ranks + 1) << chunks;
      EXPECT_LE(even.stage, 5) << chunks;

      std::mt19937 random(static_cast<unsigned>(chunks));
      double total = instance.items.head.cost = 2.7;
      for (LayoutItem& block : instance.items.blocks) {
        block.cost = std::uniform_real_distribution<double>(0.9, 1.1)(random);
        total += block.cost;
      }
      const Load measured = instance.load(automatic_layout(instance.items, shape));
      EXPECT_LT(measured.rank, total / ranks + 0.5) << chunks;
    }
  }
}

}  // namespace
}  // namespace weft
