// Sequences of whole documents: none is cut that fits into one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/data/sample_order.h"

namespace weft {
namespace {

constexpr std::size_t most_open = 256;

struct PackedPart {
  std::int64_t first = 0;
  std::int32_t count = 0;
};

// Documents of files, dealt to sequences of at most sequence_length + 1 tokens, the last of which is a target alone. A
// document goes into the fullest of the 256 open sequences in which it fits; where none has room the fullest is closed.
// A longer document is cut into pieces that share a token, so that each of its targets counts once. The last piece is
// dealt like a short document. Documents of one token predict nothing and are left out.
//
// Immutable; safe to use from several threads. 12 bytes for each document and 8 for each sequence, in memory or in the
// file of a cache.
class PackedDocuments final : public SamplePool {
 public:
  PackedDocuments(std::span<const TokenFile> files, std::span<const Range> ranges, std::int64_t first_file,
                  std::int64_t sequence_length, const OrderCache& cache);

  std::int64_t samples() const override { return tables_[2].count(); }
  // The documents of a sequence, in the order in which they were dealt. Throws Error (request) if a table is damaged.
  std::vector<TokenPiece> pieces(std::int64_t sequence) const override;
  std::optional<double> filled() const override {
    return static_cast<double>(tokens_) / static_cast<double>(samples() * (sequence_length_ + 1));
  }

 private:
  std::vector<NumberColumn> deal(std::span<const TokenFile> files, std::span<const Range> ranges) const;
  [[noreturn]] static void refuse_damage();

  std::int64_t first_file_, sequence_length_, tokens_ = 0;
  std::vector<std::int64_t> file_begins_;  // of each file among the tokens of all of them; then their sum
  // By piece: its first token among those of all files, and its tokens. By sequence: the piece behind its last one. The
  // tokens of all sequences.
  NumberTables tables_;
};

PackedDocuments::PackedDocuments(std::span<const TokenFile> files, std::span<const Range> ranges,
                                 std::int64_t first_file, std::int64_t sequence_length, const OrderCache& cache)
    : first_file_(first_file), sequence_length_(sequence_length), file_begins_{0} {
  std::string key = fmt::format("packed documents in sequences of {} tokens", sequence_length);
  for (std::size_t f = 0; f < files.size(); ++f) {
    key += fmt::format("; {} from token {} of {}", ranges[f].count, ranges[f].begin, files[f].index()->identity());
    file_begins_.push_back(file_begins_.back() + files[f].tokens());
  }
  tables_ = cache.tables(key, [&] { return deal(files, ranges); });
  if (tables_.size() != 4 || tables_[0].count() != tables_[1].count() || tables_[3].count() != 1) refuse_damage();
  tokens_ = tables_[3].at(0);
}

std::vector<NumberColumn> PackedDocuments::deal(std::span<const TokenFile> files, std::span<const Range> ranges) const {
  std::vector<std::int64_t> firsts, ends;
  std::vector<std::int32_t> counts;
  std::int64_t tokens_dealt = 0;
  const auto take = [&](const std::vector<PackedPart>& sequence) {
    for (const PackedPart& piece : sequence) {
      firsts.push_back(piece.first);
      counts.push_back(piece.count);
      tokens_dealt += piece.count;
    }
    ends.push_back(std::ssize(firsts));
  };
  std::multimap<std::int64_t, std::vector<PackedPart>> open;  // by the tokens that they have room for
  const auto close_fullest = [&] {
    take(open.begin()->second);
    open.erase(open.begin());
  };
  const auto add = [&](const PackedPart& piece) {
    std::vector<PackedPart> sequence;
    std::int64_t room = sequence_length_ + 1;
    if (const auto place = open.lower_bound(piece.count); place != open.end()) {  // the least room in which it fits
      room = place->first;
      sequence = std::move(place->second);
      open.erase(place);
    } else if (open.size() == most_open) {
      close_fullest();
    }
    sequence.push_back(piece);
    room -= piece.count;
    // Nothing is dealt that has fewer than two tokens.
    if (room < 2) return take(sequence);
    open.emplace(room, std::move(sequence));
  };
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::int64_t first = 0;
    for (const std::int64_t tokens : files[f].index()->document_lengths()) {
      const std::int64_t begin = first, end = first += tokens;
      if (begin < ranges[f].begin || end > ranges[f].begin + ranges[f].count) continue;
      for (std::int64_t at = begin; end - at > 1; at += sequence_length_) {
        add({file_begins_[f] + at, static_cast<std::int32_t>(std::min(end - at, sequence_length_ + 1))});
      }
    }
  }
  while (!open.empty()) close_fullest();
  if (ends.empty()) fail_request("\"{}\": no document has two tokens, and none can be packed", files.front().name());
  return {number_column(TokenType::int64, std::move(firsts)), number_column(TokenType::int32, std::move(counts)),
          number_column(TokenType::int64, std::move(ends)),
          number_column(TokenType::int64, std::vector<std::int64_t>{tokens_dealt})};
}

void PackedDocuments::refuse_damage() {
  fail_request("the tables of packed documents in data.index_cache are damaged; delete them");
}

std::vector<TokenPiece> PackedDocuments::pieces(std::int64_t sequence) const {
  require(sequence >= 0 && sequence < samples(), "a packed sequence is one of them");
  std::array<std::int64_t, 2> bounds{};  // its first piece, and the one behind its last
  if (sequence == 0) {
    tables_[2].read(0, std::span(bounds).last(1));
  } else {
    tables_[2].read(sequence - 1, bounds);
  }
  const auto [begin, end] = bounds;
  // Each piece has two tokens or more.
  if (begin < 0 || end <= begin || end > tables_[0].count() || end - begin > sequence_length_) refuse_damage();
  std::vector<std::int64_t> firsts(static_cast<std::size_t>(end - begin)), counts(firsts.size());
  tables_[0].read(begin, firsts);
  tables_[1].read(begin, counts);
  std::vector<TokenPiece> pieces;
  std::int64_t room = sequence_length_ + 1;
  for (std::size_t p = 0; p < firsts.size(); ++p) {
    if (firsts[p] < 0 || firsts[p] >= file_begins_.back()) refuse_damage();
    const auto next = std::ranges::upper_bound(file_begins_, firsts[p]);
    if (counts[p] < 2 || counts[p] > room || counts[p] > *next - firsts[p]) refuse_damage();
    pieces.push_back({first_file_ + (next - file_begins_.begin() - 1), firsts[p] - *std::prev(next), counts[p],
                      /*one_document=*/true});
    room -= counts[p];
  }
  return pieces;
}

}  // namespace

std::unique_ptr<SamplePool> make_packed_pool(std::span<const TokenFile> files, std::span<const Range> ranges,
                                             std::int64_t first_file, std::int64_t sequence_length,
                                             const OrderCache& cache) {
  return std::make_unique<PackedDocuments>(files, ranges, first_file, sequence_length, cache);
}

}  // namespace weft
