#include <algorithm>
#include <numeric>
#include <set>

#include "layers/kernels/routing.h"
#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

struct PermutationShape {
  std::int64_t tokens, choices, experts;
};
constexpr PermutationShape permutation_shapes[] = {{0, 2, 4}, {1, 1, 1}, {1, 3, 5}, {7, 2, 9}, {23, 4, 6}};

class Permutation : public KernelTest {
 protected:
  // Uneven on purpose: few tokens reach the later experts, and expert 1 stays empty where there are more than two.
  Tensor choose(const PermutationShape& shape) {
    const RandomStream draws(7, "experts");
    std::vector<double> chosen;
    for (std::int64_t i = 0; i < shape.tokens * shape.choices; ++i) {
      const double u = draws.uniform(i);
      const double expert = std::floor(u * u * static_cast<double>(shape.experts));
      chosen.push_back(expert == 1.0 && shape.experts > 2 ? 2.0 : expert);
    }
    return tensor_of(DType::int32, shape.tokens, shape.choices, chosen);
  }
  Tensor sorted_slots(const PermutationShape& shape) {
    Tensor counts = poisoned(DType::int32, shape.experts, 1);
    Tensor slots = poisoned(DType::int32, shape.tokens, shape.choices);
    sort_by_expert(context, choose(shape), false, counts, slots);
    return slots;
  }
  void for_each_shape(const std::function<void(const PermutationShape&, DType, std::int64_t)>& check) {
    for (const PermutationShape& shape : permutation_shapes) {
      for (DType dtype : float_types) {
        for (std::int64_t hidden : {1, 3, 17, 100, 256, 300}) {
          SCOPED_TRACE(
              fmt::format("{} tokens {} choices {} hidden {}", shape.tokens, shape.choices, hidden, name_of(dtype)));
          check(shape, dtype, hidden);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

TEST_F(Permutation, SortIsExpertMajorAndStable) {
  for (const PermutationShape& shape : permutation_shapes) {
    const Tensor indices = choose(shape);
    const std::vector<double> chosen = doubles(indices);
    Tensor counts = poisoned(DType::int32, shape.experts, 1);
    Tensor slots = poisoned(DType::int32, shape.tokens, shape.choices);
    sort_by_expert(context, indices, false, counts, slots);

    std::vector<std::size_t> order(chosen.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return chosen[a] < chosen[b]; });
    std::vector<double> expected(chosen.size()), expected_counts(shape.experts);
    for (std::size_t place = 0; place < order.size(); ++place) expected[order[place]] = static_cast<double>(place);
    for (double expert : chosen) ++expected_counts[static_cast<std::size_t>(expert)];
    EXPECT_EQ(doubles(slots), expected);
    EXPECT_EQ(doubles(counts), expected_counts);
  }
}

// Against the definition, choice by choice.
TEST_F(Permutation, ChoicesAreRelayedToTheFirstOfTheirPartAndFoundThere) {
  for (const PermutationShape& shape : {PermutationShape{0, 2, 4}, {1, 1, 1}, {7, 2, 8}, {300, 6, 12}}) {
    for (const std::int64_t parts : {1, 2, 4}) {
      if (shape.experts % parts != 0) continue;
      const std::int64_t here = shape.experts / parts;
      std::vector<double> chosen = doubles(choose(shape));
      for (std::size_t i = 0; i < chosen.size(); i += 5) chosen[i] = no_expert;
      const Tensor indices = tensor_of(DType::int32, shape.tokens, shape.choices, chosen);
      Tensor reached = poisoned(DType::int32, shape.tokens, shape.choices);
      parts_chosen(context, indices, here, reached);
      std::vector<double> expected;
      for (std::int64_t token = 0; token < shape.tokens; ++token) {
        std::set<double> seen = {no_expert};
        for (std::int64_t k = 0; k < shape.choices; ++k) {
          const double expert = chosen[static_cast<std::size_t>(token * shape.choices + k)];
          const double part = expert == no_expert ? no_expert : std::floor(expert / static_cast<double>(here));
          expected.push_back(seen.insert(part).second ? part : no_expert);
        }
      }
      EXPECT_EQ(doubles(reached), expected);
      for (std::int64_t part = 0; part < parts; ++part) {
        Tensor within = poisoned(DType::int32, shape.tokens, shape.choices);
        choices_within(context, indices, part * here, here, within);
        std::vector<double> local;
        for (const double expert : chosen) {
          const bool inside =
              expert >= static_cast<double>(part * here) && expert < static_cast<double>((part + 1) * here);
          local.push_back(inside ? expert - static_cast<double>(part * here) : no_expert);
        }
        EXPECT_EQ(doubles(within), local);
      }
    }
  }
}

// What has no expert has no slot, and everything else has the slots that it would have alone.
TEST_F(Permutation, ChoicesWithoutAnExpertAreLeftOut) {
  for (const std::int64_t experts : {1, 3, 4, 256}) {
    const std::int64_t tokens = 40, choices = 2, hidden = 24;
    std::vector<double> chosen = doubles(choose({tokens, choices, experts}));
    for (const std::int64_t token : {0, 7, 8, 39}) std::fill_n(chosen.begin() + token * choices, choices, no_expert);
    const Tensor indices = tensor_of(DType::int32, tokens, choices, chosen);
    Tensor counts = poisoned(DType::int32, experts, 1), slots = poisoned(DType::int32, tokens, choices);
    sort_by_expert(context, indices, true, counts, slots);
    std::vector<double> expected(chosen.size(), no_expert), expected_counts(experts);
    double next = 0.0;
    for (std::int64_t e = 0; e < experts; ++e) {
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] == static_cast<double>(e)) expected[i] = next++, ++expected_counts[e];
      }
    }
    EXPECT_EQ(doubles(slots), expected);
    EXPECT_EQ(doubles(counts), expected_counts);

    const auto rows = static_cast<std::int64_t>(next);
    const Tensor x = random("x", DType::float32, tokens, hidden);
    const Tensor weights = random("weights", DType::float32, tokens, choices);
    Tensor permuted = poisoned(DType::float32, rows, hidden), y = zeros(DType::float32, tokens, hidden);
    Tensor dpermuted = poisoned(DType::float32, rows, hidden), dweights = poisoned(DType::float32, tokens, choices);
    permute_rows(context, x, slots, permuted);
    unpermute_rows(context, permuted, slots, {}, y);
    unpermute_rows_backward(context, x, permuted, slots, weights, dpermuted, dweights);
    const std::vector<double> before = doubles(x), after = doubles(y), dweight = doubles(dweights);
    for (std::int64_t i = 0; i < tokens * hidden; ++i) {
      const bool left_out = expected[i / hidden * choices] == no_expert;
      ASSERT_EQ(after[i], left_out ? 0.0 : 2.0 * before[i]);
    }
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(dweight[i] == 0.0, expected[i] == no_expert);
    for (const double gradient : doubles(dpermuted)) ASSERT_FALSE(std::isnan(gradient));
  }
}

// A rank none of whose tokens goes anywhere has no row, and the gradients of its weights are zero.
TEST_F(Permutation, NoRowAtAll) {
  const std::int64_t tokens = 3, choices = 2, hidden = 8;
  const Tensor slots = tensor_of(DType::int32, tokens, choices, std::vector<double>(tokens * choices, no_expert));
  const Tensor dy = random("dy", DType::float32, tokens, hidden);
  const Tensor weights = random("weights", DType::float32, tokens, choices);
  Tensor permuted = poisoned(DType::float32, 0, hidden), dpermuted = poisoned(DType::float32, 0, hidden);
  Tensor y = random("y", DType::float32, tokens, hidden), dweights = poisoned(DType::float32, tokens, choices);
  const std::vector<double> before = doubles(y);
  permute_rows(context, dy, slots, permuted);
  unpermute_rows(context, permuted, slots, weights, y);
  unpermute_rows_backward(context, dy, permuted, slots, weights, dpermuted, dweights);
  EXPECT_EQ(doubles(y), before);
  EXPECT_EQ(doubles(dweights), std::vector<double>(tokens * choices, 0.0));
}

TEST_F(Permutation, CountsAreAddedToTotals) {
  const Tensor counts = tensor_of(DType::int32, 3, 1, {4, 0, 7});
  Tensor totals = tensor_of(DType::float64, 3, 1, {0x1.0p40, 2, 0});
  add_counts(context, counts, totals);
  EXPECT_EQ(doubles(totals), (std::vector<double>{0x1.0p40 + 4, 2, 7}));
}

TEST_F(Permutation, PermuteCopiesEachTokenToItsSlots) {
  for_each_shape([&](const PermutationShape& shape, DType dtype, std::int64_t hidden) {
    const Tensor x = random("x", dtype, shape.tokens, hidden), slots = sorted_slots(shape);
    Tensor permuted = poisoned(dtype, shape.tokens * shape.choices, hidden);
    permute_rows(context, x, slots, permuted);
    const std::vector<double> values = doubles(x), slot = doubles(slots), moved = doubles(permuted);
    for (std::size_t choice = 0; choice < slot.size(); ++choice) {
      for (std::int64_t i = 0; i < hidden; ++i) {
        const std::size_t at = static_cast<std::size_t>(slot[choice]) * hidden + i;
        ASSERT_EQ(moved[at], values[choice / shape.choices * hidden + i]);
      }
    }
  });
}

// With one choice a token, unpermuting without weights onto zero is the inverse, to the bit; with two it doubles.
TEST_F(Permutation, UnpermuteUndoesPermute) {
  for (std::int64_t choices : {1, 2}) {
    for (DType dtype : float_types) {
      const PermutationShape shape{31, choices, 5};
      const Tensor x = random("x", dtype, shape.tokens, 17), slots = sorted_slots(shape);
      Tensor permuted = poisoned(dtype, shape.tokens * choices, 17), y = zeros(dtype, shape.tokens, 17);
      permute_rows(context, x, slots, permuted);
      unpermute_rows(context, permuted, slots, {}, y);
      std::vector<double> expected = doubles(x);
      for (double& value : expected) value *= static_cast<double>(choices);
      EXPECT_EQ(doubles(y), expected);
    }
  }
}

TEST_F(Permutation, UnpermuteAddsTheWeightedSum) {
  for_each_shape([&](const PermutationShape& shape, DType dtype, std::int64_t hidden) {
    const Tensor slots = sorted_slots(shape);
    const Tensor permuted = random("permuted", dtype, shape.tokens * shape.choices, hidden);
    for (bool weighted : {false, true}) {
      const Tensor weights = weighted ? random("weights", DType::float32, shape.tokens, shape.choices) : Tensor();
      Tensor y = random("y", dtype, shape.tokens, hidden);
      const std::vector<double> slot = doubles(slots), rows = doubles(permuted);
      const std::vector<double> weight = weighted ? doubles(weights) : std::vector<double>(slot.size(), 1.0);
      std::vector<double> expected = doubles(y), magnitude;
      for (double value : expected) magnitude.push_back(std::abs(value));
      unpermute_rows(context, permuted, slots, weights, y);
      for (std::size_t choice = 0; choice < slot.size(); ++choice) {
        for (std::int64_t i = 0; i < hidden; ++i) {
          const std::size_t to = choice / shape.choices * hidden + i;
          const double term = weight[choice] * rows[static_cast<std::size_t>(slot[choice]) * hidden + i];
          expected[to] += term;
          magnitude[to] += std::abs(term);
        }
      }
      // One product and at most one addition a choice, one addition to y.
      for (double& value : magnitude) value *= (static_cast<double>(shape.choices) + 2.0) * float_roundoff;
      expect_close(y, expected, magnitude);
    }
  });
}

TEST_F(Permutation, UnpermuteBackwardMatchesItsDefinition) {
  for_each_shape([&](const PermutationShape& shape, DType dtype, std::int64_t hidden) {
    const std::int64_t rows = shape.tokens * shape.choices;
    const Tensor slots = sorted_slots(shape), dy = random("dy", dtype, shape.tokens, hidden);
    const Tensor permuted = random("permuted", dtype, rows, hidden);
    const Tensor weights = random("weights", DType::float32, shape.tokens, shape.choices);
    Tensor dpermuted = poisoned(dtype, rows, hidden);
    Tensor dweights = poisoned(DType::float32, shape.tokens, shape.choices);
    unpermute_rows_backward(context, dy, permuted, slots, weights, dpermuted, dweights);

    const std::vector<double> slot = doubles(slots), gradient = doubles(dy), value = doubles(permuted);
    const std::vector<double> weight = doubles(weights);
    std::vector<double> expected(rows * hidden), error(rows * hidden), expected_weights(rows), weight_error(rows);
    for (std::int64_t choice = 0; choice < rows; ++choice) {
      double magnitude = 0.0;
      for (std::int64_t i = 0; i < hidden; ++i) {
        const double out = gradient[choice / shape.choices * hidden + i];
        const std::size_t at = static_cast<std::size_t>(slot[choice]) * hidden + i;
        expected[at] = weight[choice] * out;
        error[at] = float_roundoff * std::abs(expected[at]);
        expected_weights[choice] += out * value[at];
        magnitude += std::abs(out * value[at]);
      }
      weight_error[choice] = (sum_additions(hidden) + 2.0) * float_roundoff * magnitude;
    }
    expect_close(dpermuted, expected, error);
    expect_close(dweights, expected_weights, weight_error);
  });
}

TEST_F(Permutation, MoveBlocksReordersRowsAndLeavesTheRest) {
  const std::vector<std::int64_t> from = {0, 2, 2, 5}, to = {4, 0, 9, 1}, counts = {2, 0, 3, 3};
  for (DType dtype : float_types) {
    for (std::int64_t hidden : odd_sizes) {
      const Tensor source = random("source", dtype, 8, hidden);
      Tensor destination = random("destination", dtype, 12, hidden);
      const std::vector<double> values = doubles(source);
      std::vector<double> expected = doubles(destination);
      for (std::size_t block = 0; block < counts.size(); ++block) {
        for (std::int64_t i = 0; i < counts[block] * hidden; ++i) {
          expected[to[block] * hidden + i] = values[from[block] * hidden + i];
        }
      }
      move_blocks(context, source, from, to, counts, destination);
      EXPECT_EQ(doubles(destination), expected);
    }
  }
  const Tensor source = random("source", DType::float32, 8, 3);
  Tensor destination = poisoned(DType::float32, 10, 3);
  EXPECT_THROW(move_blocks(context, source, from, to, counts, destination), Error);
}

}  // namespace
}  // namespace weft
