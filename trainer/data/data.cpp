#include "trainer/data/data.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "trainer/data/token_facts.h"

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

// Why the ids of a file are not those of the run's tokenizer; empty if they may be.
std::string tokenizer_fault(const TokenFile& file, const TextVocabulary& vocabulary) {
  const bool bytes = vocabulary.name == "byte";
  if (file.format() == TokenFormat::text && !bytes) {
    return fmt::format(
        "text, but the tokens of this run are those of data.tokenizer \"{}\"; write them to a file first: weft data "
        "tokenize {} --tokenizer {} --output PREFIX",
        vocabulary.name, file.name(), vocabulary.name);
  }
  if (vocabulary.tokenizer == nullptr || file.format() == TokenFormat::text) return {};
  if (const auto facts = find_token_facts(file.name())) {
    if (facts->tokenizer_hash == vocabulary.tokenizer->content_hash()) return {};
    return fmt::format("its tokens are those of \"{}\" ({} tokens), not of data.tokenizer \"{}\" ({} tokens)",
                       facts->tokenizer, facts->vocab_size, vocabulary.name, vocabulary.tokenizer->vocab_size());
  }
  if (bytes && file.type() != TokenType::uint8) {
    return fmt::format(
        "{} ids, which are no bytes; name their tokenizer in data.tokenizer, or \"none\" to train on ids alone",
        name_of(file.type()));
  }
  return {};
}

std::vector<std::int64_t> tokens_of(const std::vector<TokenFile>& files) {
  std::vector<std::int64_t> tokens;
  for (const TokenFile& file : files) tokens.push_back(file.tokens());
  return tokens;
}

// Throws the faults of all files at once.
std::vector<TokenFile> opened(const std::vector<std::string>& names, std::int64_t sequence_length,
                              const TextVocabulary& vocabulary) {
  require(sequence_length >= 1 && vocabulary.size >= 1, "a dataset has windows and a vocabulary");
  if (names.empty()) fail_request("data.train names no file; give at least one");
  std::string faults;
  for (const std::string& name : names) {
    const std::string fault = token_file_fault(name, vocabulary, sequence_length);
    if (!fault.empty()) faults += fmt::format("{}data.train: {}", faults.empty() ? "" : "\n", fault);
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
  std::vector<TokenFile> files;
  for (const std::string& name : names) files.emplace_back(name, vocabulary.size);
  return files;
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

std::string token_file_fault(const std::string& name, const TextVocabulary& vocabulary, std::int64_t sequence_length) {
  try {
    const TokenFile file(name, vocabulary.size);
    if (const std::string fault = tokenizer_fault(file, vocabulary); !fault.empty()) {
      return fmt::format("\"{}\": {}", name, fault);
    }
    if (file.tokens() > sequence_length) return {};
    return fmt::format("\"{}\": {} {} are fewer than one window of sequence_length + 1 = {}", name, file.tokens(),
                       file.format() == TokenFormat::text ? "bytes" : "tokens", sequence_length + 1);
  } catch (const Error& error) {
    return error.what();
  }
}

TokenDataset::TokenDataset(const std::vector<std::string>& files, std::int64_t sequence_length,
                           const TextVocabulary& vocabulary, std::uint64_t seed)
    : vocabulary_(vocabulary),
      files_(opened(files, sequence_length, vocabulary)),
      windows_(tokens_of(files_), sequence_length),
      sequence_length_(sequence_length),
      seed_(seed) {}

std::int64_t TokenDataset::tokens() const {
  const std::vector<std::int64_t> all = tokens_of(files_);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::vector<std::string> TokenDataset::contents() const {
  std::vector<std::string> all;
  for (const TokenFile& file : files_) all.push_back(file.content());
  return all;
}

TokenDataset training_data(const Config& config) {
  return TokenDataset(config.data.train, config.training.sequence_length, open_vocabulary(config), config.run.seed);
}

std::string reading_text(const Config& config, const TokenDataset& data) {
  const std::int64_t steps = config.run.steps, sequences = config.training.global_batch_size;
  const std::int64_t tokens = sequences * config.training.sequence_length;
  const double passes =
      static_cast<double>(steps) * static_cast<double>(sequences) / static_cast<double>(data.samples_per_epoch());
  return fmt::format("{} tokens in {} {}; {} steps x {} tokens = {} tokens: {:.3g} passes", data.tokens(), data.files(),
                     data.files() == 1 ? "file" : "files", steps, tokens, steps * tokens, passes);
}

void TokenDataset::read(std::int64_t sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  require(sample >= 0 && tokens.size() == length && targets.size() == length, "a sample is read as one sequence");
  const std::int64_t count = samples_per_epoch();
  const WindowPlace place = windows_.place(shuffled_position(seed_, sample / count, sample % count, count));
  std::vector<std::int32_t> window(length + 1);
  files_[static_cast<std::size_t>(place.file)].read(place.offset, window);
  std::copy_n(window.begin(), length, tokens.begin());
  std::copy_n(window.begin() + 1, length, targets.begin());
}

}  // namespace weft
