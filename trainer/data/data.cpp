#include "trainer/data/data.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "trainer/data/text_file.h"

namespace weft {
namespace {

// Four rounds make a Feistel network look random on large domains; the small domain of a test file needs more.
constexpr int feistel_rounds = 8;

// A permutation of the numbers of 2 * half_bits bits: each round can be inverted, so outputs are distinct.
std::uint64_t feistel(const RandomStream& random, int half_bits, std::uint64_t value) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint64_t round = 0; round < feistel_rounds; ++round) {
    left ^= random.bits(round << half_bits | right) & mask;
    std::swap(left, right);
  }
  return left << half_bits | right;
}

std::string content_of(const InputFile& file) {
  constexpr std::int64_t piece = std::int64_t{1} << 20, most_pieces = 64;
  const std::int64_t last = std::max<std::int64_t>(0, file.size() - piece);
  const std::int64_t pieces = std::min(most_pieces, (file.size() + piece - 1) / piece);
  RunningChecksum sum;
  std::vector<std::uint8_t> bytes;
  for (std::int64_t p = 0; p < pieces; ++p) {
    const std::int64_t begin =
        pieces < most_pieces ? p * piece : last / (pieces - 1) * p + last % (pieces - 1) * p / (pieces - 1);
    bytes.resize(static_cast<std::size_t>(std::min(piece, file.size() - begin)));
    file.read(begin, bytes);
    sum.add(bytes);
  }
  return fmt::format("{} bytes, xxh64 {:016x}", file.size(), sum.value());
}

}  // namespace

std::int64_t shuffled_position(std::uint64_t seed, std::int64_t epoch, std::int64_t index, std::int64_t count) {
  require(0 <= index && index < count && count <= std::int64_t{1} << 62, "a shuffled index lies inside its epoch");
  const RandomStream random(seed, fmt::format("data.order.{}", epoch));
  const int half_bits = (std::bit_width(static_cast<std::uint64_t>(count - 1)) + 1) / 2;
  // The network permutes the numbers below a power of four, which is less than 4 * count. Following its cycle to the
  // next number below count permutes 0 .. count-1, in less than four steps on average. The cycle passes through `index`
  // itself, so this ends.
  auto position = static_cast<std::uint64_t>(index);
  do {
    position = feistel(random, half_bits, position);
  } while (position >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(position);
}

std::string text_file_fault(const std::string& name, std::int64_t sequence_length) {
  try {
    const auto size = open_text(name).size();
    if (size > sequence_length) return {};
    return fmt::format("\"{}\": {} bytes are fewer than one window of sequence_length + 1 = {}", name, size,
                       sequence_length + 1);
  } catch (const Error& error) {
    return error.what();
  }
}

TokenDataset::TokenDataset(const std::vector<std::string>& files, std::int64_t sequence_length, std::int64_t vocab_size,
                           std::uint64_t seed)
    : first_sample_{0}, sequence_length_(sequence_length), vocab_size_(vocab_size), seed_(seed) {
  require(sequence_length >= 1 && vocab_size >= 1, "a dataset has windows and a vocabulary");
  if (files.empty()) fail_request("data.train names no file; give at least one text file");
  std::string faults;
  for (const std::string& name : files) {
    const std::string fault = text_file_fault(name, sequence_length);
    if (!fault.empty()) faults += fmt::format("{}data.train: {}", faults.empty() ? "" : "\n", fault);
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
  for (const std::string& name : files) {
    const auto size = files_.emplace_back(open_text(name)).size();
    first_sample_.push_back(first_sample_.back() + (size - 1) / sequence_length);
  }
}

std::int64_t TokenDataset::bytes() const {
  std::int64_t sum = 0;
  for (const InputFile& file : files_) sum += file.size();
  return sum;
}

std::vector<std::string> TokenDataset::contents() const {
  std::vector<std::string> all;
  for (const InputFile& file : files_) all.push_back(content_of(file));
  return all;
}

TokenDataset training_text(const Config& config) {
  return TokenDataset(config.data.train, config.training.sequence_length, config.model.vocab_size, config.run.seed);
}

std::string reading_text(const Config& config, const TokenDataset& data) {
  const std::int64_t steps = config.run.steps, sequences = config.training.global_batch_size;
  const std::int64_t tokens = sequences * config.training.sequence_length;
  const double passes =
      static_cast<double>(steps) * static_cast<double>(sequences) / static_cast<double>(data.samples_per_epoch());
  return fmt::format("{} bytes in {} {}; {} steps x {} tokens = {} tokens: {:.3g} passes", data.bytes(), data.files(),
                     data.files() == 1 ? "file" : "files", steps, tokens, steps * tokens, passes);
}

void TokenDataset::read(std::int64_t sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  require(sample >= 0 && tokens.size() == length && targets.size() == length, "a sample is read as one sequence");
  const std::int64_t count = samples_per_epoch();
  const std::int64_t window = shuffled_position(seed_, sample / count, sample % count, count);
  const auto file = std::upper_bound(first_sample_.begin(), first_sample_.end(), window) - first_sample_.begin() - 1;
  const std::int64_t offset = (window - first_sample_[file]) * sequence_length_;
  std::vector<std::uint8_t> bytes(length + 1);
  files_[file].read(offset, bytes);
  for (std::size_t i = 0; i <= length; ++i) {
    if (bytes[i] >= vocab_size_) {
      fail("\"{}\": the byte {} at offset {} is outside the vocabulary of {} tokens", files_[file].name(), bytes[i],
           offset + static_cast<std::int64_t>(i), vocab_size_);
    }
  }
  std::copy_n(bytes.begin(), length, tokens.begin());
  std::copy_n(bytes.begin() + 1, length, targets.begin());
}

}  // namespace weft
