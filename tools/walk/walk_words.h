// A walk in words: what a line does, what it means the first time, and what strategies show beside each other.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/planning/walked_step.h"

namespace weft {

struct WalkedStrategy {
  std::string name;
  std::int64_t microbatches = 1;
  WalkedStep step;
};

// "gather blocks.0", "reduce-scatter blocks.0".
std::string what_of(const WalkLine& line);

// By line: a sentence where it does something for the first time, else nothing.
std::vector<std::string> walk_remarks(const WalkedStep& step);

// What strategies have in common and what tells them apart, a sentence each. Every number is read off the walks.
std::vector<std::string> walk_lessons(std::span<const WalkedStrategy> strategies);

// "13,440 bytes", from a million on "13.4 MB" (10^6).
std::string bytes_text(std::int64_t bytes);
// "13,440"
std::string grouped_digits(std::int64_t number);

}  // namespace weft
