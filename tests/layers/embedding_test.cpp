#include "layers/kernels/token_kernels.h"

#include "parallel/runtime/range.h"
#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

constexpr std::int64_t vocabulary = 11;

// Repeats, both ends of the vocabulary, and both sides of every shard border used below.
const std::vector<std::int32_t> ids = {4, 0, 10, 4, 3, 7, 4, 6, 10, 0};

class Embedding : public KernelTest {};

TEST_F(Embedding, ForwardCopiesRowsOfItsShardAndZeroesOthers) {
  for (DType dtype : float_types) {
    for (std::int64_t hidden : odd_sizes) {
      const Tensor table = random("table", dtype, vocabulary, hidden);
      const std::vector<double> whole = doubles(table);
      for (const auto& [begin, rows] : {Range{0, 11}, Range{0, 4}, Range{4, 3}, Range{7, 4}, Range{5, 0}}) {
        SCOPED_TRACE(fmt::format("{} hidden {} shard {} + {}", name_of(dtype), hidden, begin, rows));
        Tensor y = poisoned(dtype, static_cast<std::int64_t>(ids.size()), hidden);
        embedding_forward(context, tensor_of(ids), table.view().rows_from(begin, rows), begin, y);
        std::vector<double> expected;
        for (std::int32_t id : ids) {
          for (std::int64_t i = 0; i < hidden; ++i) {
            expected.push_back(id >= begin && id < begin + rows ? whole[id * hidden + i] : 0.0);
          }
        }
        EXPECT_EQ(doubles(y), expected);
      }
    }
  }
}

TEST_F(Embedding, BackwardAddsInTokenOrder) {
  for (DType dtype : float_types) {
    for (std::int64_t hidden : odd_sizes) {
      for (const auto& [begin, rows] : {Range{0, 11}, Range{4, 3}, Range{5, 0}}) {
        SCOPED_TRACE(fmt::format("{} hidden {} shard {} + {}", name_of(dtype), hidden, begin, rows));
        const Tensor dy = random("dy", dtype, static_cast<std::int64_t>(ids.size()), hidden);
        Tensor dtable = random("dtable", DType::float32, rows, hidden);
        // The order is part of the contract, so float32 additions in that order give the very bits.
        std::vector<float> expected = read<float>(*stream, dtable);
        const std::vector<double> gradient = doubles(dy);
        for (std::size_t token = 0; token < ids.size(); ++token) {
          const std::int64_t row = ids[token] - begin;
          if (row < 0 || row >= rows) continue;
          for (std::int64_t i = 0; i < hidden; ++i) {
            expected[row * hidden + i] += static_cast<float>(gradient[token * hidden + i]);
          }
        }
        embedding_backward(context, tensor_of(ids), dy, begin, dtable);
        EXPECT_EQ(read<float>(*stream, dtable), expected);
      }
    }
  }
}

TEST_F(Embedding, NoTokensChangeNothing) {
  const Tensor table = random("table", DType::bfloat16, vocabulary, 3);
  Tensor none = poisoned(DType::bfloat16, 0, 3), dtable = random("dtable", DType::float32, vocabulary, 3);
  const std::vector<double> before = doubles(dtable);
  const Tensor no_ids = tensor_of({});
  embedding_forward(context, no_ids, table, 0, none);
  embedding_backward(context, no_ids, none, 0, dtable);
  EXPECT_EQ(doubles(dtable), before);
}

}  // namespace
}  // namespace weft
