// A walk in words: a line's action, remarks at first occurrences, and differences between strategies.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/planning/walk.h"

namespace weft {

struct WalkedStrategy {
  std::string name;
  std::int64_t microbatches = 1;
  WalkedStep step;
};

// "gather blocks.0", "reduce-scatter blocks.0".
std::string what_of(const WalkLine& line);

// By line: a sentence at the first occurrence of its kind, else an empty string.
std::vector<std::string> walk_remarks(const WalkedStep& step);

// What strategies have in common and where they differ, one sentence each. Every number is read off the walks.
std::vector<std::string> walk_lessons(std::span<const WalkedStrategy> strategies);

// "13,440 bytes"; from a million on "13.4 MB" (10^6).
std::string bytes_text(std::int64_t bytes);
// "13,440"
std::string grouped_digits(std::int64_t number);

}  // namespace weft
