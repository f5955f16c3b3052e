// The automatic layout against all layouts there are, on small random models.
#include "trainer/layout/automatic_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

namespace weft {
namespace {

using Counts = std::vector<int>;

// All ways to deal `blocks` to `stages`, each stage having between `least` and `most`.
std::vector<Counts> all_counts(int blocks, int stages, int least, int most) {
  if (stages == 0) return blocks == 0 ? std::vector<Counts>{{}} : std::vector<Counts>{};
  std::vector<Counts> all;
  for (int first = least; first <= std::min(blocks, most); ++first) {
    for (Counts rest : all_counts(blocks - first, stages - 1, least, most)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

struct Judge {
  LayoutItems items;
  int stages, microbatches;

  // Of the first counts.size() stages.
  double largest(const Counts& counts, bool memory) const {
    double worst = 0;
    int block = 0;
    for (int s = 0; s < static_cast<int>(counts.size()); ++s) {
      double cost = 0, resident = 0, activations = 0;
      const auto hold = [&](const LayoutItem& item) {
        cost += item.cost;
        resident += item.resident_bytes;
        activations += item.activation_bytes;
      };
      if (s == 0) hold(items.embedding);
      for (int i = 0; i < counts[static_cast<std::size_t>(s)]; ++i)
        hold(items.blocks[static_cast<std::size_t>(block++)]);
      if (s == stages - 1) hold(items.head);
      const int in_flight = std::min(stages - s, microbatches);
      worst = std::max(worst, memory ? resident + in_flight * activations : cost);
    }
    return worst;
  }
  double least_cost(const std::vector<Counts>& all) const {
    double least = std::numeric_limits<double>::infinity();
    for (const Counts& counts : all) least = std::min(least, largest(counts, false));
    return least;
  }
  // Every prefix of `rows` stages is as cheap as its blocks can be dealt to it.
  bool balanced(const Counts& counts, int rows) const {
    for (int s = 1; s <= rows; ++s) {
      const Counts prefix(counts.begin(), counts.begin() + s);
      const int blocks = std::accumulate(prefix.begin(), prefix.end(), 0);
      if (largest(prefix, false) > least_cost(all_counts(blocks, s, 1, blocks))) return false;
    }
    return true;
  }
};

LayoutItems random_items(std::mt19937& random, int blocks, bool memory) {
  const auto below = [&](int bound) {
    return static_cast<double>(std::uniform_int_distribution<int>(0, bound - 1)(random));
  };
  // Small integers: sums are exact and ties are common.
  const auto item = [&](double least) {
    LayoutItem drawn{least + below(4)};
    if (memory) drawn.resident_bytes = below(20), drawn.activation_bytes = below(5);
    return drawn;
  };
  LayoutItems items{item(0), item(below(2) * 3), {}};
  const LayoutItem common = item(1);
  for (int i = 0; i < blocks; ++i) items.blocks.push_back(below(2) == 0 ? common : item(1));
  return items;
}

TEST(AutomaticLayout, IsTheBestOfAllLayoutsWithABlockEverywhere) {
  int head_alone = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    const int blocks = 1 + static_cast<int>(random() % 8),
              stages = 1 + static_cast<int>(random() % static_cast<unsigned>(blocks));
    const Judge judge{random_items(random, blocks, true), stages, 1 + static_cast<int>(random() % 6)};
    const Counts found = automatic_layout(judge.items, one_stage_each(stages, judge.microbatches));
    ASSERT_EQ(found.size(), static_cast<std::size_t>(stages));

    std::vector<Counts> everywhere = all_counts(blocks, stages, 1, blocks), alone;
    if (stages > 1) {
      alone = all_counts(blocks, stages - 1, 1, blocks);
      for (Counts& counts : alone) counts.push_back(0);
    }
    const bool leaves_head = judge.least_cost(alone) < judge.least_cost(everywhere);
    head_alone += leaves_head;
    std::vector<Counts> candidates = leaves_head ? alone : everywhere;
    EXPECT_EQ(judge.largest(found, false), judge.least_cost(candidates)) << "seed " << seed;
    EXPECT_EQ(found.back() == 0, leaves_head) << "seed " << seed;

    const int rows = leaves_head ? stages - 1 : stages;
    EXPECT_TRUE(judge.balanced(found, rows)) << "seed " << seed;
    for (const Counts& counts : candidates) {
      if (!judge.balanced(counts, rows)) continue;
      EXPECT_LE(judge.largest(found, true), judge.largest(counts, true)) << "seed " << seed;
    }
  }
  EXPECT_GT(head_alone, 30);
}

// Without bytes later stages get more: the layouts that runs had before memory was weighed.
TEST(AutomaticLayout, GivesLaterStagesMoreAmongEquals) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int blocks = 1 + static_cast<int>(random() % 8),
              stages = 1 + static_cast<int>(random() % static_cast<unsigned>(blocks));
    const Judge judge{random_items(random, blocks, false), stages, 4};
    const Counts found = automatic_layout(judge.items, one_stage_each(stages, 4));
    if (found.back() == 0) continue;
    Counts latest;
    for (const Counts& counts : all_counts(blocks, stages, 1, blocks)) {
      if (!judge.balanced(counts, stages)) continue;
      if (latest.empty() ||
          std::lexicographical_compare(latest.rbegin(), latest.rend(), counts.rbegin(), counts.rend())) {
        latest = counts;
      }
    }
    EXPECT_EQ(found, latest) << "seed " << seed;
  }
}

// A block a stage at most, and no stage idle that need not be: with one stage to spare that leaves two layouts.
TEST(AutomaticLayout, LeavesNoStageIdleThatNeedNotBe) {
  int embedding_alone = 0, head_alone = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int blocks = 1 + static_cast<int>(random() % 5), stages = blocks + 1;
    const Judge judge{random_items(random, blocks, true), stages, 1 + static_cast<int>(random() % 9)};
    const Counts found = automatic_layout(judge.items, one_stage_each(stages, judge.microbatches));
    std::vector<Counts> candidates;
    for (const Counts& counts : all_counts(blocks, stages, 0, 1)) {
      if (std::count(counts.begin() + 1, counts.end() - 1, 0) == 0) candidates.push_back(counts);
    }
    ASSERT_EQ(candidates.size(), 2u);
    EXPECT_EQ(std::count(candidates.begin(), candidates.end(), found), 1) << "seed " << seed;
    EXPECT_EQ(judge.largest(found, false), judge.least_cost(candidates)) << "seed " << seed;
    for (const Counts& counts : candidates) {
      if (judge.largest(counts, false) > judge.largest(found, false)) continue;
      EXPECT_LE(judge.largest(found, true), judge.largest(counts, true)) << "seed " << seed;
    }
    ++(found.front() == 0 ? embedding_alone : head_alone);
  }
  EXPECT_GT(embedding_alone, 50);
  EXPECT_GT(head_alone, 50);

