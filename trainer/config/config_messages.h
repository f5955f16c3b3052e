// Faults as printed on a terminal:
//   train.toml:7:14: error: parallelism.data_shard: expected an integer, got the string "8"
//     7 | data_shard = "8"
//       |              ^~~
// Overrides have no line to show: "command line: --training.steps=abc: error: ...".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/config_value.h"

namespace weft {

std::string format_fault(const Fault& fault);

// "train.toml:12", or "command line".
std::string format_origin(const Place& place);

// Puts faults in the order of their sources and lines.
void sort_by_place(Faults& faults);

// All faults in the order given, one below the other.
std::string format_faults(const Faults& faults);

// Insertions, deletions and replacements of single bytes that turn one text into the other.
std::size_t edit_distance(std::string_view left, std::string_view right);

// The nearest of `words`, whatever their case, if near enough to be a typing error; or the one that other trainers call
// `word`.
std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& words);

// The same for dotted paths. The last name counts most: "training.learning_rate" is near "optimizer.learning_rate".
// Among names that differ, those of the section itself come first.
std::optional<std::string> nearest_path(std::string_view path, const std::vector<std::string>& paths);

}  // namespace weft
