#include "trainer/resolve/config_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_sources.h"
#include "trainer/config/update_groups.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

// Takes the gathered entries through the schema, then through the rules, and collects all faults.
class Reader {
 public:
  explicit Reader(ConfigSources sources, std::vector<ConfigKey> schema = config_schema())
      : sources_(std::move(sources)), schema_(std::move(schema)), faults_(std::move(sources_.faults)) {
    for (const ConfigKey& key : schema_) {
      sections_.insert(key.section);
      paths_.push_back(key.path());
      if (!key.inherits.empty()) inherited_.emplace(key.path(), key.inherits);
    }
  }

  // Each key by itself; one with a fault has its default.
  const Config& read_values() {
    report_unknown();
    for (const ConfigKey& key : schema_) read_key(key);
    return config_;
  }

  Config read(const std::function<bool(const ConfigRule&)>& applies = [](const ConfigRule&) { return true; }) {
    read_values();
    for (const Family family : shard_families) {
      config_.shard_by_family.try_emplace(family, config_.shard);
      config_.precision_by_family.try_emplace(family, config_.inherited_precision(family));
    }
    const ResolvedGroups groups = resolved_groups(config_);
    for (const UpdateGroup group : update_groups) {
      config_.optimizer_by_group.try_emplace(group, groups[group]);
    }
    sort_by_place(faults_);
    // If a file could not be read, all keys that it should hold would look missing.
    if (sources_.complete) {
      report_missing();
      for (const ConfigRule& rule : config_rules()) {
        if (applies(rule)) apply(rule);
      }
    }
    if (!faults_.empty()) throw Error(ErrorKind::request, format_faults(faults_));
    return config_;
  }

  std::string written(bool with_origins) const {
    return write_config(
        config_, schema_, [&](const ConfigKey& key) { return with_origins ? origin(key) : ""; },
        [&](const ConfigKey& key) { return !key.inherits.empty() && !find(key.path()); });
  }

  std::map<std::string, ConfigValue> said() const {
    std::map<std::string, ConfigValue> values;
    for (const auto& [path, entry] : sources_.entries) {
      if (!entry.is_table()) values.emplace(path, entry.value);
    }
    return values;
  }

  std::set<std::string> doubtful() const {
    std::set<std::string> keys = faulty_;
    keys.insert(meant_.begin(), meant_.end());
    return keys;
  }

  std::vector<std::string> unread() const {
    std::vector<std::string> texts;
    std::ranges::transform(unread_overrides(config_, schema_, sources_.entries), std::back_inserter(texts),
                           format_fault);
    return texts;
  }

 private:
  const ConfigEntry* find(const std::string& path) const {
    const auto found = sources_.entries.find(path);
    return found == sources_.entries.end() ? nullptr : &found->second;
  }
  bool is_key(const std::string& path) const { return std::ranges::find(paths_, path) != paths_.end(); }

  void report_unknown() {
    std::vector<std::string> unknown;  // sections passed over: their keys would only repeat the fault
    for (const auto& [path, entry] : sources_.entries) {
      const auto holds = [&path = path](const std::string& prefix) { return path.starts_with(prefix); };
      if (std::ranges::any_of(unknown, holds)) continue;
      if (is_key(path)) {
        if (entry.is_table()) unknown.push_back(path + ".");  // read_key() reports the type
      } else if (sections_.contains(path)) {
        if (!entry.is_table()) {
          faults_.push_back({entry.value.place,
                             fmt::format("{}: expected a section, [{}], got {}", path, path, describe(entry.value))});
          excuse(path + ".");
        }
      } else {
        faults_.push_back({entry.key, unknown_text(entry)});
        if (entry.is_table()) unknown.push_back(path + ".");
      }
    }
  }

  std::string unknown_text(const ConfigEntry& entry) {
    if (entry.is_table()) {
      const auto near = nearest_path(entry.path, {sections_.begin(), sections_.end()});
      if (!near) return fmt::format("unknown section [{}]", entry.path);
      excuse(*near + ".");
      return fmt::format("unknown section [{}]: did you mean [{}]?", entry.path, *near);
    }
    const auto near = nearest_path(entry.path, paths_);
    if (!near) return fmt::format("unknown key {}", entry.path);
    excuse(*near);
    return fmt::format("unknown key {}: did you mean {}?", entry.path, *near);
  }

  // Keys that were probably meant are not reported as missing, and their values in config_ are not checked.
  void excuse(const std::string& beginning) {
    for (const std::string& path : paths_) {
      if (!path.starts_with(beginning)) continue;
      meant_.insert(path);
      if (!find(path)) faulty_.insert(path);
    }
  }

