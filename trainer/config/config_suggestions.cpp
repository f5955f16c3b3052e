#include "trainer/config/config_messages.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace weft {
namespace {

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
