// The merges of a byte-pair encoding: which two neighbouring tokens become which token, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

struct PairMerge {
  std::uint32_t rank = 0;  // lower ranks are merged first
  std::int32_t id = 0;     // of the merged token
};

// A hash table with open addressing. Several threads may search at the same time, after the last add().
class MergeTable {
 public:
  // For up to `pairs` pairs.
  explicit MergeTable(std::size_t pairs = 0);
  // A later merge of the same pair replaces an earlier one.
  void add(std::int32_t left, std::int32_t right, PairMerge merge);
  // Null if the pair is not merged.
  const PairMerge* find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == no_key) return nullptr;
    }
  }
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t key;
    PairMerge merge;
  };
  static constexpr std::uint64_t no_key = ~std::uint64_t{0};  // ids are not negative

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  // The upper bits of a product by an odd number with irregular bits (2^64 divided by the golden ratio).
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15 >> 20) & mask_);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0, size_ = 0;
};

// Memory of merge_tokens. One thread at a time.
struct MergeScratch {
  struct Symbol {
    std::int32_t id;
    std::int64_t previous, next;  // positions; -1 behind the ends
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t id;
    std::int64_t position;
  };
  std::vector<std::uint32_t> ranks;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Merges neighbouring tokens until no pair is in the table: always the pair with the lowest rank, and of several the
// first. Takes time proportional to n log n.
void merge_tokens(std::vector<std::int32_t>& ids, const MergeTable& merges, MergeScratch& scratch);

}  // namespace weft