  void read_key(const ConfigKey& key) {
    const ConfigEntry* entry = find(key.path());
    if (!entry) {
      if (key.absent) key.absent(config_);
      return;
    }
    for (Fault& fault : key.read(config_, entry->value)) {
      faulty_.insert(key.path());
      faults_.push_back({std::move(fault.place), key.path() + ": " + fault.text});
    }
  }

  Place whole_file() const { return {.source = sources_.file}; }

  void report_missing() {
    for (const ConfigKey& key : schema_) {
      if (!key.required || find(key.path()) || faulty_.contains(key.path()) || missing_for(key, config_)) continue;
      faulty_.insert(key.path());
      faults_.push_back({whole_file(), fmt::format("{} is required: {} ({})", key.path(), key.type, key.help)});
    }
  }

  // The key that gives the value of this one if it is not written; empty: none.
  std::string general_of(const std::string& path) const {
    const auto found = inherited_.find(path);
    return found == inherited_.end() ? std::string() : found->second;
  }

  // The first key of a rule that is written. A key that gives the value of others comes after those, and before keys
  // of other kinds.
  Place place_of(const ConfigRule& rule) const {
    const ConfigEntry* general = nullptr;
    for (const std::string& path : rule.keys) {
      const bool inherits = inherited_.contains(path);
      if (!inherits && general) break;
      if (const ConfigEntry* entry = find(path)) return entry->value.place;
      if (inherits && !general) general = find(general_of(path));
    }
    return general ? general->value.place : whole_file();
  }

  void apply(const ConfigRule& rule) {
    const auto is_faulty = [&](const std::string& path) {
      return faulty_.contains(path) || faulty_.contains(general_of(path));
    };
    if (std::ranges::any_of(rule.keys, is_faulty)) return;
    const Place place = place_of(rule);
    for (std::string& text : rule.check(config_)) faults_.push_back({place, std::move(text)});
  }

  std::string origin(const ConfigKey& key) const {
    if (const ConfigEntry* entry = find(key.path())) return format_origin(entry->value.place);
    return key.inherits.empty() || !find(key.inherits) ? "default" : key.inherits;
  }

  ConfigSources sources_;
  std::vector<ConfigKey> schema_;
  std::vector<std::string> paths_;
  std::map<std::string, std::string> inherited_;  // the key that gives the value of a key that is not written
  std::set<std::string> sections_;
  std::set<std::string> faulty_;  // paths of keys whose value in config_ means nothing
  std::set<std::string> meant_;   // paths probably meant by unknown ones
  Faults faults_;
  Config config_;
};

ResolvedConfig resolved_by(Reader reader) {
  ResolvedConfig result;
  result.config = reader.read();
  result.toml = reader.written(false);
  result.annotated = reader.written(true);
  result.said = reader.said();
  result.unread = reader.unread();
  result.warnings = shard_warnings(result.config);
  for (auto& warnings : {layout_warnings(result.config), microbatch_warnings(result.config)}) {
    result.warnings.insert(result.warnings.end(), warnings.begin(), warnings.end());
  }
  return result;
}

}  // namespace

ResolvedConfig read_config_text(const std::string& text, const std::string& name, const Overrides& overrides) {
  return resolved_by(Reader(gather_sources(name, text, overrides)));
}

Config read_undecided(const std::filesystem::path& file, const Overrides& overrides,
                      const std::function<bool(const std::string& path)>& undecided) {
  Reader reader(gather_sources(file.string(), read_text(file), overrides));
  return reader.read([&](const ConfigRule& rule) { return std::ranges::none_of(rule.keys, undecided); });
}

ResolvedConfig read_values(const std::filesystem::path& file, const Overrides& overrides) {
  Reader reader(gather_sources(file, read_text(file), overrides));
  ResolvedConfig result;
  result.config = reader.read_values();
  result.said = reader.said();
  result.doubtful = reader.doubtful();
  return result;
}

std::string key_faults(const std::filesystem::path& file, const Overrides& overrides) {
  const auto refused = refusal_of([&] {
    ConfigSources sources = gather_sources(file, read_text(file), overrides);
    sources.complete = false;
    Reader(std::move(sources)).read();
  });
  return refused.value_or("");
}

ResolvedConfig read_config(const std::filesystem::path& file, const Overrides& overrides) {
  return read_config_text(read_text(file), file.string(), overrides);
}

ResolvedConfig read_typed_config(const std::filesystem::path& file, const Overrides& overrides,
                                 std::vector<ConfigKey> schema) {
  ResolvedConfig resolved = resolved_by(Reader(gather_sources(file, read_text(file), overrides), std::move(schema)));
  if (!resolved.unread.empty()) throw Error(ErrorKind::request, fmt::format("{}", fmt::join(resolved.unread, "\n")));
  return resolved;
}

}  // namespace weft
