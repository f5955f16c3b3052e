#include "trainer/data/token_index.h"

#include <limits>
#include <span>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Number of positions in the index.
std::int64_t datatrove_documents(const ByteSource& index) {
  if (index.size < 8 || index.size % 8 != 0) {
    fail_request("\"{}\": {} bytes are no whole number of positions of 8 bytes; the index was cut short", index.name,
                 index.size);
  }
  return index.size / 8;
}

}  // namespace

std::int64_t TokenIndex::document_of(std::int64_t token) const {
  require(token >= 0 && token < tokens(), "a token lies inside its file");
  // Holds throughout: `low` begins at `token` or before, and `high` behind it. So document `low` holds the token at the
  // end, even if the documents do not ascend.
  std::int64_t low = 0, high = documents();
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

std::vector<std::int64_t> TokenIndex::document_lengths() const {
  const std::vector<std::int32_t> lengths = sequence_lengths();
  return {lengths.begin(), lengths.end()};
}

std::string TokenIndex::content() const {
  return source() == nullptr ? "" : ", index " + sampled_content(*source());
}

std::string TokenIndex::identity() const {
  return fmt::format("{} tokens in {} sequences of {} documents{}", tokens(), sequences(), documents(),
                     source() == nullptr ? "" : ", index " + dated_content(*source()));
}

OneDocument::OneDocument(std::string name, std::int64_t tokens) : TokenIndex(std::move(name)), tokens_(tokens) {
  require(tokens >= 1, "a file has tokens");
}

std::int64_t OneDocument::document_begin(std::int64_t document) const {
  require(document == 0 || document == 1, "a document lies inside its file");
  return document == 0 ? 0 : tokens_;
}

std::vector<std::int32_t> OneDocument::sequence_lengths() const {
  if (tokens_ > std::numeric_limits<std::int32_t>::max()) {
    fail_request(
        "\"{}\": its one sequence has {} tokens; Megatron's order takes sequences of at most 2^31 - 1. Write it as a "
        "dataset with documents, or use Weft's own order",
        name(), tokens_);
  }
  return {static_cast<std::int32_t>(tokens_)};
}

DatatroveIndex::DatatroveIndex(ByteSource index, const std::string& data_name, std::int64_t data_bytes)
    : TokenIndex(index.name),
      source_(std::move(index)),
      ends_(source_, 0, datatrove_documents(source_), TokenType::int64),
      tokens_(ends_.at(ends_.count() - 1)) {
  // Divides, since a damaged position times 4 could overflow.
  if (data_bytes > 0 && data_bytes % 2 == 0 && data_bytes / 2 == tokens_) return;
  type_ = TokenType::uint32;
  if (data_bytes > 0 && data_bytes % 4 == 0 && data_bytes / 4 == tokens_) return;
  fail_request(
      "\"{}\": {} bytes are neither 2 nor 4 for each of the {} tokens of its index \"{}\". One of them was cut short "
      "or belongs to another dataset; copy both again",
      data_name, data_bytes, static_cast<std::uint64_t>(tokens_), name());
}

std::int64_t DatatroveIndex::document_begin(std::int64_t document) const {
  require(document >= 0 && document <= documents(), "a document lies inside its file");
  if (document == 0) return 0;
  const std::int64_t end = ends_.at(document - 1);
  if (end < 0 || end > tokens_) {
    fail_request("\"{}\": document {} ends at token {} of {}; the index is damaged", name(), document - 1,
                 static_cast<std::uint64_t>(end), tokens_);
  }
  return end;
}

std::vector<std::int32_t> DatatroveIndex::sequence_lengths() const {
  std::vector<std::int32_t> lengths;
  lengths.reserve(static_cast<std::size_t>(documents()));
  std::int64_t before = 0;
  ends_.visit([&](std::int64_t, std::span<const std::int64_t> ends) {
    for (const std::int64_t end : ends) {
      if (end < before || end > tokens_ || end - before > std::numeric_limits<std::int32_t>::max()) {
        fail_request("\"{}\": document {} goes from token {} to {} of {}; its length is to lie between 0 and 2^31 - 1",
                     name(), lengths.size(), before, static_cast<std::uint64_t>(end), tokens_);
      }
      lengths.push_back(static_cast<std::int32_t>(end - before));
      before = end;
    }
  });
  return lengths;
}

void DatatroveIndex::check() const {
  std::int64_t before = 0;
  ends_.visit([&](std::int64_t first, std::span<const std::int64_t> ends) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] < before || ends[i] > tokens_) {
        fail_request("\"{}\": document {} ends at token {} of {}, the one before it at {}; the index is damaged",
                     name(), first + static_cast<std::int64_t>(i), static_cast<std::uint64_t>(ends[i]), tokens_,
                     before);
      }
      before = ends[i];
    }
  });
}

}  // namespace weft
