// The tokens of the files that a sample has: a function of its number alone, whatever the layout of the run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/range.h"
#include "trainer/config/config.h"
#include "trainer/data/order_cache.h"
#include "trainer/data/token_file.h"

namespace weft {

// Tokens first .. first + count - 1 of a file; files count from 0.
struct TokenPiece {
  std::int64_t file = 0, first = 0, count = 0;
  bool one_document = false;  // known to lie in a single one
  bool operator==(const TokenPiece&) const = default;
};

// Position of sample `index` of an epoch after `count` samples are shuffled: for each (seed, epoch) computed without a
// table, a permutation of 0 .. count-1. `epoch` is the name of a stream of random numbers. Requires
// 0 <= index < count <= 2^62.
std::int64_t shuffled_position(std::uint64_t seed, std::string_view epoch, std::int64_t index, std::int64_t count);

// A sample of one of several sources: number `index` of source `source`, both from 0.
struct DrawnSample {
  std::size_t source = 0;
  std::int64_t index = 0;
  bool operator==(const DrawnSample&) const = default;
};

// Mixes endless sources by weights without a table or state. For any n, the first n samples have n times the parts of
// the weights, off by less than the number of sources. Each source gives its samples 0, 1, 2 ... in turn.
class WeightedDraw {
 public:
  // Requires weights that are at least 0 and finite, one of them above 0.
  explicit WeightedDraw(std::span<const double> weights);
  // 0 <= sample <= 2^62.
  DrawnSample draw(std::int64_t sample) const;

 private:
  // By source, times 2^63: the part of the weights up to this one that the sources before it have.
  std::vector<std::uint64_t> before_;
};

// Immutable; safe to use from several threads.
class SampleOrder {
 public:
  virtual ~SampleOrder() = default;
  // The tokens of a sample, in order: sequence_length + 1, of packed documents perhaps fewer. No piece is empty. Throws
  // Error (request) if an index has changed.
  virtual std::vector<TokenPiece> pieces(std::int64_t sample) const = 0;
  // How often a run of `samples` samples reads the tokens of each part that has an order of its own.
  virtual std::vector<double> passes(std::int64_t samples) const = 0;
  // Two runs over equal files read alike if their seeds, keys and these texts are equal.
  virtual std::string identity() const { return {}; }
  // Further facts for a reader, or nothing.
  virtual std::string remark() const { return {}; }
};

// The tokens of each file that `split` gives to a use (split_sequences): 0 training, 1 validation, 2 test. All of it
// without a split. Throws Error (request) naming `key` and the file if the part has too few tokens for one sample of
// sequence_length + 1.
std::vector<Range> split_files(const std::vector<TokenFile>& files, const std::string& split, std::size_t use,
                               std::int64_t sequence_length);

// The samples of an epoch of some files, in no order. Immutable; safe to use from several threads.
class SamplePool {
 public:
  virtual ~SamplePool() = default;
  virtual std::int64_t samples() const = 0;
  // Of sample 0 .. samples() - 1, as SampleOrder::pieces.
  virtual std::vector<TokenPiece> pieces(std::int64_t sample) const = 0;
  // Of packed documents: tokens in all sequences, over the tokens that they have room for.
  virtual std::optional<double> filled() const { return std::nullopt; }
};
// Windows of sequence_length + 1 tokens that start every sequence_length tokens of the parts `ranges` of files,
// numbered from first_file on. Neighbours share one token: the last target of one is the first token of the next. No
// window crosses from one file into the next; the rest at the end of a file is not read.
std::unique_ptr<SamplePool> make_window_pool(std::span<const Range> ranges, std::int64_t first_file,
                                             std::int64_t sequence_length);
// Sequences of whole documents: none is cut that fits into one (packed_documents.cpp). Throws Error (request) as
// TokenIndex::document_lengths and OrderCache::tables, and if nothing is left to deal.
std::unique_ptr<SamplePool> make_packed_pool(std::span<const TokenFile> files, std::span<const Range> ranges,
                                             std::int64_t first_file, std::int64_t sequence_length,
                                             const OrderCache& cache);

// Weft's own order. Samples are windows of the parts `ranges` of files, or packed sequences. Without weights the
// samples of all files are one pool, and each epoch has every sample once. With weights each file is a source with
// epochs of its own.
std::unique_ptr<SampleOrder> make_shuffled_order(const std::vector<TokenFile>& files, const std::vector<Range>& ranges,
                                                 bool packed, const std::vector<double>& weights,
                                                 const OrderRequest& request);
// Megatron's (megatron_order.h). It depends on request.samples. Requires a seed below 2^32. Throws Error (request) as
// those, and for several files without weights.
std::unique_ptr<SampleOrder> make_megatron_order(const std::vector<TokenFile>& files, const std::string& split,
                                                 const std::vector<double>& weights, const OrderRequest& request);

}  // namespace weft
