#include "trainer/data/packed_documents.h"

#include <algorithm>
#include <map>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::size_t most_open = 256;

struct PackedPart {
  std::int64_t first = 0;
  std::int32_t count = 0;
};

// Deals pieces to sequences by best fit, and gives the sequences to `take` as they are closed.
template <typename Take>
class Packer {
 public:
  Packer(std::int64_t room, Take take) : room_(room), take_(std::move(take)) {}

  void add(const PackedPart& piece) {
    auto place = open_.lower_bound(piece.count);  // the least room in which it fits
    std::vector<PackedPart> sequence;
    std::int64_t room = room_;
    if (place != open_.end()) {
      room = place->first;
      sequence = std::move(place->second);
      open_.erase(place);
    } else if (open_.size() == most_open) {
      close();
    }
    sequence.push_back(piece);
    room -= piece.count;
    // Nothing is dealt that has fewer than two tokens.
    if (room < 2) return take_(sequence);
    open_.emplace(room, std::move(sequence));
  }
  void finish() {
    while (!open_.empty()) close();
  }

 private:
  void close() {
    take_(open_.begin()->second);
    open_.erase(open_.begin());
  }

  std::int64_t room_;
  Take take_;
  std::multimap<std::int64_t, std::vector<PackedPart>> open_;  // by the tokens that they have room for
};

}  // namespace

PackedDocuments::PackedDocuments(std::span<const TokenFile> all, std::span<const TokenRange> ranges,
                                 std::int64_t first_file, std::int64_t sequence_length)
    : first_file_(first_file), sequence_length_(sequence_length), file_begins_{0} {
  Packer packer(sequence_length + 1, [&](const std::vector<PackedPart>& sequence) {
    for (const PackedPart& piece : sequence) {
      firsts_.push_back(piece.first);
      counts_.push_back(piece.count);
      tokens_ += piece.count;
    }
    ends_.push_back(static_cast<std::int64_t>(firsts_.size()));
  });
  for (std::size_t f = 0; f < all.size(); ++f) {
    const std::int64_t before = file_begins_.back();
    std::int64_t first = 0;
    for (const std::int64_t tokens : all[f].document_lengths()) {
      const std::int64_t begin = first, end = first += tokens;
      if (begin < ranges[f].first || end > ranges[f].first + ranges[f].tokens) continue;
      for (std::int64_t at = begin; end - at > 1; at += sequence_length) {
        packer.add({before + at, static_cast<std::int32_t>(std::min(end - at, sequence_length + 1))});
      }
    }
    file_begins_.push_back(before + all[f].tokens());
  }
  packer.finish();
  if (ends_.empty()) fail_request("\"{}\": no document has two tokens, and none can be packed", all.front().name());
}

std::vector<TokenPiece> PackedDocuments::pieces(std::int64_t sequence) const {
  require(sequence >= 0 && sequence < sequences(), "a packed sequence is one of them");
  const auto s = static_cast<std::size_t>(sequence);
  std::vector<TokenPiece> pieces;
  for (auto p = static_cast<std::size_t>(s == 0 ? 0 : ends_[s - 1]); p < static_cast<std::size_t>(ends_[s]); ++p) {
    const auto file = std::ranges::upper_bound(file_begins_, firsts_[p]) - file_begins_.begin() - 1;
    pieces.push_back({first_file_ + file, firsts_[p] - file_begins_[static_cast<std::size_t>(file)], counts_[p],
                      /*one_document=*/true});
  }
  return pieces;
}

double PackedDocuments::filled() const {
  return static_cast<double>(tokens_) / static_cast<double>(sequences() * (sequence_length_ + 1));
}

}  // namespace weft
