#include <algorithm>
#include <numeric>

#include "layers/kernels/routing.h"
#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

using ExpertCapacity = KernelTest;

// The rule in its plainest form, one sequence and expert at a time.
std::vector<double> reference_limit(const std::vector<double>& weights, std::vector<double> indices,
                                    std::int64_t of_sequence, std::int64_t experts, std::int64_t capacity,
                                    DropPolicy policy) {
  for (std::int64_t begin = 0; begin < std::ssize(indices); begin += of_sequence) {
    for (std::int64_t e = 0; e < experts; ++e) {
      std::vector<std::int64_t> places;
      for (std::int64_t i = begin; i < begin + of_sequence; ++i) {
        if (indices[i] == static_cast<double>(e)) places.push_back(i);
      }
      if (policy == DropPolicy::probability) {
        std::stable_sort(places.begin(), places.end(),
                         [&](std::int64_t a, std::int64_t b) { return weights[a] > weights[b]; });
      }
      for (std::size_t p = static_cast<std::size_t>(capacity); p < places.size(); ++p) indices[places[p]] = no_expert;
    }
  }
  return indices;
}

TEST_F(ExpertCapacity, KeepsTheLargestWeightsOrTheFirstPositions) {
  struct Case {
    std::int64_t sequences, length, experts, choices, capacity;
  };
  for (const Case& shape : {Case{1, 1, 1, 1, 1}, Case{3, 7, 4, 2, 2}, Case{2, 300, 3, 2, 100}, Case{2, 520, 9, 1, 1},
                            Case{1, 257, 2, 2, 256}, Case{2, 64, 5, 3, 1000}}) {
    const std::int64_t tokens = shape.sequences * shape.length;
    // Coarse weights, zeros among them, have many ties.
    std::vector<double> weight = doubles(random("weights", DType::float32, tokens, shape.choices));
    for (double& value : weight) value = std::abs(std::round(2.0 * value)) / 4.0;
    const RandomStream draws(5, "experts");
    std::vector<double> index;
    for (std::int64_t i = 0; i < tokens * shape.choices; ++i) {
      const double u = draws.uniform(static_cast<std::uint64_t>(i));
      index.push_back(i % 11 == 5 ? no_expert : std::floor(u * u * static_cast<double>(shape.experts)));
    }
    const Tensor weights = tensor_of(DType::float32, tokens, shape.choices, weight);
    for (const DropPolicy policy : all_values<DropPolicy>) {
      SCOPED_TRACE(fmt::format("{} sequences of {}, {} experts, {} choices, capacity {}, {}", shape.sequences,
                               shape.length, shape.experts, shape.choices, shape.capacity, name_of(policy)));
      Tensor indices = tensor_of(DType::int32, tokens, shape.choices, index);
      limit_choices(context, weights, shape.length, shape.experts, shape.capacity, policy, indices);
      EXPECT_EQ(doubles(indices),
                reference_limit(weight, index, shape.length * shape.choices, shape.experts, shape.capacity, policy));
    }
  }
}

// Each expert's choices stay in order and begin at its own multiple of the rows.
TEST_F(ExpertCapacity, SpreadsSlotsSoThatEveryExpertHasItsRows) {
  for (const auto& [tokens, choices, experts] : {std::tuple(1, 1, 1), std::tuple(7, 2, 4), std::tuple(300, 3, 300)}) {
    const RandomStream draws(6, "experts");
    std::vector<double> index, expected;
    std::vector<std::int64_t> count(static_cast<std::size_t>(experts), 0);
    for (int i = 0; i < tokens * choices; ++i) {
      const double u = draws.uniform(static_cast<std::uint64_t>(i));
      index.push_back(i % 5 == 3 ? no_expert : std::floor(u * u * experts));
      if (index.back() != no_expert) ++count[static_cast<std::size_t>(index.back())];
    }
    const std::int64_t rows = std::ranges::max(count) + 2;
    std::vector<std::int64_t> next(count.size());
    for (const double expert : index) {
      expected.push_back(no_expert);
      if (expert == no_expert) continue;
      const auto e = static_cast<std::size_t>(expert);
      expected.back() = static_cast<double>(static_cast<std::int64_t>(e) * rows + next[e]++);
    }
    const Tensor indices = tensor_of(DType::int32, tokens, choices, index);
    Tensor counts = poisoned(DType::int32, experts, 1), slots = poisoned(DType::int32, tokens, choices);
    sort_by_expert(context, indices, true, counts, slots);
    spread_slots(context, indices, counts, rows, slots);
    EXPECT_EQ(doubles(slots), expected) << tokens << " x " << choices << " of " << experts;
  }
}

TEST_F(ExpertCapacity, CountsWhatIsDropped) {
  const Tensor indices = tensor_of(DType::int32, 2, 3, {0, 1, no_expert, 2, 0, 1});
  const Tensor slots = tensor_of(DType::int32, 2, 3, {0, no_expert, no_expert, no_expert, 1, 2});
  Tensor total = tensor_of(DType::float64, 1, 1, {5});
  add_dropped(context, indices, slots, total);
  EXPECT_EQ(doubles(total), std::vector<double>{7});
}

TEST_F(ExpertCapacity, RefusesPartsOfSequences) {
  const Tensor weights = zeros(DType::float32, 5, 2);
  Tensor indices = zeros(DType::int32, 5, 2);
  EXPECT_THROW(limit_choices(context, weights, 2, 1, 1, DropPolicy::position, indices), Error);
  EXPECT_THROW(limit_choices(context, weights, 5, 1, 0, DropPolicy::position, indices), Error);
}

}  // namespace
}  // namespace weft
