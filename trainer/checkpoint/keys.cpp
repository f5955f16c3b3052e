#include "trainer/checkpoint/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/data/megatron_order.h"

namespace weft {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::array free_keys = {
    "model.initializer_range"sv,      "model.moe.aux_loss"sv,        "model.moe.router_aux_loss_coef"sv,
    "model.moe.router_z_loss_coef"sv, "model.moe.bias_update"sv,     "model.moe.bias_update_rate"sv,
    "model.moe.bias_schedule"sv,      "model.mtp_loss_coef"sv,       "model.moe.router_jitter_noise"sv,
    "model.moe.pad_to_capacity"sv,    "model.moe.capacity_factor"sv, "model.moe.drop_policy"sv};
constexpr const char* names_key = "data.train";
constexpr std::string_view content_key = "data.train[";
constexpr std::array order_keys = {
    "run.seed"sv, "training.sequence_length"sv, "data.train"sv, "data.tokenizer"sv, "data.order"sv, "data.split"sv};
// Keys that old checkpoints lack. Their defaults are what runs did before there were such keys.
constexpr std::array later_keys = {"data.order"sv,
                                   "data.split"sv,
                                   "model.moe.real_fraction"sv,
                                   "model.moe.routed_scaling_factor"sv,
                                   "model.moe.n_group"sv,
                                   "model.moe.topk_group"sv,
                                   "model.moe.shared_expert_gate"sv,
                                   "model.moe.selection_bias"sv,
                                   "model.moe.force_balance"sv};
constexpr const char* model_layers_key = "model.layers";
constexpr const char* samples_key = "data.samples";
constexpr const char* split_key = "data.split";

// The kinds of all blocks, one letter a block, with the widths that they have of their own. The same layers can be
// written as different patterns.
std::string blocks_text(const ModelConfig& model) {
  std::string text;
  for (int i = 0; i < model.layers(); ++i) {
    text += block_symbol(model.blocks[static_cast<std::size_t>(i)]);
  }
  return toml_text(text + std::string(static_cast<std::size_t>(model.mtp_depth), 'm'));
}

template <typename Chosen>
KeyValues chosen_keys(const Config& config, Chosen chosen) {
  KeyValues values;
  for (const ConfigKey& key : config_schema()) {
    if (chosen(key)) values[key.path()] = key.write(config);
  }
  return values;
}

std::string differing_keys(const KeyValues& saved, const KeyValues& own) {
  KeyValues all = saved;
  all.insert(own.begin(), own.end());
  std::string text;
  for (const auto& [key, value] : all) {
    const auto there = saved.find(key), here = own.find(key);
    if (there != saved.end() && here != own.end() && there->second == here->second) continue;
    // No key of a configuration: what follows from several.
    const std::string name = key == samples_key ? "the order of samples (data.order, data.documents, run.steps)" : key;
    text += fmt::format("{}{} is {} in the checkpoint and {} here", text.empty() ? "" : "\n", name,
                        there == saved.end() ? "absent" : there->second, here == own.end() ? "absent" : here->second);
  }
  return text;
}

void add_later_keys(const KeyValues& own, KeyValues& saved) {
  const auto is_later = [&](const ConfigKey& key) {
    return own.contains(key.path()) && std::ranges::count(later_keys, key.path()) > 0;
  };
  saved.merge(chosen_keys({}, is_later));
}

}  // namespace

bool may_differ(std::string_view path) {
  return std::ranges::count(free_keys, path) > 0;
}

KeyValues model_keys(const Config& config) {
  KeyValues values = chosen_keys(config, [&](const ConfigKey& key) {
    return key.section.starts_with("model") && !missing_for(key, config) && !may_differ(key.path());
  });
  values[model_layers_key] = blocks_text(config.model);
  return values;
}

KeyValues data_keys(const Config& config, const TokenDataset& data) {
  KeyValues values =
      chosen_keys(config, [](const ConfigKey& key) { return std::ranges::count(order_keys, key.path()) > 0; });
  // A tokenizer is known by what it does, not by its file.
  values["data.tokenizer"] = fmt::format("\"{}\"", data.vocabulary().identity());
  const std::vector<std::string> contents = data.contents();
  for (std::size_t f = 0; f < contents.size(); ++f) values[fmt::format("{}{}]", content_key, f)] = contents[f];
  if (const std::string order = data.order().identity(); !order.empty()) values[samples_key] = order;
  return values;
}

std::string differing_model(KeyValues saved, const KeyValues& own) {
  add_later_keys(own, saved);
  for (const std::string_view key : free_keys) saved.erase(std::string(key));  // older checkpoints have some
  // Older checkpoints have keys that no block reads.
  const auto same = saved.find(model_layers_key);
  if (same != saved.end() && own.contains(same->first) && own.at(same->first) == same->second) {
    for (const ConfigKey& key : config_schema()) {
      if (!own.contains(key.path())) saved.erase(key.path());
    }
  }
  return differing_keys(saved, own);
}

std::string differing_parts(KeyValues saved, const Config& config) {
  const auto decides = [](std::string_view key) {
    return key == names_key || key == split_key || key.starts_with(content_key);
  };
  std::erase_if(saved, [&](const auto& entry) { return !decides(entry.first); });
  KeyValues own = chosen_keys(config, [&](const ConfigKey& key) { return decides(key.path()); });
  for (std::size_t f = 0; f < config.data.train.size(); ++f) {
    own[fmt::format("{}{}]", content_key, f)] = content_of(config.data.train[f], TokenFile(config.data.train[f].path));
  }
  return differing_data(std::move(saved), std::move(own));
}

std::string differing_data(KeyValues saved, KeyValues own) {
  add_later_keys(own, saved);
  // "98,2" and "98,2,0" read the same.
  for (KeyValues* values : {&saved, &own}) {
    const auto split = values->find(split_key);
    if (split == values->end() || split->second.size() <= 2) continue;
    const std::string text = split->second.substr(1, split->second.size() - 2);  // without quotes
    refusal_of([&] { split->second = fmt::format("\"{}\"", canonical_split(text)); });
  }
  const auto is_content = [](const auto& entry) { return entry.first.starts_with(content_key); };
  if (std::ranges::any_of(saved, is_content)) {
    saved.erase(names_key);
    own.erase(names_key);
  } else {
    std::erase_if(own, is_content);
  }
  return differing_keys(saved, own);
}

}  // namespace weft
