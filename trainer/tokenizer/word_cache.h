// The ids of words that were encoded before. Each word has one place in a table of fixed size, where a newer word
// replaces an older one. A text repeats few words often, so most words are found.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/runtime/checksum.h"

namespace weft {

// One thread at a time. 4 MiB.
class WordCache {
 public:
  static constexpr std::size_t longest_word = 30, most_ids = 8;

  WordCache() : entries_(std::size_t{1} << 16) {}

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
  struct Entry {  // one line of a processor's cache
    std::uint8_t bytes = 0, count = 0;
    char word[longest_word];
    std::int32_t ids[most_ids];
  };

  std::size_t place_of(std::string_view word) const { return checksum(word) & (entries_.size() - 1); }

  std::vector<Entry> entries_;
};

}  // namespace weft
