#include "trainer/config/config_use.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "trainer/config/config_messages.h"

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
