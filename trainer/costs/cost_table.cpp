#include "trainer/costs/cost_table.h"

#include <algorithm>
#include <optional>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"

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

}  // namespace

ProgramCosts table_costs(const CostTable& table, const ProgramTables& tables, const GroupSizes& sizes) {
  ProgramCosts costs = even_costs(tables, {});
  for (std::size_t i = 0; i < tables.segments.size(); ++i) {
    const ProgramSegment& segment = tables.segments[i];
    const ComputeCost* cost = find_cost(table.segments, "segment", segment.name, name_of(segment.part.kind));
    if (!cost && segment.part.kind == PartKind::passage) continue;
    if (!cost) fail_request("costs: nothing is said of segment {}", segment.name);
    costs.segments[i] = *cost;
  }
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

}  // namespace weft
