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
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
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

struct MegatronRequest {
  std::int64_t sequence_length = 0;     // tokens; a sample has one more
  std::optional<std::int64_t> samples;  // at least so many; one epoch if absent
  std::uint32_t seed = 1234;
  // Whether a last sample with fewer tokens is left out. Megatron keeps it only for validation, if asked to.
  bool drop_last_partial = true;
};

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
// for. Megatron counts a last partial sample with a division in float32, which errs above 2^24 tokens; Weft counts
// exactly.
MegatronEpochs megatron_epochs(std::int64_t tokens_per_epoch, const MegatronRequest& request);

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
  MegatronOrder(std::shared_ptr<const TokenIndex> dataset, SequenceRange split, const MegatronRequest& request,
                const OrderCache& cache = OrderCache());
  MegatronOrder(MegatronOrder&&) = default;

  // At least as many as requested.
  std::int64_t samples() const { return epochs_.samples; }
  const MegatronEpochs& epochs() const { return epochs_; }
  // The tokens of sample 0 .. samples() - 1, in order: sequence_length + 1, fewer only in a last partial sample, which
  // Megatron fills with the padding token. Pieces may be empty. Throws Error (request) if the index has changed or a
  // table is damaged.
  std::vector<SequencePiece> pieces(std::int64_t sample) const;

 private:
  std::shared_ptr<const TokenIndex> dataset_;
  std::int64_t sequence_length_;
  MegatronEpochs epochs_;
  NumberTables tables_;  // documents; positions and offsets of starts in turn; shuffle
};

}  // namespace weft
