#include "trainer/data/token_windows.h"

#include <algorithm>

#include "layers/kernels/routing.h"
#include "parallel/runtime/error.h"

namespace weft {

namespace {

// From what is written already.
void write_following(const SequenceText& to) {
  const std::size_t length = to.tokens.size();
  for (std::size_t k = 0; k < to.following.size(); ++k) {
    const auto& [tokens, targets] = to.following[k];
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t at = i + k + 1;
      const bool follows =
          at < length && (to.document_begins.empty() || to.document_begins[at] == to.document_begins[i]);
      tokens[i] = follows ? to.tokens[at] : 0;
      targets[i] = follows ? to.targets[at] : -1;
    }
  }
}

}  // namespace

SequenceText parts_of(std::span<std::int32_t> numbers, const TextParts& parts) {
  const std::size_t part = numbers.size() / static_cast<std::size_t>(parts.count());
  std::size_t taken = 0;
  return parts.filled<SequenceText>([&] { return numbers.subspan(part * taken++, part); });
}

void write_sequence(std::span<const std::int32_t> window, std::span<const std::int32_t> begins,
                    std::span<const std::uint8_t> losses, const SequenceText& to) {
  const std::size_t length = to.tokens.size(), count = window.empty() ? 0 : window.size() - 1;
  require(count <= length && to.targets.size() == length, "a sequence holds its window");
  std::ranges::fill(std::ranges::copy(window.first(count), to.tokens.begin()).out, to.tokens.end(), 0);
  std::ranges::fill(std::ranges::copy(window.last(count), to.targets.begin()).out, to.targets.end(), padding_target);
  for (std::size_t i = 0; i < count && !losses.empty(); ++i) {
    if (losses[i + 1] == 0) to.targets[i] = -1;
  }
  std::ranges::fill(to.document_begins, 0);
  for (const std::int32_t begin : to.document_begins.empty() ? std::span<const std::int32_t>() : begins) {
    const auto at = static_cast<std::size_t>(begin);
    if (begin > 0) to.targets[at - 1] = -1;
    if (at < length) std::ranges::fill(to.document_begins.subspan(at), begin);
  }
  write_following(to);
}

void read_sequence(const std::vector<TokenFile>& files, const std::vector<TokenPiece>& pieces, const SequenceText& to) {
  std::vector<std::int32_t> window(to.tokens.size() + 1), begins;
  std::vector<std::uint8_t> losses;
  std::int64_t done = 0;
  for (const TokenPiece& piece : pieces) {
    const TokenFile& file = files[static_cast<std::size_t>(piece.file)];
    const auto at = static_cast<std::size_t>(done), count = static_cast<std::size_t>(piece.count);
    file.read(piece.first, std::span(window).subspan(at, count));
    if (file.has_losses()) {
      losses.resize(window.size(), 1);
      file.read_losses(piece.first, std::span(losses).subspan(at, count));
    }
    if (!to.document_begins.empty() && piece.one_document) {
      begins.push_back(static_cast<std::int32_t>(done));
    } else if (!to.document_begins.empty()) {
      for (const std::int32_t begin : document_begins(file, piece.first, piece.count)) {
        begins.push_back(static_cast<std::int32_t>(done) + begin);
      }
    }
    done += piece.count;
  }
  // Packed documents and the last window of a file may leave room.
  write_sequence(std::span(window).first(static_cast<std::size_t>(done)), begins, losses, to);
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

std::int64_t counted_targets(const TokenFile& file, std::int64_t first, std::int64_t count, bool masked) {
  std::vector<std::uint8_t> counts(static_cast<std::size_t>(count), 1);
  if (file.has_losses()) file.read_losses(first, counts);
  if (masked) {
    for (const std::int32_t begin : document_begins(file, first, count)) counts[static_cast<std::size_t>(begin)] = 0;
  }
  return std::count_if(counts.begin() + 1, counts.end(), [](std::uint8_t loss) { return loss != 0; });
}

}  // namespace weft
