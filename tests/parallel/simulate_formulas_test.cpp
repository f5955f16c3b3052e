// Bubbles and activations of all orders against the formulas of the literature, by simulation at even costs. Forward,
// input gradient and weight gradient also differ in length wherever the formula speaks of them.
#include <gtest/gtest.h>

#include "parallel/pipeline/simulation/memory_curve.h"
#include "tests/parallel/order_figures.h"

namespace weft {
namespace {

// Seconds of a rank's whole share, so that a chunk takes the chunks' part of them.
using Shares = ComputeCost;

// Binary fractions: their sums are exact.
const Shares even = {1.0, 1.0, 1.0};
const Shares short_weight = {1.0, 1.25, 0.75};
const Shares long_backward = {1.0, 2.0, 0.5};
const Shares long_forward = {2.0, 1.5, 1.0};
const Shares long_weight = {0.75, 1.0, 1.5};

// One segment a stage that keeps one byte a microbatch, to its weight gradient: the curve counts chunks.
Program counted(const Schedule& schedule, const OrderInput& input) {
  Program program{stage_tables(input.ranks, 1, {}, input.chunks, schedule.placement), input.microbatches,
                  schedule.order(input)};
  for (ProgramSegment& segment : program.segments) segment.activation_bytes = segment.pending_bytes = 1;
  return program;
}

struct Figures {
  double bubble = 0.0;     // the step's length less what a rank has to do
  std::vector<int> peaks;  // chunks in flight, by rank
};

// `apart`: without overlapped pairs, what would be one runs one after the other.
Figures figures_of(const Schedule& schedule, const OrderInput& input, const Shares& shares, bool apart = false) {
  Program program = counted(schedule, input);
  for (auto& actions : program.ranks) {
    for (Action& action : actions) action.overlapped = action.overlapped && !apart;
  }
  const auto chunks = static_cast<double>(input.chunks);
  const ProgramCosts costs =
      even_costs(program, {shares.forward / chunks, shares.backward_input / chunks, shares.backward_weight / chunks});
  const Simulation simulation = simulate(program, costs);
  const double busy = input.microbatches * (shares.forward + shares.backward_input + shares.backward_weight);
  Figures figures{simulation.seconds - busy, {}};
  for (int rank = 0; rank < input.ranks; ++rank) {
    EXPECT_NEAR(rank_times(program, simulation, rank).compute, busy, 1e-9 * busy);
    EXPECT_NEAR(rank_times(program, simulation, rank).bubble, figures.bubble, 1e-9 * busy);
    int peak = 0;
    for (const MemorySample& sample : memory_curve(program, simulation, rank)) {
      peak = std::max(peak, static_cast<int>(sample.bytes[Bucket::activations]));
    }
    figures.peaks.push_back(peak);
  }
  return figures;
}

// The bubble, and the chunks in flight on a rank.
using BubbleFormula = double (*)(const OrderInput& input, const Shares& shares);
using PeakFormula = int (*)(const OrderInput& input, int rank);

struct FormulaRow {
  const char* schedule;
  BubbleFormula bubble;
  PeakFormula peak;  // of each rank, or of the fullest where the literature says no more
  bool of_fullest = false;
  std::vector<Shares> shares;
  int least_rounds = 0;  // the formula holds from so many times the ranks of microbatches on
  bool apart = false;    // without overlapped pairs
};

double whole(const Shares& shares) {
  return shares.forward + shares.backward_input + shares.backward_weight;
}

// Of schedules that take microbatches in equal groups.
int group_of(const OrderInput& input) {
  return input.microbatches / (input.microbatches / input.ranks);
}

std::vector<FormulaRow> formula_rows() {
  return {
      {"gpipe",
       [](const OrderInput& i, const Shares& s) { return (i.ranks - 1) * whole(s); },
       [](const OrderInput& i, int) { return i.microbatches; },
       false,
       {even, short_weight, long_backward, long_forward, long_weight}},
      {"1f1b",
       [](const OrderInput& i, const Shares& s) { return (i.ranks - 1) * whole(s); },
       [](const OrderInput& i, int rank) { return std::min(i.ranks - rank, i.microbatches); },
       false,
       {even, short_weight, long_backward, long_forward, long_weight}},
      {"interleaved",
       [](const OrderInput& i, const Shares& s) { return (i.ranks - 1) * whole(s) / i.chunks; },
       [](const OrderInput& i, int rank) {
         return std::min(2 * (i.ranks - 1 - rank) + (i.chunks - 1) * group_of(i) + 1, i.microbatches * i.chunks);
       },
       false,
       {even, short_weight, long_backward, long_forward, long_weight},
       1},
      {"looped_bfs",
       [](const OrderInput& i, const Shares& s) { return (i.ranks - 1) * whole(s) / i.chunks; },
       [](const OrderInput& i, int) { return i.microbatches * i.chunks; },
       false,
       {even, short_weight, long_backward, long_forward, long_weight},
       1},
      // Where w is no longer than f and b.
      {"zb_h1",
       [](const OrderInput& i, const Shares& s) {
         return (i.ranks - 1) * (s.forward + s.backward_input - s.backward_weight);
       },
       [](const OrderInput& i, int) { return i.ranks; },
       false,
       {even, short_weight, long_backward, long_forward},
       1},
      {"zb1p",
       [](const OrderInput& i, const Shares& s) {
         return (i.ranks - 1) * (s.forward + s.backward_input - s.backward_weight) / i.chunks;
       },
       [](const OrderInput& i, int) { return i.ranks + (i.chunks - 1) * group_of(i); },
       false,
       {even, short_weight, long_backward, long_forward},
       1},
      // The others are drawn for f = b = w.
      {"zbv",
       [](const OrderInput& i, const Shares& s) { return (i.ranks - 1) * s.forward / 2; },
       [](const OrderInput& i, int) { return 2 * i.ranks; },
       false,
       {even},
       2},
      {"v_half",
       [](const OrderInput& i, const Shares&) {
         if (i.ranks <= 2) return (i.ranks - 1) / 2.0;
         return (i.ranks % 2 == 0 ? 3 * i.ranks - 7 : 3 * i.ranks - 4) / 2.0;
       },
       [](const OrderInput& i, int) { return (i.ranks + 2) / 2 * 2; },
       true,
       {even},
       1},
      {"v_min",
       [](const OrderInput& i, const Shares&) {
         if (i.ranks <= 2) return (i.ranks - 1) / 2.0;
         return (i.ranks % 3 == 0 ? 4 * i.ranks - 7 : 4 * i.ranks - 5) / 2.0;
       },
       [](const OrderInput& i, int) { return (i.ranks + 4) / 3 * 2; },
       true,
       {even},
       2},
      // (P - 1)(F&B + B - 3 W) of a chunk: F&B a pair, here without gain from overlap, B a whole backward.
      {"dualpipev",
       [](const OrderInput& i, const Shares& s) {
         const double backward = s.backward_input + s.backward_weight;
         return (i.ranks - 1) * (whole(s) + backward - 3 * s.backward_weight) / 2;
       },
       [](const OrderInput& i, int) { return 2 * i.ranks + 1; },
       false,
       {even},
       2},
      // The same without pairs: nobody waits for the whole of one, and B is the input gradient alone.
      {"dualpipev",
       [](const OrderInput& i, const Shares& s) {
         return (i.ranks - 1) * (whole(s) + s.backward_input - 3 * s.backward_weight) / 2;
       },
       [](const OrderInput& i, int) { return 2 * i.ranks + 1; },
       false,
       {even},
       2,
       true},
  };
}

TEST(SimulateFormulas, BubblesAndActivationsAreThoseOfTheLiterature) {
  int configurations = 0;
  for (const FormulaRow& row : formula_rows()) {
    const Schedule& schedule = find_schedule(row.schedule);
    for (const OrderInput& input : inputs_of(schedule, 6, 4, 18)) {
      if (input.microbatches < row.least_rounds * input.ranks) continue;
      for (const Shares& shares : row.shares) {
        ++configurations;
        const Figures figures = figures_of(schedule, input, shares, row.apart);
        // Thirds of a second, where there are three chunks, round.
        EXPECT_NEAR(figures.bubble, row.bubble(input, shares), 1e-10 * input.microbatches * whole(shares))
            << described(schedule, input) << ", " << shares.forward << " " << shares.backward_input << " "
            << shares.backward_weight;
        if (row.of_fullest) {
          EXPECT_EQ(*std::max_element(figures.peaks.begin(), figures.peaks.end()), row.peak(input, 0));
          continue;
        }
        for (int rank = 0; rank < input.ranks; ++rank) {
          EXPECT_EQ(figures.peaks[static_cast<std::size_t>(rank)], row.peak(input, rank)) << described(schedule, input);
        }
      }
    }
  }
  EXPECT_GT(configurations, 2000);
}

// Outside of what the formulas were made for: 4 ranks and 8 microbatches, as others have simulated them.
TEST(SimulateFormulas, EndWhereTheWeightGradientIsLongOrHalvesDiffer) {
  const OrderInput one{.ranks = 4, .microbatches = 8}, two{.ranks = 4, .chunks = 2, .microbatches = 8};
  const Shares long_w = {1.0, 0.9, 1.1}, unequal = {1.0, 1.2, 0.8};
  EXPECT_NEAR(figures_of(find_schedule("zb_h1"), one, long_w).bubble, 3.0, 1e-9);  // not 3 x 0.8 = 2.4
  EXPECT_NEAR(figures_of(find_schedule("zbv"), two, unequal).bubble, 1.8, 1e-9);   // not 3 / 2 = 1.5
  EXPECT_NEAR(figures_of(find_schedule("v_half"), two, even).bubble, 2.5, 1e-9);   // published
  EXPECT_NEAR(figures_of(find_schedule("v_half"), two, unequal).bubble, 3.9, 1e-9);
  EXPECT_NEAR(figures_of(find_schedule("v_min"), two, even).bubble, 5.5, 1e-9);  // published
  EXPECT_NEAR(figures_of(find_schedule("v_min"), two, unequal).bubble, 10.4, 1e-9);
  EXPECT_NEAR(figures_of(find_schedule("dualpipev"), two, unequal, true).bubble, 2.1, 1e-9);  // not 3 x 1.8 / 2 = 2.7
  EXPECT_NEAR(figures_of(find_schedule("dualpipev"), two, unequal).bubble, 3.6, 1e-9);  // in pairs: not 3 x 2.6 / 2
}

}  // namespace
}  // namespace weft
