// The text of a cost table: reads it with a place for each fault, and writes it.
#include <algorithm>
#include <cmath>
#include <optional>

#include "parallel/runtime/error.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_toml.h"
#include "trainer/costs/cost_table.h"

namespace weft {
namespace {

std::shared_ptr<const SourceText> source_of(const std::string& text, const std::string& name) {
  auto source = std::make_shared<SourceText>();
  source->name = name;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    source->lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return source;
}

// The parts of `segments."blocks.0.*".forward`, without quotes.
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts = {""};
  bool quoted = false;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '"') {
      quoted = !quoted;
    } else if (path[i] == '.' && !quoted) {
      parts.emplace_back();
    } else {
      if (path[i] == '\\' && quoted && i + 1 < path.size()) ++i;
      parts.back() += path[i];
    }
  }
  return parts;
}

std::optional<Group> group_named(std::string_view name) {
  for (Group group : all_groups) {
    if (name_of(group) == name) return group;
  }
  for (Group group : {Group::dp_island, Group::edp_island}) {
    if (name_of(group) == name) return group;
  }
  return std::nullopt;
}

double* field_of(ComputeCost& cost, std::string_view key) {
  if (key == "forward") return &cost.forward;
  if (key == "backward_input") return &cost.backward_input;
  return key == "backward_weight" ? &cost.backward_weight : nullptr;
}
double* field_of(UnitCost& cost, std::string_view key) {
  if (key == "gather") return &cost.gather;
  if (key == "island_gather") return &cost.island_gather;
  if (key == "scatter") return &cost.scatter;
  if (key == "tie") return &cost.tie;
  return key == "reduce" ? &cost.reduce : nullptr;
}
double* field_of(LinkCost& cost, std::string_view key) {
  if (key == "latency") return &cost.latency;
  return key == "bytes_per_second" ? &cost.bytes_per_second : nullptr;
}

class TableReader {
 public:
  void read(const ConfigEntry& entry) {
    const auto parts = parts_of(entry.path);
    if (parts.size() == 1) return read_section(entry, parts[0]);
    if (parts[0] == "segments")
      return read_field(table.segments, entry, parts, "forward, backward_input, backward_weight");
    if (parts[0] == "units")
      return read_field(table.units, entry, parts, "gather, island_gather, scatter, reduce, tie");
    if (parts[0] == "links") return read_link(entry, parts);
    if (parts[0] == "messages" && parts.size() == 2) return read_number(entry, &table.messages[parts[1]]);
    if (parts[0] == "update" && parts.size() == 2) return read_update(entry, parts[1]);
  }

  // A link without a rate was probably forgotten in the file.
  void require_speeds() {
    for (const auto& [group, link] : table.links) {
      if (link.bytes_per_second > 0.0) continue;
      const auto place = places_.find(group);
      if (place != places_.end()) fault(place->second, "links.{} has no bytes_per_second above 0", name_of(group));
    }
  }

  CostTable table;
  Faults faults;

 private:
  template <typename... Args>
  void fault(const Place& place, fmt::format_string<Args...> text, Args&&... args) {
    faults.push_back({place, fmt::format(text, std::forward<Args>(args)...)});
  }

  void read_section(const ConfigEntry& entry, const std::string& name) {
    for (const char* known : {"segments", "units", "messages", "links", "update"}) {
      if (name != known) continue;
      if (!entry.is_table()) fault(entry.value.place, "{} is a section", name);
      return;
    }
    fault(entry.key, "unknown section {}; a cost table has segments, units, messages, links and update", name);
  }

  template <typename Cost>
  void read_field(std::map<std::string, Cost>& entries, const ConfigEntry& entry, const std::vector<std::string>& parts,
                  std::string_view fields) {
    if (parts.size() == 2 && entry.is_table()) {
      entries[parts[1]];
    } else if (parts.size() == 2) {
      fault(entry.value.place, "{}: expected a table with {}, got {}", entry.path, fields, describe(entry.value));
    } else if (double* field = parts.size() == 3 ? field_of(entries[parts[1]], parts[2]) : nullptr) {
      read_number(entry, field);
    } else {
      fault(entry.key, "unknown key {}; one of {}", entry.path, fields);
    }
  }

