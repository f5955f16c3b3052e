// The order in which Megatron's GPTDataset reads tokens (megatron/core/datasets/gpt_dataset.py, helpers.cpp), so that a
// run of Megatron can be continued or compared sample by sample. Three tables:
//
//   documents   the sequences of the split, once for each epoch, shuffled
//   starts      where each sample of sequence_length + 1 tokens begins in that stream; neighbours share one token
//   shuffle     the order in which samples are read
//
// The tables are pure functions of lengths and numbers; a sequence is what TokenFile::sequences() counts ("document" in
// Megatron's code).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/data/order_cache.h"
#include "trainer/data/token_index.h"

namespace weft {

// Sequences begin .. end - 1 of a dataset.
struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const SequenceRange&) const = default;
};

// The sequences for training, validation and test by Megatron's "--split 969,30,1". Parts are in proportion to up to
// three numbers. Their bounds are rounded as Python's round() does, a half to the even neighbour. Parts may be empty.
// Throws Error (request) unless the text has one to three numbers like 99.5 between commas, at least one above 0. It
// does so for 2^31 sequences or more, too.
std::array<SequenceRange, 3> split_sequences(std::string_view split, std::int64_t sequences);

// The same for splits of the same parts: "98,2" for "98, 2.0,0". Throws as split_sequences for a wrong number.
std::string canonical_split(std::string_view split);

// The numbers from which the tables are made.
struct MegatronEpochs {
  std::int64_t epochs = 1;
  std::int64_t samples = 0;  // of all epochs
  // Samples that are shuffled before and apart from the rest: those without the last epoch, where fewer than 80 % of
  // that are needed; otherwise all.
  std::int64_t first_samples = 0;
  bool separate_last = false;
  bool operator==(const MegatronEpochs&) const = default;
};
// Throws Error (request) if the split has fewer than two tokens, or one epoch has no sample and one epoch was asked
// for.
MegatronEpochs megatron_epochs(std::int64_t tokens_per_epoch, const OrderRequest& request);

// The table "documents": document_index of GPTDataset.
std::vector<std::int32_t> megatron_documents(SequenceRange split, const MegatronEpochs& epochs,
                                             std::mt19937& generator);

// The first token of a sample: token `offset` of the sequence at `position` in the table "documents".
struct SampleStart {
  std::int32_t position = 0;
  std::int32_t offset = 0;
  bool operator==(const SampleStart&) const = default;
};
// The table "starts": sample_index of GPTDataset, one row more than samples. `lengths` has the tokens of every sequence
// of the dataset.
std::vector<SampleStart> megatron_starts(std::span<const std::int32_t> lengths, std::span<const std::int32_t> documents,
                                         std::int64_t sequence_length, std::int64_t samples);

// The table "shuffle": shuffle_index of GPTDataset.
std::vector<std::uint32_t> megatron_shuffle(const MegatronEpochs& epochs, std::mt19937& generator);

// Tokens first .. first + count - 1 of the dataset, of one sequence.
struct SequencePiece {
  std::int64_t sequence = 0, first = 0, count = 0;
  bool operator==(const SequencePiece&) const = default;
};

// The order of one split of one dataset. Immutable; safe to use from several threads. 4 bytes for each sequence and
// epoch and 12 for each sample, in memory or in the file of a cache.
class MegatronOrder {
 public:
  // Tables that the cache lacks are made in one pass over the index, which is checked by it. Throws Error (request) as
  // megatron_epochs, TokenIndex::check and OrderCache::tables. It does so for orders that need more than 2^31 - 1
  // entries of a table, too, for which Megatron changes to int64.
  MegatronOrder(std::shared_ptr<const TokenIndex> dataset, SequenceRange split, const OrderRequest& request);
  MegatronOrder(MegatronOrder&&) = default;

  // At least as many as requested.
  std::int64_t samples() const { return epochs_.samples; }
  const MegatronEpochs& epochs() const { return epochs_; }
  // The tokens of sample 0 .. samples() - 1, in order: sequence_length + 1. Pieces may be empty. Throws Error (request)
  // if the index has changed or a table is damaged.
  std::vector<SequencePiece> pieces(std::int64_t sample) const;

 private:
  std::shared_ptr<const TokenIndex> dataset_;
  std::int64_t sequence_length_;
  MegatronEpochs epochs_;
  NumberTables tables_;  // documents; positions and offsets of starts in turn; shuffle
};

// The way in which Megatron blends several datasets by weights (megatron/core/datasets/blended_dataset.py, helpers.cpp
// and blended_megatron_dataset_builder.py). Sample k of a blend is sample `sample[k]` of dataset `dataset[k]`. Memory:
// 10 bytes for each sample.
struct MegatronBlend {
  std::vector<std::int16_t> dataset;
  std::vector<std::int64_t> sample;
};

// The samples that a blend of at least `samples` samples takes from each dataset.
struct BlendPlan {
  std::vector<double> weights;         // of sum 1, as the blend uses them
  std::vector<std::int64_t> requests;  // OrderRequest::samples for each dataset: 0.5 % more than its part
  std::int64_t samples = 0;            // of the blend: the sum of the parts, each rounded up
};
// Weights are divided by their sum, twice and in NumPy's order of summation, as Megatron does. Throws Error (request)
// for no dataset or 32767 and more, a weight that is negative or not finite, and weights of sum 0.
BlendPlan plan_blend(std::span<const double> weights, std::int64_t samples);

// Each sample is drawn from the dataset that is furthest behind: the largest weight * max(k, 1) - drawn, of equal ones
// the first. `weights` as in BlendPlan.
MegatronBlend blend_samples(std::span<const double> weights, std::int64_t samples);

// The parts of NumPy that Megatron's orders need, bit for bit: shuffles of numpy.random.RandomState and the rounding of
// numpy.sum. std::shuffle would give another order.

// A number of 0 .. most, as random_interval of numpy/random/src/distributions: bits of the generator under the smallest
// mask that covers `most`, drawn again while they are larger. Above 2^32 - 1 the first of two draws is the upper half.
std::uint64_t numpy_interval(std::mt19937& generator, std::uint64_t most);

// RandomState.shuffle of a one-dimensional array. RandomState(seed) is std::mt19937(seed); one generator serves several
// shuffles in turn.
template <typename Number>
void numpy_shuffle(std::span<Number> numbers, std::mt19937& generator) {
  for (std::size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[numpy_interval(generator, i)]);
}

// numpy.sum of a contiguous array of float64: pairwise, in blocks of 128 with eight partial sums
// (numpy/_core/src/umath/loops_utils.h.src). From eight numbers on it rounds otherwise than a loop.
double numpy_sum(std::span<const double> numbers);

}  // namespace weft
