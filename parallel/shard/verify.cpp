#include "parallel/shard/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// How often the rank owns a run of rows, and how often its optimizer steps them.
struct RowCount {
  int owned = 0, stepped = 0;
  bool sound() const { return stepped == (owned > 0 ? 1 : 0); }
  bool operator==(const RowCount&) const = default;
};

std::string sentence(std::string_view parameter, std::int64_t begin, std::int64_t end, const RowCount& count) {
  const std::string rows = fmt::format("rows {} to {} of {}", begin, end - 1, parameter);
  if (count.owned == 0) return fmt::format("the optimizer steps {}, which the rank does not own", rows);
  if (count.stepped == 0) return fmt::format("the optimizer misses {}, which the rank owns", rows);
  return fmt::format("the optimizer steps {} {} times", rows, count.stepped);
}

}  // namespace

std::vector<std::string> row_differences(std::span<const OwnedRange> owned, std::span<const OwnedRange> stepped) {
  using Box = std::pair<std::int64_t, std::int64_t>;  // columns
  // Changes of the counts by row, for each parameter and box of its columns.
  std::map<std::pair<std::string_view, Box>, std::map<std::int64_t, RowCount>> changes;
  const auto add = [&](const OwnedRange& range, int RowCount::*count) {
    if (range.rows == 0) return;
    auto& of_box = changes[{range.parameter, {range.column_begin, range.columns}}];
    ++(of_box[range.row_begin].*count);
    --(of_box[range.row_begin + range.rows].*count);
  };
  for (const OwnedRange& range : owned) add(range, &RowCount::owned);
  for (const OwnedRange& range : stepped) add(range, &RowCount::stepped);

  std::vector<std::string> differences;
  for (const auto& [key, of_box] : changes) {
    RowCount count;
    std::int64_t begin = 0;
    for (const auto& [row, change] : of_box) {
      const RowCount next{count.owned + change.owned, count.stepped + change.stepped};
      if (next == count) continue;  // two adjacent runs with equal counts
      if (!count.sound()) differences.push_back(sentence(key.first, begin, row, count));
      begin = row;
      count = next;
    }
  }
  return differences;
}

