// Training data as tokens. The tokens of a sample depend only on the seed and the sample's global number. In Megatron's
// order they depend on the number of samples of the run, too. The samples of a rank follow by arithmetic (BatchPlan).
// So every layout trains on the same batches in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/range.h"
#include "trainer/config/config.h"
#include "trainer/data/sample_order.h"
#include "trainer/data/text_vocabulary.h"
#include "trainer/data/token_windows.h"

namespace weft {

// The length of the shortest sequence that a file must have: packed documents do not fill theirs.
std::int64_t least_length(Documents documents, std::int64_t sequence_length);

// Why a file cannot be trained on: missing, unreadable, of no known format (token_file.h), damaged, or of another
// tokenizer (token_facts.h). It may also be too short for a sequence and the target of its last token. Empty if it can.
// If boundaries count the whole index is checked, in one pass: a wrong one would be a wrong mask or part. Ids of a file
// without facts are checked in 64 MiB of it (TokenFile::check_sample).
std::string token_file_fault(const std::string& name, const TextVocabulary& vocabulary, std::int64_t sequence_length,
                             bool boundaries_count = false);

// A sentence on files of data.train that are one document each by their format, where documents are masked or packed;
// empty if there are none. Files that cannot be read are passed over.
std::string unmarked_documents(const DataConfig& data);

// A sentence on files of tokens in data.train without facts beside them (token_facts.h), which are therefore not held
// against data.tokenizer; empty if there are none. Files that cannot be read are passed over.
std::string untold_tokenizer(const DataConfig& data);

// The contents of a file, independent of its name (TokenFile::content), and its weight. Throws as InputFile::read.
std::string content_of(const DataSource& source, const TokenFile& file);

// The training data of a run.
struct DataRequest {
  std::vector<DataSource> sources;
  DataOrder order = DataOrder::weft;
  Documents documents = Documents::join;
  std::string split = {};  // part for training (split_sequences); empty: all
  std::int64_t sequence_length = 0;
  std::uint64_t seed = 0;
  std::int64_t samples = 0;      // of the whole run, which only Megatron's order asks for
  std::string index_cache = {};  // folder of the tables of orders (order_cache.h); empty: in memory
};

// Samples of files of tokens in the order of a run (sample_order.h). Safe to read from several threads at once.
class TokenDataset {
 public:
  // Throws Error (request) naming every file with a fault (token_file_fault), and as the makers of orders.
  TokenDataset(const DataRequest& request, const TextVocabulary& vocabulary);

  std::int64_t files() const { return std::ssize(files_); }
  // Of all files.
  std::int64_t tokens() const;
  const TextVocabulary& vocabulary() const { return vocabulary_; }
  const SampleOrder& order() const { return *order_; }

  // Of each file.
  std::vector<std::string> contents() const;

  // Reads sample 0, 1, 2, ... of the whole run. If `to` masks documents, a target that belongs to another document than
  // its token does not count. Throws Error (request) naming file and position if a token lies outside the vocabulary.
  void read(std::int64_t sample, const SequenceText& to) const;

 private:
  TextVocabulary vocabulary_;
  std::vector<TokenFile> files_;
  std::vector<DataSource> sources_;
  std::unique_ptr<const SampleOrder> order_;
  std::int64_t sequence_length_;
};

// The data that a run trains on. Throws as TokenDataset and open_vocabulary.
TokenDataset training_data(const Config& config);
// "1115394 tokens in 1 file; 500 steps x 2048 tokens = 1024000 tokens: 0.92 passes"
std::string reading_text(const Config& config, const TokenDataset& data);

// A number of each token of a sample that its noise is drawn from, as any layout draws it.
void write_noise_keys(std::uint64_t seed, std::int64_t sample, std::span<std::int32_t> keys);

// The rank that reads each sample. Within a step the expression in sample() writes the numbers 0 .. sequences()-1 in
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

  // Fills `text` with the tokens of a data rank's microbatches, then the other parts (SequenceText), of equal size. Of
  // each sequence of `length` tokens it keeps the positions of `runs`. `source` is a TokenDataset or TextWindows
  // (text_windows.h).
  template <typename Source>
  void read(const Source& source, std::int64_t first, std::int64_t data_rank, std::int64_t length,
            std::span<const Range> runs, const TextParts& parts, std::span<std::int32_t> text) const {
    const std::int64_t part = std::ssize(text) / parts.count();
    std::vector<std::int32_t> sequence(static_cast<std::size_t>(parts.count() * length));
    const SequenceText whole = parts_of(sequence, parts);
    std::int64_t done = 0;
    for (std::int64_t m = 0; m < microbatches; ++m) {
      for (std::int64_t s = 0; s < microbatch_size; ++s) {
        const std::int64_t number = sample(first, m, data_rank, s);
        source.read(number, whole);
        if (parts.noise_seed) write_noise_keys(*parts.noise_seed, number, whole.noise_keys);
        for (const Range& run : runs) {
          for (std::int64_t p = 0; p < parts.count(); ++p) {
            std::copy_n(sequence.begin() + p * length + run.begin, run.count, text.begin() + p * part + done);
          }
          done += run.count;
        }
      }
    }
  }
};

}  // namespace weft
