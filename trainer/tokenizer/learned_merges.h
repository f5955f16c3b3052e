// The merges of a byte-pair encoding, learned from counted words.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft {

struct CountedWord {
  std::vector<std::int32_t> ids;  // of its tokens
  std::int64_t count = 0;
};

struct LearnedMerges {
  std::vector<std::string> tokens;                            // by id: the first ones, then the merged ones
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // in the order of their ranks
};

// Merges the most frequent pair, of several the one with the lowest ids, until there are `vocab_size` tokens or no pair
// is left. `tokens`: the texts of the first ids. After the first count only words that have the merged pair are read
// again.
LearnedMerges learn_merges(std::vector<CountedWord> words, std::vector<std::string> tokens, std::int64_t vocab_size);

}  // namespace weft
