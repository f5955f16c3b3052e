// Text as tokens, in an order that no layout changes: which window of the files a sample is depends on the run's seed and the
// sample's global index alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace weft {

// A whole file in memory, read-only, paged in by the system as it is used. Throws Error (request) naming a file that is missing,
// unreadable or empty.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::uint8_t> bytes_;
};

// Bytes as tokens. Samples are windows of sequence_length + 1 bytes (inputs and the bytes that follow them) that begin every
// sequence_length bytes and never cross a file; an epoch is a permutation of all windows. Reading is thread-safe.
class TokenDataset {
 public:
  // Throws Error (request) naming a file that cannot be used or is too short for one window.
  TokenDataset(const std::vector<std::string>& files, std::int64_t sequence_length, std::int64_t vocab_size,
               std::uint64_t seed);

  std::int64_t windows() const { return window_ends_.back(); }
  // The window that sample 0, 1, 2, ... of the run reads.
  std::int64_t window_of(std::int64_t sample) const;
  // sequence_length tokens and their targets. Throws Error (failure) naming file and offset of a token outside the vocabulary.
  void read(std::int64_t sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  std::vector<MappedFile> files_;
  std::vector<std::int64_t> window_ends_;  // windows in the files up to and with this one
  std::int64_t sequence_length_, vocab_size_;
  std::uint64_t seed_;
};

// A permutation of [0, count) as a pure function of (seed, epoch), in constant memory: a Feistel network over the next
// power of four, walked until it lands inside (cycle walking).
std::int64_t permuted_index(std::uint64_t seed, std::int64_t epoch, std::int64_t count, std::int64_t index);

struct BatchShape {
  std::int64_t microbatches = 1;     // a rank and step
  std::int64_t microbatch_size = 1;  // sequences
  std::int64_t data_ranks = 1;
};
// The sample that data-parallel rank `rank` reads as sequence `sequence` of microbatch `microbatch` in step `step` (from 0).
// Over all of them a step covers one run of global_batch_size consecutive samples, whatever the degree.
std::int64_t sample_index(const BatchShape& shape, std::int64_t step, std::int64_t microbatch, std::int64_t rank,
                          std::int64_t sequence);

}  // namespace weft
