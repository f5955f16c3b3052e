// The ids of words that were encoded before. Each word has one place in a table of fixed size, where a newer word
// replaces an older one. A text repeats few words often, so most words are found.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "parallel/runtime/checksum.h"

namespace weft {

// One thread at a time. 4 MiB, of which only the pages with words take memory.
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

}  // namespace weft
