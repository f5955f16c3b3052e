#include "trainer/data/token_file.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::int64_t most_token_ids = std::int64_t{1} << 31;

}  // namespace

TokenFile::TokenFile(std::string name, std::optional<std::int64_t> vocab_size)
    : name_(std::move(name)),
      id_end_(vocab_size.value_or(most_token_ids)),
      has_vocabulary_(vocab_size.has_value()),
      source_(open_tokens(name_)) {
  require(id_end_ >= 1 && id_end_ <= most_token_ids, "ids of a vocabulary are int32");
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> to) const {
  require(first >= 0 && std::ssize(to) <= tokens() - first, "tokens are read from inside a file");
  constexpr std::size_t piece = std::size_t{1} << 16;
  const auto width = static_cast<std::size_t>(bytes_of(source_.type));
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> ids;
  for (std::size_t done = 0; done < to.size(); done += ids.size()) {
    ids.resize(std::min(piece, to.size() - done));
    bytes.resize(ids.size() * width);
    const std::int64_t position = first + static_cast<std::int64_t>(done);
    source_.bytes.read(source_.begin + position * bytes_of(source_.type), bytes);
    decode(source_.type, bytes, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= id_end_) {
        if (source_.format == TokenFormat::text) {
          fail_request("\"{}\": the byte {} at offset {} is outside the vocabulary of {} tokens", source_.bytes.name,
                       ids[i], position + static_cast<std::int64_t>(i), id_end_);
        }
        fail_request(
            "\"{}\": token {} has the id {}, which is outside {}; the data are of another tokenizer or damaged",
            source_.bytes.name, position + static_cast<std::int64_t>(i), ids[i],
            has_vocabulary_ ? fmt::format("the vocabulary of {} tokens", id_end_) : "0 to 2147483647");
      }
      to[done + i] = static_cast<std::int32_t>(ids[i]);
    }
  }
}

std::string TokenFile::content() const {
  std::string bytes = sampled_content(source_.bytes) + source_.index->content();
  if (source_.losses) bytes += ", losses " + sampled_content(*source_.losses);
  if (source_.format == TokenFormat::text) return bytes;
  return fmt::format("{}, {} {} tokens, {}", name_of(source_.format), tokens(), name_of(source_.type), bytes);
}

void TokenFile::check_sample() const {
  if (largest_of(source_.type) < id_end_) return;
  const std::int64_t piece = (std::int64_t{1} << 20) / bytes_of(source_.type);
  std::vector<std::int32_t> ids;
  for (const std::int64_t begin : sampled_begins(tokens(), piece)) {
    ids.resize(static_cast<std::size_t>(std::min(piece, tokens() - begin)));
    read(begin, ids);
  }
}

std::int32_t TokenFile::check() const {
  source_.index->check();
  constexpr std::int64_t piece = std::int64_t{1} << 18;
  std::vector<std::int32_t> ids;
  std::int32_t largest = 0;
  for (std::int64_t first = 0; first < tokens(); first += piece) {
    ids.resize(static_cast<std::size_t>(std::min(piece, tokens() - first)));
    read(first, ids);
    largest = std::max(largest, *std::ranges::max_element(ids));
  }
  return largest;
}

}  // namespace weft
