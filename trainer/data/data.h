// Training text as tokens, one byte a token. The tokens of a sample depend only on the seed and the sample's global
// number. The samples of a rank follow by arithmetic (BatchPlan). So every layout trains on the same batches in the
// same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/input_file.h"
#include "parallel/runtime/range.h"
#include "trainer/config/config.h"

namespace weft {

// Position of sample `index` of an epoch after `count` samples are shuffled: for each (seed, epoch) computed without a
// table, a permutation of 0 .. count-1. Requires 0 <= index < count <= 2^62.
std::int64_t shuffled_position(std::uint64_t seed, std::int64_t epoch, std::int64_t index, std::int64_t count);

// Why a file cannot be trained on: missing, unreadable, empty, no text (text_file.h) or shorter than one window. Empty
// if it can.
std::string text_file_fault(const std::string& name, std::int64_t sequence_length);

// A file of n bytes holds windows of sequence_length + 1 bytes that start every sequence_length bytes. Neighbouring
// windows share one token: the last target of one is the first token of the next. No window crosses from one file into
// the next; the rest at the end of a file is not read. Safe to read from several threads at once.
class TokenDataset {
 public:
  // Throws Error (request) naming every file that is missing, unreadable, empty, shorter than one window, or no text
  // (text_file.h).
  TokenDataset(const std::vector<std::string>& files, std::int64_t sequence_length, std::int64_t vocab_size,
               std::uint64_t seed);

  std::int64_t samples_per_epoch() const { return first_sample_.back(); }
  std::int64_t files() const { return std::ssize(files_); }
  std::int64_t bytes() const;  // of all files

  // The contents of each file, independent of its name: "1115394 bytes, xxh64 41a2...". For a file of more than 64 MiB
  // the checksum covers 64 pieces of 1 MiB each, including the first and the last bytes. A change between the pieces
  // that keeps the size goes unnoticed. Throws as InputFile::read.
  std::vector<std::string> contents() const;

  // Reads sample 0, 1, 2, ... of the whole run; each epoch holds every window once, in an order of its own. Writes
  // sequence_length tokens, and as targets the token that follows each. Throws Error (failure) naming file and byte
  // offset if a token lies outside the vocabulary.
  void read(std::int64_t sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  std::vector<InputFile> files_;
  std::vector<std::int64_t> first_sample_;  // first sample of each file, then the number of all samples
  std::int64_t sequence_length_;
  std::int64_t vocab_size_;
  std::uint64_t seed_;
};

// The text that a run trains on. train() checks whether bytes are the model's tokens (text_file.h).
TokenDataset training_text(const Config& config);
// "1115394 bytes in 1 file; 500 steps x 2048 tokens = 1024000 tokens: 0.92 passes"
std::string reading_text(const Config& config, const TokenDataset& data);

// Which rank reads which sample. Within a step the expression in sample() writes the numbers 0 .. sequences()-1 in
// mixed radix with the digits (microbatch, data_rank, sequence): each number once, for any radices. So the ranks
// together read exactly the sequences() samples from `first` on. That set is the same for every data-parallel degree,
// microbatch size and number of microbatches with the same product. The next step begins where this one ends, whatever
// its batch size.
struct BatchPlan {
  std::int64_t microbatches = 1;
  std::int64_t data_ranks = 1;
  std::int64_t microbatch_size = 1;

  // Sequences of the global batch.
  std::int64_t sequences() const { return microbatches * data_ranks * microbatch_size; }
  // `first`: samples read by all steps before. The other arguments count from 0; `data_rank` is Mesh::data_index.
  std::int64_t sample(std::int64_t first, std::int64_t microbatch, std::int64_t data_rank,
                      std::int64_t sequence) const {
    return first + (microbatch * data_ranks + data_rank) * microbatch_size + sequence;
  }

  // Fills `text` with the tokens of a data rank's microbatches and then their targets. Of each sequence of `length`
  // tokens it keeps the positions of `runs`. `source` is a TokenDataset or TextWindows (text_windows.h).
  template <typename Source>
  void read(const Source& source, std::int64_t first, std::int64_t data_rank, std::int64_t length,
            std::span<const Range> runs, std::span<std::int32_t> text) const {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length)), targets(tokens.size());
    auto next_token = text.begin(), next_target = text.begin() + std::ssize(text) / 2;
    for (std::int64_t m = 0; m < microbatches; ++m) {
      for (std::int64_t s = 0; s < microbatch_size; ++s) {
        source.read(sample(first, m, data_rank, s), tokens, targets);
        for (const Range& run : runs) {
          next_token = std::copy_n(tokens.begin() + run.begin, run.count, next_token);
          next_target = std::copy_n(targets.begin() + run.begin, run.count, next_target);
        }
      }
    }
  }
};

}  // namespace weft
