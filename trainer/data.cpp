#include "trainer/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"

namespace weft {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_request("data file {} cannot be read: {}", path.string(), std::strerror(errno));
  struct stat status = {};
  const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  void* data = MAP_FAILED;
  if (regular && status.st_size > 0) {
    data = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  }
  close(file);
  if (!regular) fail_request("data file {} is not a file", path.string());
  if (status.st_size == 0) fail_request("data file {} is empty", path.string());
  if (data == MAP_FAILED) fail_request("data file {} cannot be mapped: {}", path.string(), std::strerror(errno));
  bytes_ = {static_cast<const std::uint8_t*>(data), static_cast<std::size_t>(status.st_size)};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

TokenDataset::TokenDataset(const std::vector<std::string>& files, std::int64_t sequence_length,
                           std::int64_t vocab_size, std::uint64_t seed)
    : sequence_length_(sequence_length), vocab_size_(vocab_size), seed_(seed) {
  if (files.empty()) fail_request("data.train names no file");
  std::int64_t windows = 0;
  for (const std::string& path : files) {
    const MappedFile& file = files_.emplace_back(path);
    const auto size = static_cast<std::int64_t>(file.bytes().size());
    if (size < sequence_length + 1) {
      fail_request("data file {} has {} tokens; a sample of sequence_length {} needs {}", path, size, sequence_length,
                   sequence_length + 1);
    }
    windows += (size - 1) / sequence_length;
    window_ends_.push_back(windows);
  }
}

std::int64_t TokenDataset::window_of(std::int64_t sample) const {
  return permuted_index(seed_, sample / windows(), windows(), sample % windows());
}

void TokenDataset::read(std::int64_t sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  require(tokens.size() == length && targets.size() == length, "a sample fills sequence_length tokens and targets");
  const std::int64_t window = window_of(sample);
  const auto which = static_cast<std::size_t>(std::upper_bound(window_ends_.begin(), window_ends_.end(), window) -
                                              window_ends_.begin());
  const std::int64_t first_window = which == 0 ? 0 : window_ends_[which - 1];
  const auto offset = static_cast<std::size_t>((window - first_window) * sequence_length_);
  const MappedFile& file = files_[which];
  const auto bytes = file.bytes().subspan(offset, length + 1);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] >= vocab_size_) {
      fail("token {} at offset {} of {} is outside the vocabulary of {}", bytes[i], offset + i, file.path().string(),
           vocab_size_);
    }
  }
  std::copy(bytes.begin(), bytes.end() - 1, tokens.begin());
  std::copy(bytes.begin() + 1, bytes.end(), targets.begin());
}

std::int64_t permuted_index(std::uint64_t seed, std::int64_t epoch, std::int64_t count, std::int64_t index) {
  require(index >= 0 && index < count, "an index lies in its range");
  const RandomStream random(seed, fmt::format("data order of epoch {}", epoch));
  // Two halves of `half` bits each cover at least `count` values.
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const int half = std::max(1, (width + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      left ^= random.bits(round << 40 | right) & mask;
      std::swap(left, right);
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

std::int64_t sample_index(const BatchShape& shape, std::int64_t step, std::int64_t microbatch, std::int64_t rank,
                          std::int64_t sequence) {
  return ((step * shape.microbatches + microbatch) * shape.data_ranks + rank) * shape.microbatch_size + sequence;
}

}  // namespace weft
