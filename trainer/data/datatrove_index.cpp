#include "trainer/data/datatrove_index.h"

#include <limits>
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
      "or "
      "belongs to another dataset; copy both again",
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
