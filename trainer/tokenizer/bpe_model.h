// The model BPE of tokenizer.json: a vocabulary and merges, applied to one word at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "parallel/runtime/checksum.h"

namespace weft {

// Which two neighbouring tokens become which token, and in which order.
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

// The ids of words that were encoded before. Each word has one place in a table of fixed size, where a newer word
// replaces an older one. A text repeats few words often, so most words are found. One thread at a time. 4 MiB, of which
// only the pages with words take memory.
class WordCache {
 public:
  static constexpr std::size_t longest_word = 30, most_ids = 8;

  WordCache() : entries_(static_cast<Entry*>(std::calloc(places, sizeof(Entry)))) {
    if (!entries_) throw std::bad_alloc();
  }

  // Empty if the word is not present. Requires a word that is not empty.
  std::span<const std::int32_t> find(std::string_view word) const {
    if (word.size() > longest_word) return {};
    const Entry& entry = entries_[place_of(word)];
    if (entry.bytes != word.size() || std::memcmp(entry.word, word.data(), word.size()) != 0) return {};
    return {entry.ids, entry.count};
  }

  // Leaves out words of too many bytes or ids.
  void add(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.size() > longest_word || ids.size() > most_ids || ids.empty()) return;
    Entry& entry = entries_[place_of(word)];
    entry.bytes = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.word, word.data(), word.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  struct Entry {  // one line of a processor's cache; no word has 0 bytes
    std::uint8_t bytes, count;
    char word[longest_word];
    std::int32_t ids[most_ids];
  };

  struct Free {
    void operator()(Entry* entries) const { std::free(entries); }
  };

  static constexpr std::size_t places = std::size_t{1} << 16;
  static std::size_t place_of(std::string_view word) { return checksum(word) & (places - 1); }

  std::unique_ptr<Entry[], Free> entries_;
};

struct TokenTextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, TokenTextHash, std::equal_to<>>;
// Appends ids and tokens in the order of ids to the text of which Tokenizer::content_hash is made.
void append_vocabulary(const TokenIds& vocabulary, std::string& meaning);

struct BpeRules {
  bool words_are_bytes = false;  // a byte is looked up as its character of the byte alphabet
  bool ignore_merges = false;    // a word that is a token itself stays whole
  bool byte_fallback = false;    // a character without token becomes the tokens <0x00> .. <0xFF> of its bytes
  bool fuse_unk = false;         // unknown neighbours become one unk_token
  std::optional<std::string> unk_token;
};

// Memory for encoding words. One thread at a time, one model.
struct WordScratch {
  WordCache cache;
  MergeScratch merge;
  std::vector<std::int32_t> ids;
};

// Immutable. Several threads may call it, each with its own scratch.
class BpeModel {
 public:
  BpeModel(TokenIds vocabulary, MergeTable merges, BpeRules rules);

  // Appends the ids of a word, which is not empty. Throws Error (request) for a character without token.
  void encode(std::string_view word, WordScratch& scratch, std::vector<std::int32_t>& ids) const;

  const TokenIds& vocabulary() const { return vocabulary_; }
  std::size_t merges() const { return merges_.size(); }

 private:
  void begin_word(std::string_view word, std::vector<std::int32_t>& ids) const;
  std::optional<std::int32_t> find(std::string_view token) const;

  TokenIds vocabulary_;
  MergeTable merges_;
  BpeRules rules_;
  std::optional<std::int32_t> unk_;
  std::array<std::int32_t, 256> byte_ids_{};      // of the byte alphabet; -1 without token
  std::array<std::int32_t, 256> fallback_ids_{};  // of <0x00> .. <0xFF>; -1 without token
};

}  // namespace weft
