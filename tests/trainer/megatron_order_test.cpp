// Megatron's order against vectors of Megatron's own helpers and of NumPy, and against the properties that define it.
// tools/compare/megatron_order.py compares many random cases with NumPy.
#include "trainer/data/megatron_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "tests/trainer/token_file_sample.h"

namespace weft {
namespace {

using Lengths = std::vector<std::int32_t>;

struct Tables {
  MegatronEpochs epochs;
  std::vector<std::int32_t> documents;
  std::vector<SampleStart> starts;
  std::vector<std::uint32_t> shuffle;
};

Tables tables_of(const Lengths& lengths, const OrderRequest& request) {
  std::mt19937 generator(request.seed);
  Tables tables;
  tables.epochs = megatron_epochs(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), request);
  tables.documents = megatron_documents({0, std::ssize(lengths)}, tables.epochs, generator);
  tables.starts = megatron_starts(lengths, tables.documents, request.sequence_length, tables.epochs.samples);
  tables.shuffle = megatron_shuffle(tables.epochs, generator);
  return tables;
}

// A dataset of sequences of these lengths, each a document.
class ListedSequences final : public TokenIndex {
 public:
  explicit ListedSequences(Lengths lengths) : TokenIndex("listed"), lengths_(std::move(lengths)), begins_{0} {
    for (const std::int32_t length : lengths_) begins_.push_back(begins_.back() + length);
  }
  std::int64_t tokens() const override { return begins_.back(); }
  std::int64_t documents() const override { return std::ssize(lengths_); }
  std::int64_t document_begin(std::int64_t document) const override {
    return begins_.at(static_cast<std::size_t>(document));
  }
  std::vector<std::int32_t> sequence_lengths() const override { return lengths_; }

