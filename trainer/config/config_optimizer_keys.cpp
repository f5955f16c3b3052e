// Keys of [optimizer] and of [optimizer.<group>], which inherit from it.
#include <array>
#include <type_traits>

#include <fmt/ranges.h>

#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"
#include "trainer/config/update_groups.h"

namespace weft::config_fields {
namespace {

// Options of a group, or the default. Reading a group's first key starts from the inherited options, which stand
// earlier in the table and are therefore complete.
OptimizerConfig& options_of(Config& config, std::optional<UpdateGroup> group) {
  if (!group) return config.optimizer;
  return config.optimizer_by_group.try_emplace(*group, inherited_options(config.optimizer, *group)).first->second;
}
OptimizerConfig options_of(const Config& config, std::optional<UpdateGroup> group) {
  return group ? resolved_groups(config)[*group] : config.optimizer;
}

// The field of a group's key: itself for reading the key into it, a copy for writing it out.
template <typename T>
auto field_of(std::optional<UpdateGroup> group, const std::string& path, T OptimizerConfig::*member) {
  const auto access = [group, member](auto& config) -> decltype(auto) {
    if constexpr (std::is_const_v<std::remove_reference_t<decltype(config)>>) {
      return T(options_of(config, group).*member);
    } else {
      return (options_of(config, group).*member);
    }
  };
  return KeyField{path, access};
}

// The rules that read a key; none for a key of every rule.
std::vector<UpdateRule> rules_that_read(std::string_view key) {
  std::vector<UpdateRule> rules;
  for (const UpdateRule rule : all_values<UpdateRule>) {
    if (traits_of(rule).reads(key)) rules.push_back(rule);
  }
  return rules;
}
// "added to the root (adamw, lamb)".
std::string with_rules(std::string_view help, std::string_view key) {
  std::vector<std::string_view> names;
  for (const UpdateRule rule : rules_that_read(key)) names.push_back(name_of(rule));
  return fmt::format("{} ({})", help, fmt::join(names, ", "));
}

ConfigKey betas_key(const std::string& path, std::optional<UpdateGroup> group) {
  ConfigKey key = make_key(path, "an array of two numbers", with_rules("decay of the two moments", "betas"));
  key.read = [group, expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    const auto* elements = std::get_if<std::vector<ConfigValue>>(&value.data);
    if (!elements) return {wrong_type(expected, value)};
    if (elements->size() != 2) {
      return {{value.place, fmt::format("expected {}, got {} elements", expected, elements->size())}};
    }
    std::array<double, 2> betas{};
    Faults faults;
    for (std::size_t i = 0; i < betas.size(); ++i) {
      const ConfigValue& element = (*elements)[i];
      collect(faults, element, [&] { betas[i] = read_number(element, "a number", below_one); });
    }
    if (!faults.empty()) return faults;
    OptimizerConfig& options = options_of(config, group);
    options.beta1 = betas[0];
    options.beta2 = betas[1];
    return {};
  };
  key.write = [group](const Config& config) {
    const OptimizerConfig options = options_of(config, group);
    return fmt::format("[{}, {}]", toml_text(options.beta1), toml_text(options.beta2));
  };
  return key;
}

// The condition that a group's rule reads the key, for keys that not every rule reads.
KeyConditions read_by_rule(UpdateGroup group, const std::string& name) {
  if (name == "state") return {keeps_states(group)};
  std::vector<UpdateRule> rules = rules_that_read(name);
  if (rules.empty()) return {};
  return {steps_by(group, std::move(rules))};
}

}  // namespace

std::vector<ConfigKey> optimizer_keys(std::optional<UpdateGroup> group) {
  const std::string section = group ? fmt::format("optimizer.{}", name_of(*group)) : "optimizer";
  const auto field = [&](const std::string& key, auto member) { return field_of(group, section + "." + key, member); };
  std::vector<ConfigKey> keys = {
      choice_key(field("name", &OptimizerConfig::rule), "update rule"),
      number_key(field("learning_rate", &OptimizerConfig::learning_rate), "after warm-up", non_negative),
      betas_key(section + ".betas", group),
      number_key(field("eps", &OptimizerConfig::eps), with_rules("added to the root of the second moment", "eps"),
                 positive),
      number_key(field("weight_decay", &OptimizerConfig::weight_decay), "decoupled, times the learning rate",
                 non_negative),
      number_key(field("momentum", &OptimizerConfig::momentum),
                 with_rules("part of the sum of gradients that stays", "momentum"), below_one),
      choice_key(field("state", &OptimizerConfig::state),
                 "moments are kept in; bfloat16 is rounded stochastically, muon's to the nearest",
                 {DType::float32, DType::bfloat16}, {"float16", "float8", "float64"}),
      choice_key(field("muon_scale", &OptimizerConfig::muon_scale),
                 "size of a step of muon: that of adamw's, or by a matrix' aspect"),
      choice_key(field("newton_schulz", &OptimizerConfig::newton_schulz), "dtype of muon's orthogonalisation",
                 {DType::float32, DType::bfloat16}, {"float16"}),
  };
  if (!group) {
    keys.push_back(number_key(
        KeyField{"optimizer.offload", &Config::state_offload, {steps_some_by_adamw()}},
        "part of each stage's states of adamw that stays in host memory, the largest tensors first", up_to_one));
    return keys;
  }
  for (ConfigKey& key : keys) {
    const bool own_default = *group == UpdateGroup::vectors && key.name == "weight_decay";
    if (!own_default) key.inherits = "optimizer." + key.name;
    key.read_where = trains_group(*group);
    add_conditions(key, read_by_rule(*group, key.name));
  }
  return keys;
}

}  // namespace weft::config_fields
