// New tokens against a cache, in passes of any lengths: the rows of whole sequences.
#include "parallel/runtime/elementwise.h"
#include "tests/layers/attention_fixture.h"

namespace weft {
namespace {

class CachedAttentionTest : public AttentionTest {
 protected:
  struct Passes {
    std::vector<double> out;         // [sequences * length, query columns], as in one pass over whole sequences
    std::vector<double> cache;       // at the end
    std::vector<bool> cache_is_nan;  // by row
  };

  // `lengths` of the passes. Cache rows nobody wrote are NaN, and so is the output before each pass. `shift` of the
  // position that a pass is told stands for a caller that counts wrongly.
  Passes feed(const HeadShape& heads, const Tensor& qkv, std::int64_t sequences,
              const std::vector<std::int64_t>& lengths, std::int64_t capacity, std::int64_t shift = 0) {
    const std::int64_t length = heads.sequence_length, columns = heads.output_columns();
    const DType dtype = qkv.dtype();
    HeadShape cached = heads;
    cached.sequence_length = capacity;
    Tensor cache = poisoned(dtype, sequences * capacity, heads.key_value_columns());
    Passes result;
    result.out.resize(static_cast<std::size_t>(sequences * length * columns));
    std::int64_t position = 0;
    for (const std::int64_t tokens : lengths) {
      Tensor rows = poisoned(dtype, sequences * tokens, heads.columns());
      Tensor out = poisoned(dtype, sequences * tokens, columns);
      for (std::int64_t s = 0; s < sequences; ++s) {
        cast(*stream, qkv.view().rows_from(s * length + position, tokens), rows.view().rows_from(s * tokens, tokens));
      }
      attention_cached(context, cached, position + (position > 0 ? shift : 0), rows, cache, out);
      const std::vector<double> values = doubles(out);
      for (std::int64_t s = 0; s < sequences; ++s) {
        std::copy_n(values.begin() + s * tokens * columns, tokens * columns,
                    result.out.begin() + (s * length + position) * columns);
      }
      position += tokens;
    }
    result.cache = doubles(cache);
    for (std::int64_t row = 0; row < cache.rows(); ++row) {
      const auto first = result.cache.begin() + row * cache.columns();
      result.cache_is_nan.push_back(
          std::all_of(first, first + cache.columns(), [](double value) { return std::isnan(value); }));
    }
    return result;
  }
};

TEST_F(CachedAttentionTest, PassesOfAnyLengthsMakeTheRowsOfWholeSequences) {
  constexpr std::int64_t sequences = 3;
  for (DType dtype : float_types) {
    for (const HeadShape& heads :
         {HeadShape{4, 2, 6, 13}, HeadShape{2, 2, 64, 13}, HeadShape{4, 1, 130, 13}, HeadShape{4, 2, 24, 13, 16},
          HeadShape{4, 2, 6, 13, 140}, HeadShape{4, 2, 6, 13, 6, {1}}, HeadShape{4, 2, 6, 13, 6, {5}}}) {
      const Tensor qkv = random("qkv", dtype, sequences * 13, heads.columns());
      const std::vector<double> rounded = doubles(qkv);
      const reference::AttentionResult expected = reference::attention(heads, rounded);
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{13}, std::vector<std::int64_t>(13, 1), {5, 1, 1, 4, 2}}) {
        const std::int64_t capacity = 16;
        const Passes found = feed(heads, qkv, sequences, lengths, capacity);
        reference::expect_near(found.out, expected.out, out_tolerance(dtype, heads),
                               fmt::format("{} in {} passes", name_of(dtype), lengths.size()));
        // Keys and values as they were given, and nothing behind the last position.
        const std::int64_t columns = heads.key_value_heads * (heads.head_dim + heads.value_dim);
        const std::int64_t first = heads.columns() - columns;
        for (std::int64_t s = 0; s < sequences; ++s) {
          for (std::int64_t p = 0; p < capacity; ++p) {
            const std::int64_t row = s * capacity + p;
            ASSERT_EQ(found.cache_is_nan[static_cast<std::size_t>(row)], p >= 13) << row;
            for (std::int64_t c = 0; p < 13 && c < columns; ++c) {
              ASSERT_EQ(found.cache[static_cast<std::size_t>(row * columns + c)],
                        rounded[static_cast<std::size_t>((s * 13 + p) * heads.columns() + first + c)]);
            }
          }
        }
      }
    }
  }
}

// More keys than a block of any device takes at a time.
TEST_F(CachedAttentionTest, ReadsCachesOfAnyLength) {
  for (std::int64_t window : {0, 100, 129, 400}) {
    const HeadShape heads{2, 1, 16, 530, 16, {window}};
    for (DType dtype : float_types) {
      const Tensor qkv = random("qkv", dtype, 530, heads.columns());
      const Passes found = feed(heads, qkv, 1, {127, 1, 1, 127, 1, 270, 3}, 600);
      reference::expect_near(found.out, reference::attention(heads, doubles(qkv)).out, out_tolerance(dtype, heads),
                             fmt::format("{}, window {}", name_of(dtype), window));
    }
  }
}

// Who counts one position too few overwrites a token, and one too many reads a row that nobody wrote.
TEST_F(CachedAttentionTest, APositionOneOffIsSeen) {
  const HeadShape heads{2, 1, 16, 12};
  const Tensor qkv = random("qkv", DType::float32, 12, heads.columns());
  const std::vector<double> expected = reference::attention(heads, doubles(qkv)).out;
  for (std::int64_t shift : {-1, 1}) {
    const Passes found = feed(heads, qkv, 1, {5, 1, 6}, 16, shift);
    bool differs = false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      differs = differs || !(std::abs(found.out[i] - expected[i]) <= 100 * out_tolerance(DType::float32, heads));
    }
    EXPECT_TRUE(differs) << shift;
  }
}

}  // namespace
}  // namespace weft
