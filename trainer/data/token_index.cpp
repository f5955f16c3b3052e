#include "trainer/data/token_index.h"

#include <limits>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {

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

}  // namespace weft
