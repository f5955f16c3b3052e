#include "trainer/config/config_messages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <ranges>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

// A line with control characters made visible, so that a broken file cannot control the terminal. Tabs stay.
std::string printable(const std::string& line) {
  std::string result = line;
  for (char& symbol : result) {
    const auto code = static_cast<unsigned char>(symbol);
    if ((code < 0x20 && symbol != '\t') || code == 0x7f) symbol = '?';
  }
  return result;
}

constexpr std::size_t readable = 160;  // characters of a line

// The line, or the part of a long line around the place, with a marker below it. The marker copies tabs, so that it is
// aligned for any tab width.
std::string snippet(const Place& place) {
  const auto& lines = place.source->lines;
  if (place.line < 1 || place.line > static_cast<int>(lines.size())) return {};
  const std::string line = printable(lines[static_cast<std::size_t>(place.line) - 1]);
  std::vector<std::size_t> starts;  // of characters
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (!continues_character(line[at])) starts.push_back(at);
  }
  const std::size_t column = static_cast<std::size_t>(std::max(1, place.column)) - 1;
  const bool whole = starts.size() <= readable;
  const std::size_t first = whole ? 0 : std::min(starts.size() - 1, column - std::min(column, readable / 2));
  const std::size_t last = whole ? starts.size() : std::min(starts.size(), first + readable);
  const std::size_t begin = starts.empty() ? 0 : starts[first];
  const std::size_t end = last < starts.size() ? starts[last] : line.size();
  const char *left = first > 0 ? "..." : "", *right = last < starts.size() ? "..." : "";
  std::string padding(std::string_view(left).size(), ' ');
  for (std::size_t c = first; c < std::min(column, last); ++c) padding += line[starts[c]] == '\t' ? '\t' : ' ';
  const int width = std::max(1, std::min(place.width, static_cast<int>(last) - static_cast<int>(column)));
  const std::string number = fmt::format("{}", place.line);
  return fmt::format("\n  {} | {}{}{}\n  {:{}} | {}^{:~<{}}", number, left, line.substr(begin, end - begin), right, "",
                     number.size(), padding, "", width - 1);
}

// The typed text, cut off if it is too long to read.
std::string typed(const std::string& line) {
  const std::string text = printable(line);
  if (text.size() <= 2 * readable) return text;
  std::size_t end = 2 * readable;
  while (end > 0 && continues_character(text[end])) --end;
  return text.substr(0, end) + "...";
}

auto position(const Fault& fault) {
  const Place& place = fault.place;
  return std::tuple(place.source ? place.source->order : 0, place.line, place.column);
}

// Last names of paths in the spelling of other trainers.
constexpr std::pair<std::string_view, std::string_view> foreign_names[] = {
    {"lr", "optimizer.learning_rate"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"seq_len", "training.sequence_length"},
    {"seq_length", "training.sequence_length"},
    {"local_batch_size", "training.microbatch_size"},
    {"micro_batch_size", "training.microbatch_size"},
    {"max_norm", "training.max_grad_norm"},
    {"clip_grad", "training.max_grad_norm"},
    {"dataset", "data.train"},
    {"min_lr_factor", "lr_scheduler.min_lr_ratio"},
    {"decay_type", "lr_scheduler.decay"},
    {"num_hidden_layers", "model.layers"},
    {"data_parallel_replicate_degree", "parallelism.data_replicate"},
    {"data_parallel_shard_degree", "parallelism.data_shard"},
    {"tensor_parallel_degree", "parallelism.tensor"},
    {"tensor_model_parallel_size", "parallelism.tensor"},
    {"pipeline_parallel_degree", "parallelism.pipeline"},
    {"pipeline_model_parallel_size", "parallelism.pipeline"},
    {"pipeline_parallel_schedule", "pipeline.schedule"},
    {"context_parallel_degree", "parallelism.context"},
    {"expert_parallel_degree", "parallelism.expert"},
    {"expert_model_parallel_size", "parallelism.expert"},
    {"expert_tensor_parallel_degree", "parallelism.expert_tensor"},
};

// Words of values in the spelling of other trainers.
constexpr std::pair<std::string_view, std::string_view> foreign_words[] = {{"gpu", "cuda"}};

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& symbol : lower) symbol = 'A' <= symbol && symbol <= 'Z' ? static_cast<char>(symbol - 'A' + 'a') : symbol;
  return lower;
}

// A third of the letters may be wrong, and at least one.
std::size_t tolerated(std::string_view word) {
  return std::max<std::size_t>(1, word.size() / 3);
}

std::pair<std::string_view, std::string_view> split(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

}  // namespace

std::string format_origin(const Place& place) {
  if (place.source->is_command_line) return "command line";
  return fmt::format("{}:{}", place.source->name, place.line);
}

std::string format_fault(const Fault& fault) {
  const Place& place = fault.place;
  if (place.line < 1) return fmt::format("{}: error: {}", place.source->name, fault.text);
  if (place.source->is_command_line) {
    const std::string line = typed(place.source->lines[static_cast<std::size_t>(place.line) - 1]);
    return fmt::format("command line: {}: error: {}", line, fault.text);
  }
  return fmt::format("{}:{}:{}: error: {}{}", place.source->name, place.line, place.column, fault.text, snippet(place));
}

void sort_by_place(Faults& faults) {
  std::ranges::stable_sort(faults, {}, position);
}

std::string format_faults(const Faults& faults) {
  return fmt::format("{}", fmt::join(faults | std::views::transform(format_fault), "\n"));
}

std::size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < left.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < right.size(); ++j) {
      const std::size_t replaced = diagonal + (left[i] == right[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& words) {
  const std::string meant = lower_case(word);
  for (const auto& [foreign, ours] : foreign_words) {
    if (meant == foreign && std::ranges::find(words, ours) != words.end()) return std::string(ours);
  }
  const auto cost = [&](const std::string& other) { return edit_distance(meant, lower_case(other)); };
  const auto nearest = std::ranges::min_element(words, {}, cost);
  if (nearest == words.end() || cost(*nearest) > tolerated(word)) return std::nullopt;
  return *nearest;
}

std::optional<std::string> nearest_path(std::string_view path, const std::vector<std::string>& paths) {
  const auto [section, name] = split(path);
  for (const auto& [foreign, ours] : foreign_names) {
    if (name == foreign) return std::string(ours);
  }
  // Names first; among equally near ones the section decides.
  const auto cost = [&, section = section, name = name](std::string_view other) {
    const auto [other_section, other_name] = split(other);
    return std::pair(edit_distance(name, other_name), edit_distance(section, other_section));
  };
  const auto nearest = std::ranges::min_element(paths, {}, cost);
  if (nearest == paths.end()) return std::nullopt;
  // A name that no section has is sought in its own section first, where half of its letters may be wrong.
  const auto outside = [&, section = section](std::string_view other) { return split(other).first != section; };
  if (cost(*nearest).first > 0 && !section.empty()) {
    std::vector<std::string> inside = paths;
    std::erase_if(inside, outside);
    const auto own = std::ranges::min_element(inside, {}, cost);
    if (own != inside.end() && cost(*own).first <= std::max<std::size_t>(1, name.size() / 2)) return *own;
  }
  if (cost(*nearest).first > tolerated(name)) return std::nullopt;
  return *nearest;
}

}  // namespace weft
