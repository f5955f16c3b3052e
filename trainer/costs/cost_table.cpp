#include "trainer/costs/cost_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_sources.h"

namespace weft {
namespace {

// The fit of a key to a name; nothing when it does not fit.
std::optional<std::size_t> fit(const std::string& key, const std::string& name, std::string_view kind) {
  constexpr std::size_t exact = 1000000;
  if (key == name) return exact;
  if (key.find_first_of("*?[") != std::string::npos) {
    if (!matches_pattern(key, name)) return std::nullopt;
    return 1 + key.size() - static_cast<std::size_t>(std::count(key.begin(), key.end(), '*'));
  }
  return key == kind ? std::optional<std::size_t>(0) : std::nullopt;
}

template <typename Cost>
const Cost* find_cost(const std::map<std::string, Cost>& entries, std::string_view what, const std::string& name,
                      std::string_view kind = {}) {
  std::optional<std::size_t> best;
  const std::pair<const std::string, Cost>* found = nullptr;
  for (const auto& entry : entries) {
    const auto how_well = fit(entry.first, name, kind);
    if (!how_well || (best && *how_well < *best)) continue;
    if (best == how_well && found->second != entry.second) {
      fail_request("costs: \"{}\" and \"{}\" fit {} {} alike and say different things", found->first, entry.first, what,
                   name);
    }
    best = how_well;
    found = &entry;
  }
  return found ? &found->second : nullptr;
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

// A field of a cost by its key.
template <typename Cost>
struct CostField {
  std::string_view key;
  double Cost::*value;
  bool if_set = false;  // written only if it is not 0
};
constexpr CostField<ComputeCost> segment_fields[] = {{"forward", &ComputeCost::forward},
                                                     {"backward_input", &ComputeCost::backward_input},
                                                     {"backward_weight", &ComputeCost::backward_weight},
                                                     {"forward_out", &ComputeCost::forward_out, true},
                                                     {"forward_back", &ComputeCost::forward_back, true},
                                                     {"backward_out", &ComputeCost::backward_out, true},
                                                     {"backward_back", &ComputeCost::backward_back, true},
                                                     {"forward_covered", &ComputeCost::forward_covered, true},
                                                     {"backward_covered", &ComputeCost::backward_covered, true},
                                                     {"host_copy", &ComputeCost::host_copy, true}};
constexpr CostField<UnitCost> unit_fields[] = {{"gather", &UnitCost::gather},
                                               {"island_gather", &UnitCost::island_gather},
                                               {"scatter", &UnitCost::scatter},
                                               {"reduce", &UnitCost::reduce},
                                               {"tie", &UnitCost::tie, true}};  // few units are tied
constexpr CostField<LinkCost> link_fields[] = {{"latency", &LinkCost::latency},
                                               {"bytes_per_second", &LinkCost::bytes_per_second}};
constexpr CostField<CostTable> update_fields[] = {{"gradient_norm", &CostTable::gradient_norm},
                                                  {"optimizer_step", &CostTable::optimizer_step}};

template <typename Fields>
std::string keys_of(const Fields& fields, std::string_view between = ", ") {
  std::vector<std::string_view> keys;
  for (const auto& field : fields) keys.push_back(field.key);
  return fmt::format("{}", fmt::join(keys, between));
}

template <typename Cost, typename Fields>
std::string fields_text(const Cost& cost, const Fields& fields) {
  std::vector<std::string> texts;
  for (const auto& field : fields) {
    const double value = cost.*field.value;
    if (!field.if_set || value > 0.0) texts.push_back(fmt::format("{} = {}", field.key, toml_text(value)));
  }
  return fmt::format("{{ {} }}", fmt::join(texts, ", "));
}

class TableReader {
 public:
  void read(const ConfigEntry& entry) {
    const auto parts = parts_of(entry.path);
    if (parts.size() == 1) return read_section(entry, parts[0]);
    if (parts[0] == "segments") return read_cost(table.segments, parts[1], entry, parts, segment_fields);
    if (parts[0] == "units") return read_cost(table.units, parts[1], entry, parts, unit_fields);
    if (parts[0] == "links") return read_link(entry, parts);
    if (parts[0] == "messages" && parts.size() == 2) return read_number(entry, &table.messages[parts[1]]);
    if (parts[0] == "update" && parts.size() == 2) return read_field(table, entry, parts[1], update_fields);
  }

  // A link without a rate was probably forgotten in the file.
  void require_speeds() {
    for (const auto& [group, place] : places_) {
      if (table.links[group].bytes_per_second > 0.0) continue;
      fault(place, "links.{} has no bytes_per_second above 0", name_of(group));
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

  template <typename Cost, typename Fields>
  void read_field(Cost& cost, const ConfigEntry& entry, const std::string& key, const Fields& fields) {
    const auto field = std::ranges::find(fields, key, [](const auto& each) { return each.key; });
    if (field == std::end(fields)) return fault(entry.key, "unknown key {}; one of {}", entry.path, keys_of(fields));
    read_number(entry, &(cost.*field->value));
  }

  // `parts`: a section, a name in it, and, unless the entry is the whole table, a key.
  template <typename Name, typename Cost, typename Fields>
  void read_cost(std::map<Name, Cost>& costs, const Name& name, const ConfigEntry& entry,
                 const std::vector<std::string>& parts, const Fields& fields, std::string_view between = ", ") {
    Cost& cost = costs[name];
    if (parts.size() > 2) return read_field(cost, entry, parts.size() == 3 ? parts[2] : "", fields);
    if (entry.is_table()) return;
    fault(entry.value.place, "{}: expected a table with {}, got {}", entry.path, keys_of(fields, between),
          describe(entry.value));
  }

  void read_link(const ConfigEntry& entry, const std::vector<std::string>& parts) {
    const auto group = value_named<Group>(parts[1]);
    if (!group || *group == Group::tied) {
      if (parts.size() == 2) fault(entry.key, "{} is no group of ranks", parts[1]);
      return;
    }
    if (parts.size() == 2) places_[*group] = entry.key;
    read_cost(table.links, *group, entry, parts, link_fields, " and ");
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

std::vector<ComputeCost> segment_costs(const CostTable& table, std::span<const ProgramSegment> segments) {
  std::vector<ComputeCost> costs;
  for (const ProgramSegment& segment : segments) {
    const ComputeCost* cost = find_cost(table.segments, "segment", segment.name, name_of(segment.part.kind));
    if (!cost && segment.part.kind != PartKind::passage)
      fail_request("costs: nothing is said of segment {}", segment.name);
    costs.push_back(cost ? *cost : ComputeCost{});
  }
  return costs;
}

ProgramCosts table_costs(const CostTable& table, const ProgramTables& tables, const GroupSizes& sizes) {
  ProgramCosts costs = even_costs(tables, {});
  costs.segments = segment_costs(table, tables.segments);
  for (std::size_t i = 0; i < tables.units.size(); ++i) {
    const UnitCost* cost = find_cost(table.units, "unit", tables.units[i].name);
    costs.units[i] = cost ? *cost : unit_cost(tables, tables.units[i], table.links, sizes);
  }
  for (std::size_t s = 0; s + 1 < tables.stages.size(); ++s) {
    if (tables.stages[s].rank == tables.stages[s + 1].rank) continue;
    const double* cost = find_cost(table.messages, "message", std::to_string(s));
    const auto link = table.links.find(Group::pp);
    if (!cost && link == table.links.end()) fail_request("costs: nothing is said of messages from stage {}", s);
    costs.transfers[s] =
        cost ? *cost
             : link_seconds(link->second, CollectiveOp::send, static_cast<double>(tables.stages[s].output_bytes), 2);
  }
  costs.gradient_norm = table.gradient_norm;
  costs.optimizer_step = table.optimizer_step;
  return costs;
}

CostTable parse_cost_table(const std::string& text, const std::string& name) {
  const TomlDocument document = parse_toml(text, as_source(text, name));
  TableReader reader;
  if (document.syntax_error) reader.faults.push_back(*document.syntax_error);
  for (const ConfigEntry& entry : document.entries) reader.read(entry);
  if (reader.faults.empty()) reader.require_speeds();
  if (reader.faults.empty()) return reader.table;
  sort_by_place(reader.faults);
  throw Error(ErrorKind::request, format_faults(reader.faults));
}

CostTable configured_cost_table(const std::string& file) {
  std::string text;
  if (const auto why = refusal_of([&] { text = InputFile(file).text(); })) {
    fail_request("pipeline.costs: {}; pipeline.costs = \"modelled\" needs no file", *why);
  }
  return parse_cost_table(text, file);
}

std::string to_toml(const CostTable& table) {
  std::string text = "[segments]\n";
  for (const auto& [name, cost] : table.segments) {
    text += fmt::format("{} = {}\n", toml_text(name), fields_text(cost, segment_fields));
  }
  text += "\n[units]\n";
  for (const auto& [name, cost] : table.units) {
    text += fmt::format("{} = {}\n", toml_text(name), fields_text(cost, unit_fields));
  }
  text += "\n[messages]\n";
  for (const auto& [name, seconds] : table.messages) {
    text += fmt::format("{} = {}\n", toml_text(name), toml_text(seconds));
  }
  text += "\n[links]\n";
  for (const auto& [group, link] : table.links) {
    text += fmt::format("{} = {}\n", name_of(group), fields_text(link, link_fields));
  }
  text += fmt::format("\n[update]\ngradient_norm = {}\noptimizer_step = {}\n", toml_text(table.gradient_norm),
                      toml_text(table.optimizer_step));
  return text;
}

}  // namespace weft
