// Training data as tokens. The tokens of a sample depend only on the seed and the sample's global number. The samples
// of a rank follow by arithmetic (BatchPlan). So every layout trains on the same batches in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/range.h"
#include "trainer/config/config.h"
#include "trainer/data/text_vocabulary.h"
#include "trainer/data/token_windows.h"

namespace weft {

// Position of sample `index` of an epoch after `count` samples are shuffled: for each (seed, epoch) computed without a
// table, a permutation of 0 .. count-1. Requires 0 <= index < count <= 2^62.
std::int64_t shuffled_position(std::uint64_t seed, std::int64_t epoch, std::int64_t index, std::int64_t count);

// Why a file cannot be trained on: missing, unreadable, of no known format (token_source.h), damaged, of another
// tokenizer (token_facts.h), or shorter than one window. Empty if it can.
std::string token_file_fault(const std::string& name, const TextVocabulary& vocabulary, std::int64_t sequence_length);

// The windows of files of tokens (token_windows.h) in an order of their own. Safe to read from several threads at once.
class TokenDataset {
 public:
  // Throws Error (request) naming every file with a fault (token_file_fault).
  TokenDataset(const std::vector<std::string>& files, std::int64_t sequence_length, const TextVocabulary& vocabulary,
               std::uint64_t seed);

  std::int64_t samples_per_epoch() const { return windows_.windows(); }
  std::int64_t files() const { return std::ssize(files_); }
  // Of all files.
  std::int64_t tokens() const;
  const TextVocabulary& vocabulary() const { return vocabulary_; }

  // The contents of each file, independent of its name (TokenFile::content). Throws as InputFile::read.
  std::vector<std::string> contents() const;

  // Reads sample 0, 1, 2, ... of the whole run; each epoch holds every window once, in an order of its own. Writes
  // sequence_length tokens, and as targets the token that follows each. Throws Error (request) naming file and position
  // if a token lies outside the vocabulary.
  void read(std::int64_t sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  TextVocabulary vocabulary_;
  std::vector<TokenFile> files_;
  WindowMap windows_;
  std::int64_t sequence_length_;
  std::uint64_t seed_;
};

// The data that a run trains on. Throws as TokenDataset and open_vocabulary.
TokenDataset training_data(const Config& config);
// "1115394 tokens in 1 file; 500 steps x 2048 tokens = 1024000 tokens: 0.92 passes"
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
