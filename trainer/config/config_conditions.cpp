#include "trainer/config/config_conditions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "trainer/config/config_messages.h"
#include "trainer/config/update_groups.h"

namespace weft::config_fields {
namespace {

KeyCondition trains(Family family) {
  return {fmt::format("training.frozen leaves {} out", name_of(family)),
          [family](const Config& c) { return !c.training.frozen.contains(family); }};
}

KeyCondition uses_root_units() {
  return {"a family has wrap \"root\"", [](const Config& c) {
            return std::ranges::any_of(c.shard_by_family, [](const auto& entry) {
              return entry.first != Family::experts && entry.second.wrap.kind == WrapKind::root;
            });
          }};
}

}  // namespace

void add_conditions(ConfigKey& key, const KeyConditions& conditions) {
  key.read_where.insert(key.read_where.end(), conditions.begin(), conditions.end());
}

std::vector<ConfigKey> only_where(const KeyConditions& conditions, std::vector<ConfigKey> keys) {
  for (ConfigKey& key : keys) add_conditions(key, conditions);
  return keys;
}

KeyCondition has_blocks(BlockKind kind) {
  return {fmt::format("the model has {}", blocks_of(kind)), [kind](const Config& c) { return c.model.has(kind); }};
}

KeyCondition has_blocks(Mixer mixer) {
  // A model whose blocks are not known yet has attention, as most have.
  return {fmt::format("the model has {}", blocks_of(mixer)), [mixer](const Config& c) {
            return c.model.has(mixer) || (c.model.blocks.empty() && mixer == Mixer::attention);
          }};
}

KeyConditions of_family(Family family, std::string_view key) {
  KeyConditions conditions;
  if (family == Family::experts) conditions.push_back(has_blocks(BlockKind::moe));
  if (family == Family::root) conditions.push_back(uses_root_units());
  if (key == "reduction" || key == "accumulation") conditions.push_back(trains(family));
  return conditions;
}

KeyCondition steps_some_by_adamw() {
  return {"a group that is trained has name \"adamw\"", [](const Config& c) {
            const ResolvedGroups groups = resolved_groups(c);
            return std::ranges::any_of(update_groups, [&](UpdateGroup group) {
              const auto holds = [&](const KeyCondition& condition) { return condition.holds(c); };
              return groups[group].rule == UpdateRule::adamw && std::ranges::all_of(trains_group(group), holds);
            });
          }};
}

KeyConditions trains_group(UpdateGroup group) {
  if (group == UpdateGroup::root) {
    return {{"root holds a matrix, which it does not in this version", [](const Config&) { return false; }}};
  }
  if (group == UpdateGroup::vectors) {
    return {{"training.frozen leaves dense or head out", [](const Config& c) {
               return !c.training.frozen.contains(Family::dense) || !c.training.frozen.contains(Family::head);
             }}};
  }
  KeyConditions conditions;
  if (group == UpdateGroup::experts || group == UpdateGroup::routing) conditions.push_back(has_blocks(BlockKind::moe));
  if (group == UpdateGroup::head) {
    conditions.push_back(
        {"tie_word_embeddings is false", [](const Config& c) { return !c.model.tie_word_embeddings; }});
  }
  conditions.push_back(trains(static_cast<Family>(group)));
  return conditions;
}

KeyCondition steps_by(UpdateGroup group, std::vector<UpdateRule> rules) {
  std::string names;
  for (const UpdateRule rule : rules) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : rule == rules.back() ? " or " : ", ", name_of(rule));
  }
  return {fmt::format("name is {}", names), [group, rules = std::move(rules)](const Config& c) {
            const UpdateRule rule = resolved_groups(c)[group].rule;
            return std::ranges::find(rules, rule) != rules.end();
          }};
}

KeyCondition keeps_states(UpdateGroup group) {
  return {"the rule keeps a state beside each element", [group](const Config& c) {
            const OptimizerConfig options = resolved_groups(c)[group];
            return states_of(options.rule, options.momentum) > 0;
          }};
}

KeyCondition computes_in_float16() {
  return {"something is computed or reduced in \"float16\"", uses_float16};
}

}  // namespace weft::config_fields

namespace weft {
namespace {

using Entries = std::map<std::string, ConfigEntry>;
using Schema = std::vector<ConfigKey>;

// "experts" of "precision.experts".
std::string family_of(const ConfigKey& key) {
  return key.section.substr(key.section.rfind('.') + 1);
}

// Why no family or group reads the general key; empty if one does, or if the key is not general.
std::string reason_of_heirs(const ConfigKey& general, const Config& config, const Schema& schema,
                            const Entries& entries) {
  std::vector<std::string> owners;
  std::vector<std::pair<std::string, std::vector<std::string>>> lacking;  // families by missing condition
  for (const ConfigKey& key : schema) {
    if (key.inherits != general.path()) continue;
    const auto own = entries.find(key.path());
    if (const auto missing = missing_for(key, config)) {
      const auto same = [&](const auto& entry) { return entry.first == *missing; };
      const auto found = std::ranges::find_if(lacking, same);
      auto& families = found == lacking.end() ? lacking.emplace_back(*missing, std::vector<std::string>()) : *found;
      families.second.push_back(family_of(key));
    } else if (own == entries.end() || own->second.value.place.source->is_command_line) {
      return {};
    } else {
      owners.push_back(fmt::format("{} ({})", family_of(key), format_origin(own->second.value.place)));
    }
  }
  std::vector<std::string> reasons;
  if (!owners.empty()) {
    reasons.push_back(fmt::format("{} {} of {} own", fmt::join(owners, ", "),
                                  owners.size() == 1 ? "has a value" : "have values",
                                  owners.size() == 1 ? "its" : "their"));
  }
  for (const auto& [missing, families] : lacking) {
    reasons.push_back(
        fmt::format("{} {} it where {}", fmt::join(families, ", "), families.size() == 1 ? "reads" : "read", missing));
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace

std::optional<std::string> missing_for(const ConfigKey& key, const Config& config) {
  const auto lacks = [&](const KeyCondition& condition) { return !condition.holds(config); };
  const auto found = std::ranges::find_if(key.read_where, lacks);
  if (found == key.read_where.end()) return std::nullopt;
  return found->text;
}

Faults unread_overrides(const Config& config, const Schema& schema, const Entries& entries) {
  Faults faults;
  for (const ConfigKey& key : schema) {
    const auto given = entries.find(key.path());
    if (given == entries.end() || !given->second.value.place.source->is_command_line) continue;
    const auto missing = missing_for(key, config);
    const std::string reason = missing ? "it is read where " + *missing : reason_of_heirs(key, config, schema, entries);
    if (reason.empty()) continue;
    faults.push_back(
        {given->second.value.place, fmt::format("{}: nothing in this run reads it: {}", key.path(), reason)});
  }
  sort_by_place(faults);
  return faults;
}

}  // namespace weft
