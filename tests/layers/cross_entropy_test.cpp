#include "layers/kernels/token_kernels.h"

#include <limits>

#include "parallel/runtime/elementwise.h"
#include "tests/layers/kernel_fixture.h"
#include "tests/layers/reference.h"

namespace weft {
namespace {

class CrossEntropyTest : public KernelTest {
 protected:
  static constexpr std::int64_t tokens = 9, vocabulary = 1307;  // longer than a partial sum, and no multiple of one

  // The work of ranks that each have a slice of the vocabulary: maxima and sums are combined between the steps.
  struct Sharded {
    std::vector<double> losses;  // by shard
    std::vector<double> dlogits;
  };
  Sharded run(const Tensor& logits, const std::vector<std::int32_t>& targets, const std::vector<std::int64_t>& columns,
              DType gradient_dtype, float factor, bool in_place) {
    const Tensor target_ids = tensor_of(targets);
    const std::vector<double> whole = doubles(logits);
    std::vector<Tensor> slices, slice_maxima, slice_sums;
    std::int64_t begin = 0;
    std::vector<double> maxima(tokens, -std::numeric_limits<double>::infinity());
    for (std::int64_t count : columns) {
      std::vector<double> slice;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto first = whole.begin() + t * vocabulary + begin;
        slice.insert(slice.end(), first, first + count);
      }
      slices.push_back(tensor_of(DType::float32, tokens, count, slice));
      slice_maxima.push_back(poisoned(DType::float32, tokens, 1));
      slice_sums.push_back(poisoned(DType::float32, tokens, 2));
      vocabulary_sums(context, slices.back(), target_ids, begin, slice_maxima.back(), slice_sums.back());
      begin += count;
      const std::vector<double> part_maxima = doubles(slice_maxima.back());
      for (std::int64_t t = 0; t < tokens; ++t) maxima[t] = std::max(maxima[t], part_maxima[t]);
    }
    const Tensor maximum = tensor_of(DType::float32, tokens, 1, maxima);
    Tensor sums = zeros(DType::float32, tokens, 2);
    begin = 0;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      shift_vocabulary_sums(context, slice_maxima[i], maximum, target_ids, {begin, columns[i]}, slice_sums[i]);
      add(*stream, slice_sums[i], sums);
      begin += columns[i];
    }
    Sharded result;
    result.dlogits.resize(static_cast<std::size_t>(tokens * vocabulary));
    begin = 0;
    for (Tensor& slice : slices) {
      const std::int64_t count = slice.columns();
      Tensor gradient = poisoned(gradient_dtype, tokens, count);
      const TensorView destination = in_place ? slice.view() : gradient.view();
      // Every shard knows the whole loss and adds it to what is there.
      constexpr double before = 0.5;
      Tensor loss = tensor_of(DType::float64, 1, 1, {before});
      cross_entropy_gradient(context, slice, maximum, sums, target_ids, begin, factor, destination, loss);
      result.losses.push_back(number(loss) - before);
      const std::vector<double> part = doubles(destination);
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::copy_n(part.begin() + t * count, count, result.dlogits.begin() + t * vocabulary + begin);
      }
      begin += count;
    }
    return result;
  }

  std::vector<std::int32_t> targets_at(std::string_view name) {
    const RandomStream stream_of_name(7, name);
    std::vector<std::int32_t> targets;
    for (std::uint64_t t = 0; t < tokens; ++t) {
      targets.push_back(static_cast<std::int32_t>(stream_of_name.bits(t) % static_cast<std::uint64_t>(vocabulary)));
    }
    targets.front() = 0;
    targets.back() = vocabulary - 1;
    return targets;
  }
};

