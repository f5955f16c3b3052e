#include "trainer/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Up to this length a search through all pairs is faster than a heap.
constexpr std::size_t short_word = 48;
constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();

std::uint32_t rank_of_pair(const MergeTable& merges, std::int32_t left, std::int32_t right) {
  const PairMerge* merge = merges.find(left, right);
  return merge == nullptr ? no_rank : merge->rank;
}

// ranks[i] is the rank of the pair (i, i + 1).
void merge_short(std::vector<std::int32_t>& ids, const MergeTable& merges, std::vector<std::uint32_t>& ranks) {
  ranks.clear();
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) ranks.push_back(rank_of_pair(merges, ids[i], ids[i + 1]));
  while (!ranks.empty()) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == no_rank) return;
    const auto i = static_cast<std::size_t>(lowest - ranks.begin());
    ids[i] = merges.find(ids[i], ids[i + 1])->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(lowest);
    if (i < ranks.size()) ranks[i] = rank_of_pair(merges, ids[i], ids[i + 1]);
    if (i > 0) ranks[i - 1] = rank_of_pair(merges, ids[i - 1], ids[i]);
  }
}

class LongMerge {
 public:
  LongMerge(const std::vector<std::int32_t>& ids, const MergeTable& merges, MergeScratch& scratch)
      : merges_(merges), symbols_(scratch.symbols), heap_(scratch.heap) {
    const auto count = static_cast<std::int64_t>(ids.size());
    symbols_.clear();
    heap_.clear();
    for (std::int64_t i = 0; i < count; ++i) symbols_.push_back({ids[i], i - 1, i + 1 < count ? i + 1 : -1});
    for (std::int64_t i = 0; i + 1 < count; ++i) propose(i);
  }

  void run(std::vector<std::int32_t>& ids) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const MergeScratch::Candidate best = heap_.back();
      heap_.pop_back();
      apply(best);
    }
    ids.clear();
    for (std::int64_t i = 0; i >= 0; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  static bool later(const MergeScratch::Candidate& a, const MergeScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }

  void propose(std::int64_t position) {
    const MergeScratch::Symbol& left = symbols_[position];
    const PairMerge* merge = merges_.find(left.id, symbols_[left.next].id);
    if (merge == nullptr) return;
    heap_.push_back({merge->rank, merge->id, position});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  void apply(const MergeScratch::Candidate& best) {
    MergeScratch::Symbol& left = symbols_[best.position];
    if (left.id < 0 || left.next < 0) return;
    MergeScratch::Symbol& right = symbols_[left.next];
    // The pair may have changed since it was proposed.
    const PairMerge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->rank != best.rank) return;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols_[left.next].previous = best.position;
      propose(best.position);
    }
    if (left.previous >= 0) propose(left.previous);
  }

  const MergeTable& merges_;
  std::vector<MergeScratch::Symbol>& symbols_;
  std::vector<MergeScratch::Candidate>& heap_;
};

}  // namespace

MergeTable::MergeTable(std::size_t pairs)
    : slots_(std::bit_ceil(2 * pairs + 2), Slot{no_key, {}}), mask_(slots_.size() - 1) {}

void MergeTable::add(std::int32_t left, std::int32_t right, PairMerge merge) {
  require(2 * (size_ + 1) <= slots_.size(), "a table of merges has room");
  const std::uint64_t key = key_of(left, right);
  std::size_t i = slot_of(key);
  while (slots_[i].key != no_key && slots_[i].key != key) i = (i + 1) & mask_;
  if (slots_[i].key == no_key) ++size_;
  slots_[i] = {key, merge};
}

void merge_tokens(std::vector<std::int32_t>& ids, const MergeTable& merges, MergeScratch& scratch) {
  if (ids.size() < 2) return;
  if (ids.size() <= short_word) return merge_short(ids, merges, scratch.ranks);
  LongMerge(ids, merges, scratch).run(ids);
}

}  // namespace weft