namespace {

using Faults = std::vector<ShardingFault>;

template <typename... Args>
void add_fault(Faults& faults, ShardingSeam seam, fmt::format_string<Args...> text, Args&&... args) {
  faults.push_back({seam, fmt::format(text, std::forward<Args>(args)...)});
}

bool is_expert(const ParameterSpec& parameter) {
  return parameter.family == Family::experts;
}

// Every parameter of a segment existed when units were formed and lies in exactly one unit.
void check_membership(const StageDescription& d, Faults& faults) {
  std::map<std::string_view, const ParameterSpec*> formed;
  for (const ParameterSpec& parameter : d.formed_from) formed[parameter.name] = &parameter;
  std::map<std::string_view, std::vector<std::string_view>> units_of;
  for (const DescribedUnit& unit : d.units) {
    for (const ParameterSpec& parameter : unit.parameters()) units_of[parameter.name].push_back(unit.name);
  }
  std::set<std::string_view> declared;
  for (const DescribedSegment& segment : d.segments) {
    for (const ParameterSpec& parameter : segment.parameters) {
      declared.insert(parameter.name);
      const auto before = formed.find(parameter.name);
      if (before == formed.end()) {
        add_fault(faults, ShardingSeam::late, "{} was added to segment {} after units were formed: no unit knows it",
                  parameter.name, segment.name);
      } else if (*before->second != parameter) {
        add_fault(faults, ShardingSeam::late,
                  "{} of segment {} was changed after units were formed: {} x {} of family {} then, {} x {} of family "
                  "{} now",
                  parameter.name, segment.name, before->second->rows, before->second->columns,
                  name_of(before->second->family), parameter.rows, parameter.columns, name_of(parameter.family));
      } else if (!units_of.contains(parameter.name)) {
        add_fault(faults, ShardingSeam::unmanaged,
                  "{} of segment {} is in no unit and not replicated: nothing would gather, reduce or step it",
                  parameter.name, segment.name);
      }
    }
  }
  for (const auto& [name, units] : units_of) {
    if (units.size() > 1) {
      add_fault(faults, ShardingSeam::in_two_units, "{} is held {} times, by the units {}", name, units.size(),
                fmt::join(units, ", "));
    }
    // A parameter of another stage is reported by check_boundaries.
    const auto stage = d.stage_of_parameter.find(std::string(name));
    const bool elsewhere = stage != d.stage_of_parameter.end() && stage->second != d.stage;
    if (!declared.contains(name) && !elsewhere) {
      add_fault(faults, ShardingSeam::of_no_segment, "{} of unit {} is a parameter of no segment", name, units.front());
    }
  }
}

// Experts are recognised by the parameter's family, never by its name. An unmarked expert bank would be reduced over
// ranks that hold other experts.
void check_experts(const StageDescription& d, Faults& faults) {
  for (const DescribedSegment& segment : d.segments) {
    std::int64_t marked = 0;
    for (const ParameterSpec& parameter : segment.parameters) marked += is_expert(parameter) ? parameter.size() : 0;
    if (marked == segment.expert_elements) continue;
    add_fault(faults, ShardingSeam::unmarked_experts,
              "segment {} has {} elements of family experts, but its routed experts are {} elements", segment.name,
              marked, segment.expert_elements);
  }
}

void check_boundaries(const StageDescription& d, const DescribedUnit& unit, Faults& faults) {
  std::vector<std::string_view> experts, others;
  for (const ParameterSpec& parameter : unit.parameters()) {
    (is_expert(parameter) ? experts : others).push_back(parameter.name);
    const auto stage = d.stage_of_parameter.find(parameter.name);
    if (stage != d.stage_of_parameter.end() && stage->second != d.stage) {
      add_fault(faults, ShardingSeam::two_stages, "unit {} of stage {} holds {}, which belongs to stage {}", unit.name,
                d.stage, parameter.name, stage->second);
    }
  }
  if (!experts.empty() && !others.empty()) {
    add_fault(faults, ShardingSeam::dispatch,
              "unit {} crosses the dispatch: {} is a routed expert and {} is not; they are reduced over other ranks",
              unit.name, experts.front(), others.front());
  }
}

// The ranks over which the gradient of a parameter must be summed.
const std::vector<int>& holders_of(const StageDescription& d, const DescribedUnit& unit,
                                   const ParameterSpec& parameter) {
  if (is_expert(parameter)) return d.expert_holders;
  // In a sharded unit the tensor ranks' partial gradients of norm weights are summed separately, before the shard
  // group.
  const bool everywhere = is_replicated(parameter.family) || parameter.tensor_replicated;
  return unit.replicated && everywhere ? d.stage_ranks : d.dense_holders;
}

void check_groups(const StageDescription& d, const DescribedUnit& unit, Faults& faults) {
  const std::vector<ParameterSpec>& held = unit.parameters();
  const bool mixed = std::ranges::any_of(held, is_expert) && !std::ranges::all_of(held, is_expert);
  if (!mixed) {  // in a mixed unit, every group is wrong for some parameter
    for (const ParameterSpec& parameter : unit.parameters()) {
      const std::vector<int>& holders = holders_of(d, unit, parameter);
      if (unit.reduced_over == holders) continue;
      add_fault(faults, ShardingSeam::wrong_group,
                "unit {} is summed over ranks {} ({}), but its {}, of family {}, is held by ranks {}", unit.name,
                fmt::join(unit.reduced_over, ", "), unit.group, parameter.name, name_of(parameter.family),
                fmt::join(holders, ", "));
      break;
    }
  }
  if (unit.replicated) return;
  const std::int64_t shards = unit.whole ? 1 : unit.group_ranks;
  if (unit.layout.shards != shards) {
    add_fault(faults, ShardingSeam::shard_count, "unit {} is laid out for {} shards, but {}", unit.name,
              unit.layout.shards,
              unit.whole ? std::string("is kept whole") : fmt::format("its group {} has {} ranks", unit.group, shards));
  }
}

// Checks the rules that share a unit. An element-wise rule (AdamW, Lion, SGD) steps any rows, so two such rules may
// share any unit. A rule on whole matrices exchanges the rows of all its matrices between reduction and step. If a unit
// is cut into shards, one rule must therefore step all its matrices. Vectors do not count: no rule treats them as
// matrices, they lie before all matrices, and their few elements are exchanged too. Units that are whole or replicated
// are exempt, because every rank has whole matrices.
void check_rules(const StageDescription& d, const DescribedUnit& unit, Faults& faults) {
  if (unit.replicated || unit.layout.shards == 1) return;
  const ParameterSpec* whole = nullptr;
  for (const ParameterSpec& parameter : unit.parameters()) {
    const auto rule = d.rule_of_parameter.find(parameter.name);
    if (parameter.columns > 1 && rule != d.rule_of_parameter.end() && rule->second.whole_matrix) whole = &parameter;
  }
  if (whole == nullptr) return;
  const DescribedRule& rule = d.rule_of_parameter.at(whole->name);
  for (const ParameterSpec& parameter : unit.parameters()) {
    const auto other = d.rule_of_parameter.find(parameter.name);
    if (parameter.columns == 1 || other == d.rule_of_parameter.end() || other->second == rule) continue;
    add_fault(faults, ShardingSeam::two_optimizers,
              "unit {} is cut in {} shards, but {} is stepped by {}, which needs whole matrices, and {} by {}",
              unit.name, unit.layout.shards, whole->name, rule.name, parameter.name, other->second.name);
    return;
  }
}

void check_rows(const StageDescription& d, Faults& faults) {
  if (!d.stepped) return;
  std::vector<OwnedRange> owned;
  for (const DescribedUnit& unit : d.units) {
    const UnitHolder holder{d.rank, unit.group};
    const auto ranges = unit.replicated
                            ? owned_ranges(unit.replicated_parameters, holder)
                            : owned_ranges(unit.layout, unit.layout.shards == 1 ? 0 : unit.group_index, holder);
    owned.insert(owned.end(), ranges.begin(), ranges.end());
  }
  for (std::string& message : row_differences(owned, *d.stepped)) {
    faults.push_back({ShardingSeam::optimizer_rows, std::move(message)});
  }
}

}  // namespace

std::vector<ShardingFault> find_sharding_faults(const StageDescription& description) {
  Faults faults;
  check_membership(description, faults);
  check_experts(description, faults);
  for (const DescribedUnit& unit : description.units) {
    check_boundaries(description, unit, faults);
    check_groups(description, unit, faults);
    check_rules(description, unit, faults);
  }
  check_rows(description, faults);
  return faults;
}

void verify_sharding(const StageDescription& description) {
  const Faults faults = find_sharding_faults(description);
  if (faults.empty()) return;
  std::string text;
  for (const ShardingFault& fault : faults) text += fmt::format("\n  {}: {}", name_of(fault.seam), fault.message);
  fail("the sharding of stage {} is not sound on rank {}:{}", description.stage, description.rank, text);
}

}  // namespace weft