TEST_F(CrossEntropyTest, AnyShardsAgreeWithTheWholeInDouble) {
  const Tensor logits = random("logits", DType::float32, tokens, vocabulary);
  const std::vector<std::int32_t> targets = targets_at("targets");
  const reference::CrossEntropyResult expected = reference::cross_entropy(doubles(logits), vocabulary, targets);
  constexpr float factor = 0.25f;
  std::vector<double> gradient = expected.dlogits;
  for (double& element : gradient) element *= factor;
  const std::vector<std::vector<std::int64_t>> splits = {
      {vocabulary}, {400, vocabulary - 400}, {1100, 0, vocabulary - 1100}, {0, vocabulary - 1, 1}};
  for (const std::vector<std::int64_t>& columns : splits) {
    for (DType dtype : float_types) {
      for (bool in_place : {false, true}) {
        const Sharded found = run(logits, targets, columns, dtype, factor, in_place);
        // A float32 sum of up to 1024 terms (the rest is double) errs by 1024 epsilon of itself. The exponent of a
        // difference near 8 errs by 8 epsilon. A gradient is at most `factor` and is rounded once to its dtype.
        const double relative = (1024 + 16) * roundoff(DType::float32);
        for (double loss : found.losses) {
          EXPECT_NEAR(loss, expected.loss, tokens * (relative + 8 * roundoff(DType::float32)));
        }
        const DType stored = in_place ? DType::float32 : dtype;
        const double tolerance = factor * (relative + roundoff(stored));
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          ASSERT_NEAR(found.dlogits[i], gradient[i], tolerance) << "element " << i << " of " << columns.size();
        }
      }
    }
  }
}

// In a padded text the other tokens have the losses and gradients that they have without the padding. A row that does
// not count is written all the same.
TEST_F(CrossEntropyTest, TokensWithoutATargetDoNotCount) {
  const Tensor logits = random("logits", DType::float32, tokens, vocabulary);
  const std::vector<std::int32_t> all = targets_at("targets");
  std::vector<std::int32_t> padded = all;
  for (std::size_t t : {std::size_t{0}, std::size_t{4}, static_cast<std::size_t>(tokens - 1)}) padded[t] = -1;
  const std::vector<double> whole = doubles(logits);
  double expected = 0;
  for (std::size_t t = 0; t < padded.size(); ++t) {
    if (padded[t] < 0) continue;
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(t) * vocabulary;
    expected += reference::cross_entropy({first, first + vocabulary}, vocabulary, {padded[t]}).loss;
  }
  for (const std::vector<std::int64_t>& columns : {std::vector{vocabulary}, std::vector{400, vocabulary - 400}}) {
    for (DType dtype : float_types) {
      for (bool in_place : {false, true}) {
        const Sharded with = run(logits, all, columns, dtype, 1.0f, in_place);
        const Sharded found = run(logits, padded, columns, dtype, 1.0f, in_place);
        // As above, a token.
        for (double loss : found.losses) EXPECT_NEAR(loss, expected, tokens * (1024 + 24) * float_roundoff);
        for (std::size_t i = 0; i < found.dlogits.size(); ++i) {
          ASSERT_EQ(found.dlogits[i], padded[i / vocabulary] < 0 ? 0.0 : with.dlogits[i]) << "element " << i;
        }
      }
    }
  }
}

TEST_F(CrossEntropyTest, GradientOfATokenSumsToZero) {
  const Tensor logits = random("logits", DType::float32, tokens, vocabulary);
  const Sharded found = run(logits, targets_at("targets"), {700, vocabulary - 700}, DType::float32, 1.0f, false);
  for (std::int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (std::int64_t i = 0; i < vocabulary; ++i) sum += found.dlogits[t * vocabulary + i];
    // Probabilities add up to one within the error of the float32 sum they were divided by.
    EXPECT_NEAR(sum, 0.0, (1024 + 16) * roundoff(DType::float32));
  }
}

TEST_F(CrossEntropyTest, GradientIsTheDerivativeOfTheReference) {
  const Tensor logits = random("logits", DType::float32, tokens, vocabulary);
  const std::vector<std::int32_t> targets = targets_at("targets");
  const Sharded found = run(logits, targets, {vocabulary}, DType::float32, 1.0f, false);
  std::vector<double> x = doubles(logits);
  constexpr double step = 1e-4;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t column : {std::int64_t{targets[t]}, t * 31}) {
      double& element = x[t * vocabulary + column];
      const double at = element;
      element = at + step;
      const double above = reference::cross_entropy(x, vocabulary, targets).loss;
      element = at - step;
      const double below = reference::cross_entropy(x, vocabulary, targets).loss;
      element = at;
      // Truncation step^2, cancellation 2^-53 * 70 / step, and the float32 sum as above.
      EXPECT_NEAR(found.dlogits[t * vocabulary + column], (above - below) / (2 * step),
                  1e-8 + (1024 + 16) * roundoff(DType::float32));
    }
  }
}

