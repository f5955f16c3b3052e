#include "trainer/data/token_windows.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {

WindowMap::WindowMap(std::span<const std::int64_t> tokens, std::int64_t sequence_length)
    : first_window_{0}, sequence_length_(sequence_length) {
  require(sequence_length >= 1, "windows have tokens");
  for (const std::int64_t count : tokens) {
    require(count >= 0, "files have tokens");
    first_window_.push_back(first_window_.back() + std::max<std::int64_t>(0, count - 1) / sequence_length);
  }
}

WindowPlace WindowMap::place(std::int64_t window) const {
  require(window >= 0 && window < windows(), "a window lies inside the files");
  // Files without a window begin where the next one does; the search passes over them.
  const auto next = std::ranges::upper_bound(first_window_, window);
  const std::int64_t file = next - first_window_.begin() - 1;
  return {file, (window - *(next - 1)) * sequence_length_};
}

std::vector<std::int32_t> document_begins(const TokenFile& file, std::int64_t first, std::int64_t count) {
  require(first >= 0 && count >= 1 && count <= file.tokens() - first, "a window lies inside its file");
  std::vector<std::int32_t> begins = {0};
  std::int64_t before = first;
  for (std::int64_t document = file.document_of(first) + 1; document < file.documents(); ++document) {
    const std::int64_t begin = file.document_begin(document);
    if (begin < before) {
      fail_request("\"{}\": document {} begins at token {}, behind one that begins at {}; the index is damaged",
                   file.name(), document, begin, before);
    }
    if (begin >= first + count) break;
    if (begin > before) begins.push_back(static_cast<std::int32_t>(begin - first));
    before = begin;
  }
  return begins;
}

}  // namespace weft