 private:
  Lengths lengths_;
  std::vector<std::int64_t> begins_;
};

std::shared_ptr<const TokenIndex> listed(Lengths lengths) {
  return std::make_shared<const ListedSequences>(std::move(lengths));
}

// numpy.random.RandomState(42).shuffle(numpy.arange(10))
TEST(NumpyRandom, ShufflesAsRandomStateDoes) {
  std::vector<int> numbers(10);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::mt19937 generator(42);
  numpy_shuffle(std::span(numbers), generator);
  EXPECT_EQ(numbers, (std::vector<int>{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}));
}

// numpy.random.RandomState(7).randint(0, most + 1, dtype=numpy.uint64), three times
TEST(NumpyRandom, DrawsTwiceForIntervalsAbove32Bits) {
  const auto draw = [](std::uint64_t most) {
    std::mt19937 generator(7);
    std::vector<std::uint64_t> numbers(3);
    for (std::uint64_t& number : numbers) number = numpy_interval(generator, most);
    return numbers;
  };
  EXPECT_EQ(draw(std::uint64_t{1} << 40), (std::vector<std::uint64_t>{752595690692, 108744157686, 291964244179}));
  EXPECT_EQ(draw(0xffffffff), (std::vector<std::uint64_t>{327741615, 976413892, 3349725721}));
  EXPECT_EQ(draw(0), (std::vector<std::uint64_t>{0, 0, 0}));
}

// From Megatron's helpers.cpp and gpt_dataset.py, with seed 1234 and sequences of 4.
TEST(MegatronOrder, MatchesMegatronsOwnTables) {
  const Tables joined = tables_of({4, 3, 6}, {4, 5, 1234});
  EXPECT_EQ(joined.epochs, (MegatronEpochs{2, 6, 6, false}));
  EXPECT_EQ(joined.documents, (std::vector<std::int32_t>{2, 1, 2, 0, 1, 0}));
  EXPECT_EQ(joined.starts, (std::vector<SampleStart>{{0, 0}, {0, 4}, {1, 2}, {2, 3}, {3, 1}, {4, 1}, {5, 2}}));
  EXPECT_EQ(joined.shuffle, (std::vector<std::uint32_t>{0, 4, 3, 2, 5, 1}));

  const Tables apart = tables_of({4, 3, 6, 5, 7, 2, 9, 3}, {4, 12, 1234});
  EXPECT_EQ(apart.epochs, (MegatronEpochs{2, 19, 9, true}));
  EXPECT_EQ(apart.documents, (std::vector<std::int32_t>{2, 1, 6, 0, 4, 5, 3, 7, 5, 0, 3, 4, 2, 6, 1, 7}));
  EXPECT_EQ(apart.starts, (std::vector<SampleStart>{{0, 0},  {0, 4},  {1, 2},  {2, 3},  {2, 7},  {3, 2},  {4, 2},
                                                    {4, 6},  {6, 1},  {7, 0},  {8, 1},  {9, 3},  {10, 3}, {11, 2},
                                                    {11, 6}, {12, 3}, {13, 1}, {13, 5}, {14, 0}, {15, 1}}));
  EXPECT_EQ(apart.shuffle,
            (std::vector<std::uint32_t>{7, 3, 5, 1, 4, 8, 0, 2, 6, 16, 10, 18, 14, 17, 13, 12, 9, 11, 15}));
}

// The epochs' tokens written out one after another; sample j is the sequence_length + 1 tokens from j * sequence_length
// on.
TEST(MegatronOrder, PiecesAreWindowsOfTheEpochsWrittenOut) {
  std::mt19937 chance(41);
  int separate = 0;
  for (int round = 0; round < 400; ++round) {
    Lengths lengths(1 + chance() % 30);
    for (std::int32_t& length : lengths) length = static_cast<std::int32_t>(chance() % 12);
    lengths.push_back(2 + static_cast<std::int32_t>(chance() % 9));
    // The split leaves out a sequence at each end.
    lengths.insert(lengths.begin(), 5);
    const SequenceRange split{1, std::ssize(lengths)};
    lengths.push_back(5);
    OrderRequest request;
    request.sequence_length = static_cast<std::int64_t>(1 + chance() % 9);
    request.seed = static_cast<std::uint32_t>(chance());
    if (chance() % 4 != 0) request.samples = static_cast<std::int64_t>(chance() % 100);
    const std::string why = token_refusal([&] {
      const MegatronOrder order(listed(lengths), split, request);
      EXPECT_GE(order.samples(), std::max<std::int64_t>(1, request.samples));
      std::mt19937 generator(request.seed);
      const std::vector<std::int32_t> documents = megatron_documents(split, order.epochs(), generator);
      std::vector<std::pair<std::int64_t, std::int64_t>> stream;  // sequence and number of each token
      for (const std::int32_t document : documents) {
        const std::int64_t first = std::accumulate(lengths.begin(), lengths.begin() + document, std::int64_t{0});
        for (std::int32_t t = 0; t < lengths[static_cast<std::size_t>(document)]; ++t) {
          stream.emplace_back(document, first + t);
        }
      }
      // The shuffle is checked against NumPy; here only that it is one.
      const std::vector<std::uint32_t> shuffle = megatron_shuffle(order.epochs(), generator);
      std::set<std::size_t> seen;
      for (std::int64_t k = 0; k < order.samples(); ++k) {
        std::vector<std::pair<std::int64_t, std::int64_t>> tokens;
        for (const SequencePiece& piece : order.pieces(k)) {
          for (std::int64_t t = 0; t < piece.count; ++t) tokens.emplace_back(piece.sequence, piece.first + t);
        }
        const std::size_t row = shuffle[static_cast<std::size_t>(k)];
        EXPECT_TRUE(seen.insert(row).second);
        const std::size_t begin = row * static_cast<std::size_t>(request.sequence_length);
        const std::size_t end = begin + static_cast<std::size_t>(request.sequence_length) + 1;
        ASSERT_LE(end, stream.size());
        EXPECT_EQ(tokens, decltype(tokens)(stream.begin() + static_cast<std::ptrdiff_t>(begin),
                                           stream.begin() + static_cast<std::ptrdiff_t>(end)));
      }
      EXPECT_EQ(std::ssize(seen), order.samples());
      separate += order.epochs().separate_last;
    });
    EXPECT_TRUE(why == "accepted" || why.find("has no sample of") != std::string::npos) << why;
  }
  EXPECT_GT(separate, 20);
}

TEST(MegatronOrder, ALastEpochThatIsHardlyNeededIsShuffledApart) {
  // 100 tokens an epoch and sequences of 1: 99 samples of an epoch, and int(0.8 * 99) = 79 is the threshold.
  const auto epochs = [](std::int64_t samples) { return megatron_epochs(100, {1, samples, 1}); };
  EXPECT_EQ(epochs(99), (MegatronEpochs{1, 99, 99, false}));
  EXPECT_EQ(epochs(100), (MegatronEpochs{2, 199, 99, true}));
  EXPECT_EQ(epochs(99 + 78), (MegatronEpochs{2, 199, 99, true}));
  EXPECT_EQ(epochs(99 + 79), (MegatronEpochs{2, 199, 199, false}));
  EXPECT_EQ(epochs(199), (MegatronEpochs{2, 199, 199, false}));
  EXPECT_EQ(epochs(200), (MegatronEpochs{3, 299, 199, true}));
}

// Exactly, also where a division in float32 errs.
TEST(MegatronOrder, LeavesOutALastPartialSample) {
  const std::int64_t tokens = (std::int64_t{1} << 24) + 2;
  EXPECT_EQ(megatron_epochs(tokens, {1, 0, 1}).samples, tokens - 1);
  EXPECT_EQ(megatron_epochs(10, {4, 0, 1}).samples, 2);
  EXPECT_EQ(megatron_epochs(9, {4, 0, 1}).samples, 2);
  EXPECT_EQ(megatron_epochs(8, {4, 0, 1}).samples, 1);
}

TEST(MegatronOrder, RefusesWhatHasNoOrder) {
  const auto refusal = [](std::int64_t tokens, const OrderRequest& request) {
    return token_refusal([&] { megatron_epochs(tokens, request); });
  };
  EXPECT_NE(refusal(1, {4, 5, 1}).find("a split with 1 tokens"), std::string::npos);
  EXPECT_NE(refusal(0, {4, 0, 1}).find("a split with 0 tokens"), std::string::npos);
  EXPECT_NE(refusal(4, {4, 0, 1}).find("has no sample of 4 + 1"), std::string::npos);
  EXPECT_EQ(refusal(5, {4, 0, 1}), "accepted");
  EXPECT_NE(refusal(5, {4, std::int64_t{1} << 61, 1}).find("more than 2^62 tokens"), std::string::npos);
  const std::string large = token_refusal([] { MegatronOrder(listed({2}), {0, 1}, {1, std::int64_t{1} << 31, 1}); });
  EXPECT_NE(large.find("more than 2^31 - 1"), std::string::npos) << large;
  EXPECT_THROW(MegatronOrder(listed({2}), {0, 2}, {1, 1, 1}), Error);
}

TEST(MegatronSplit, RoundsBoundsAsPythonDoes) {
  // Bounds of sequences 0.969 and 0.999 of the whole.
  EXPECT_EQ(split_sequences("969,30,1", 1000), (std::array<SequenceRange, 3>{{{0, 969}, {969, 999}, {999, 1000}}}));
  EXPECT_EQ(split_sequences("969,30,1", 100), (std::array<SequenceRange, 3>{{{0, 97}, {97, 100}, {100, 100}}}));
  // round(2.5) = 2, round(3.5) = 4, round(0.5) = 0
  EXPECT_EQ(split_sequences("1,1", 5), (std::array<SequenceRange, 3>{{{0, 2}, {2, 5}, {5, 5}}}));
  EXPECT_EQ(split_sequences("50, 50 ,0", 7), (std::array<SequenceRange, 3>{{{0, 4}, {4, 7}, {7, 7}}}));
  EXPECT_EQ(split_sequences(".5,.5", 1), (std::array<SequenceRange, 3>{{{0, 0}, {0, 1}, {1, 1}}}));
  EXPECT_EQ(split_sequences("0,1,1.", 4), (std::array<SequenceRange, 3>{{{0, 0}, {0, 2}, {2, 4}}}));
  EXPECT_EQ(split_sequences("100", 0), (std::array<SequenceRange, 3>{{{0, 0}, {0, 0}, {0, 0}}}));
}

TEST(MegatronSplit, RefusesWhatIsNoSplit) {
  for (const char* split : {"", ",", "1,", "1,,1", "1,2,3,4", "a", "1,-1", "1e3", "1.2.3", ".", "0,0,0", "inf", "nan",
                            "0x10", "1 2", "99,1,0\n"}) {
    EXPECT_NE(token_refusal([&] { split_sequences(split, 10); }).find(fmt::format("the split \"{}\": ", split)),
              std::string::npos)
        << split;
  }
  const std::string digits(400, '9');
  EXPECT_NE(token_refusal([&] { split_sequences(digits, 10); }), "accepted");
  EXPECT_NE(token_refusal([&] { split_sequences("1", std::int64_t{1} << 31); }), "accepted");
}

// From numpy and Megatron's build_blending_indices.
TEST(MegatronBlend, DrawsFromTheDatasetFurthestBehind) {
  const BlendPlan plan = plan_blend(std::vector<double>{30, 70}, 10);
  EXPECT_EQ(plan.weights, (std::vector<double>{0.3, 0.7}));
  EXPECT_EQ(plan.requests, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(plan.samples, 10);
  const MegatronBlend blend = blend_samples(plan.weights, plan.samples);
  EXPECT_EQ(blend.dataset, (std::vector<std::int16_t>{1, 0, 1, 1, 0, 1, 1, 0, 1, 1}));
  std::vector<std::int64_t> drawn(2);
  for (std::size_t k = 0; k < blend.dataset.size(); ++k) {
    EXPECT_EQ(blend.sample[k], drawn[static_cast<std::size_t>(blend.dataset[k])]++);
  }
}

// Weights of which two datasets are equally far behind only if the product is rounded before the difference.
TEST(MegatronBlend, RoundsProductsAsMegatronsBuildDoes) {
  const BlendPlan plan = plan_blend(std::vector<double>{7, 5, 3, 1, 2, 5, 9, 4, 2}, 151);
  const MegatronBlend blend = blend_samples(plan.weights, plan.samples);
  std::uint64_t hash = 0;
  for (const std::int16_t dataset : blend.dataset) hash = hash * 31 + static_cast<std::uint64_t>(dataset);
  EXPECT_EQ(hash, 8453167117696320512u);
}

TEST(MegatronBlend, StaysWithinOneSampleOfItsWeights) {
  std::mt19937 chance(43);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> weights(1 + chance() % 20);
    for (double& weight : weights) weight = 1 + static_cast<double>(chance() % 100);
    const BlendPlan plan = plan_blend(weights, 2000);
    const MegatronBlend blend = blend_samples(plan.weights, plan.samples);
    std::vector<std::int64_t> drawn(weights.size());
    for (std::size_t k = 0; k < blend.dataset.size(); ++k) ++drawn[static_cast<std::size_t>(blend.dataset[k])];
    for (std::size_t d = 0; d < weights.size(); ++d) {
      // Drawn while behind, a dataset ends less than one sample ahead, and the parts are requested with surplus.
      EXPECT_LT(static_cast<double>(drawn[d]), plan.weights[d] * static_cast<double>(plan.samples) + 1);
      EXPECT_LE(drawn[d], plan.requests[d]);
    }
  }
}

TEST(MegatronBlend, RefusesWhatIsNoBlend) {
  const auto refusal = [](const std::vector<double>& weights) {
    return token_refusal([&] { plan_blend(weights, 10); });
  };
  EXPECT_NE(token_refusal([] {
              plan_blend(std::vector{1.0, 2.0}, std::int64_t{1} << 31);
            }).find("than 2^31 - 1"),
            std::string::npos);
  EXPECT_NE(refusal({}).find("a blend of 0 datasets"), std::string::npos);
  EXPECT_NE(refusal(std::vector<double>(32767, 1.0)).find("a blend of 32767 datasets"), std::string::npos);
  EXPECT_EQ(refusal(std::vector<double>(32766, 1.0)), "accepted");
  EXPECT_NE(refusal({1, -1}).find("weight 1 of the blend is -1"), std::string::npos);
  EXPECT_NE(refusal({1, std::nan("")}).find("weight 1"), std::string::npos);
  EXPECT_NE(refusal({0, 0}).find("have the sum 0"), std::string::npos);
  EXPECT_NE(refusal({1e308, 1e308, 1e308}).find("have the sum inf"), std::string::npos);
}

}  // namespace
}  // namespace weft