  std::mt19937 random(1);
  EXPECT_EQ(automatic_layout(random_items(random, 3, true), one_stage_each(5, 8)), (Counts{0, 1, 1, 1, 0}));
  EXPECT_EQ(automatic_layout(random_items(random, 3, true), one_stage_each(8, 8)), (Counts{0, 0, 0, 0, 1, 1, 1, 0}));
}

// Costs may be measured ones, with every bit of a double and an embedding that takes time.
TEST(AutomaticLayout, WeighsWhateverCostsItIsGiven) {
  LayoutItems items{{0.7, 0, 0}, {2.5, 0, 0}, {}};
  for (const double cost : {1.1, 0.9, 1.0, 1.05, 0.95, 1.2}) items.blocks.push_back({cost, 0, 0});
  EXPECT_EQ(automatic_layout(items, one_stage_each(1, 8)), (Counts{6}));
  EXPECT_EQ(automatic_layout(items, one_stage_each(4, 8)), (Counts{2, 2, 2, 0}));
  items.head.cost = 0.1;
  EXPECT_EQ(automatic_layout(items, one_stage_each(4, 8)), (Counts{1, 2, 2, 1}));
}

// A model of a thousand blocks on 128 stages is dealt at once.
TEST(AutomaticLayout, DealsLargeModels) {
  LayoutItems items{{}, {3, 0, 0}, std::vector<LayoutItem>(1000, LayoutItem{1, 1, 1})};
  const Counts counts = automatic_layout(items, one_stage_each(128, 512));
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 1000);
  EXPECT_EQ(*std::max_element(counts.begin(), counts.end()), 8);
}

}  // namespace
}  // namespace weft