TEST_F(CrossEntropyTest, StaysFiniteForLargeLogits) {
  std::vector<double> values = doubles(random("logits", DType::float32, tokens, vocabulary));
  for (double& value : values) value = 1000.0 * value + 5000.0;
  const Tensor logits = tensor_of(DType::float32, tokens, vocabulary, values);
  const std::vector<std::int32_t> targets = targets_at("targets");
  const reference::CrossEntropyResult expected = reference::cross_entropy(doubles(logits), vocabulary, targets);
  const Sharded found = run(logits, targets, {vocabulary}, DType::float32, 1.0f, false);
  // Differences of logits below 1e4 are rounded once each.
  const double tolerance = 1e4 * 2 * roundoff(DType::float32) + 1e-4;
  EXPECT_NEAR(found.losses.front(), expected.loss, tokens * tolerance);
  for (std::size_t i = 0; i < expected.dlogits.size(); ++i) {
    ASSERT_NEAR(found.dlogits[i], expected.dlogits[i], tolerance);
  }
}

// Only one rank of a vocabulary group counts the loss; the gradient does not depend on it.
TEST_F(CrossEntropyTest, NoLossIsAskedForByAnEmptyTensor) {
  const Tensor logits = random("logits", DType::float32, tokens, vocabulary);
  const Tensor targets = tensor_of(targets_at("targets"));
  Tensor maximum = poisoned(DType::float32, tokens, 1), sums = poisoned(DType::float32, tokens, 2);
  vocabulary_sums(context, logits, targets, 0, maximum, sums);
  Tensor loss = zeros(DType::float64, 1, 1);
  Tensor with = poisoned(DType::float32, tokens, vocabulary), without = poisoned(DType::float32, tokens, vocabulary);
  cross_entropy_gradient(context, logits, maximum, sums, targets, 0, 1.0f, with, loss);
  cross_entropy_gradient(context, logits, maximum, sums, targets, 0, 1.0f, without, {});
  EXPECT_EQ(doubles(without), doubles(with));
}

TEST_F(CrossEntropyTest, AnEmptyShardHasNoMaximum) {
  Tensor maximum = poisoned(DType::float32, 2, 1), sums = poisoned(DType::float32, 2, 2);
  vocabulary_sums(context, TensorView(nullptr, DType::float32, 2, 0), tensor_of(std::vector<std::int32_t>{0, 1}), 0,
                  maximum, sums);
  EXPECT_EQ(doubles(maximum), std::vector<double>(2, -std::numeric_limits<double>::infinity()));
  EXPECT_EQ(doubles(sums), std::vector<double>(4, 0.0));
}

// Logits that rise along the row, so that each thread meets a larger maximum again and again; entries of -infinity, for
// a whole shard too.
TEST_F(CrossEntropyTest, MasksAndRisingLogitsAreSummedInOnePass) {
  std::vector<double> values;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const bool masked = t % 2 == 0 ? i < 400 : i % 3 != 0;
      values.push_back(masked ? -std::numeric_limits<double>::infinity() : 0.125 * static_cast<double>(i + t));
    }
  }
  const Tensor logits = tensor_of(DType::float32, tokens, vocabulary, values);
  const std::vector<std::int32_t> targets(tokens, 1302);  // 3 * 434: not masked
  const reference::CrossEntropyResult expected = reference::cross_entropy(doubles(logits), vocabulary, targets);
  for (const std::vector<std::int64_t>& columns : {std::vector{vocabulary}, std::vector{400, vocabulary - 400}}) {
    const Sharded found = run(logits, targets, columns, DType::float32, 1.0f, false);
    for (double loss : found.losses) EXPECT_NEAR(loss, expected.loss, tokens * 64 * float_roundoff);
    for (std::size_t i = 0; i < expected.dlogits.size(); ++i) {
      ASSERT_NEAR(found.dlogits[i], expected.dlogits[i], 64 * float_roundoff) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace weft