  void read_link(const ConfigEntry& entry, const std::vector<std::string>& parts) {
    const auto group = group_named(parts[1]);
    if (!group) {
      if (parts.size() == 2) fault(entry.key, "{} is no group of ranks", parts[1]);
      return;
    }
    if (parts.size() == 2) places_[*group] = entry.key;
    LinkCost& link = table.links[*group];
    if (parts.size() == 2 && !entry.is_table()) {
      fault(entry.value.place, "{}: expected a table with latency and bytes_per_second, got {}", entry.path,
            describe(entry.value));
    } else if (double* field = parts.size() == 3 ? field_of(link, parts[2]) : nullptr) {
      read_number(entry, field);
    } else if (parts.size() > 2) {
      fault(entry.key, "unknown key {}; one of latency, bytes_per_second", entry.path);
    }
  }

  void read_update(const ConfigEntry& entry, const std::string& key) {
    if (key == "gradient_norm") return read_number(entry, &table.gradient_norm);
    if (key == "optimizer_step") return read_number(entry, &table.optimizer_step);
    fault(entry.key, "unknown key {}; one of gradient_norm, optimizer_step", entry.path);
  }

  void read_number(const ConfigEntry& entry, double* into) {
    std::optional<double> number;
    if (const auto* integer = std::get_if<std::int64_t>(&entry.value.data)) number = static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(&entry.value.data)) number = *real;
    if (!number || !std::isfinite(*number) || *number < 0.0) {
      return fault(entry.value.place, "{}: expected a number not below 0, got {}", entry.path, describe(entry.value));
    }
    *into = *number;
  }

  std::map<Group, Place> places_;  // of links
};

}  // namespace

CostTable parse_cost_table(const std::string& text, const std::string& name) {
  const TomlDocument document = parse_toml(text, source_of(text, name));
  TableReader reader;
  if (document.syntax_error) reader.faults.push_back(*document.syntax_error);
  for (const ConfigEntry& entry : document.entries) reader.read(entry);
  if (reader.faults.empty()) reader.require_speeds();
  if (reader.faults.empty()) return reader.table;
  sort_by_place(reader.faults);
  throw Error(ErrorKind::request, format_faults(reader.faults));
}

std::string to_toml(const CostTable& table) {
  std::string text = "[segments]\n";
  for (const auto& [name, cost] : table.segments) {
    text += fmt::format("{} = {{ forward = {}, backward_input = {}, backward_weight = {} }}\n", toml_text(name),
                        toml_text(cost.forward), toml_text(cost.backward_input), toml_text(cost.backward_weight));
  }
  text += "\n[units]\n";
  for (const auto& [name, cost] : table.units) {
    // Written only if set: few units are tied.
    const std::string tie = cost.tie > 0.0 ? ", tie = " + toml_text(cost.tie) : "";
    text += fmt::format("{} = {{ gather = {}, island_gather = {}, scatter = {}, reduce = {}{} }}\n", toml_text(name),
                        toml_text(cost.gather), toml_text(cost.island_gather), toml_text(cost.scatter),
                        toml_text(cost.reduce), tie);
  }
  text += "\n[messages]\n";
  for (const auto& [name, seconds] : table.messages) {
    text += fmt::format("{} = {}\n", toml_text(name), toml_text(seconds));
  }
  text += "\n[links]\n";
  for (const auto& [group, link] : table.links) {
    text += fmt::format("{} = {{ latency = {}, bytes_per_second = {} }}\n", name_of(group), toml_text(link.latency),
                        toml_text(link.bytes_per_second));
  }
  text += fmt::format("\n[update]\ngradient_norm = {}\noptimizer_step = {}\n", toml_text(table.gradient_norm),
                      toml_text(table.optimizer_step));
  return text;
}

}  // namespace weft
