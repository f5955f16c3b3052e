#include "parallel/shard/unit_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_map>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

// A unit during formation, while parameters are added.
struct FormingUnit {
  std::string key;  // identifies the parameters that belong to the unit; the name is set when the unit is complete
  WrapPolicy wrap;
  std::string segment = {};              // of half a block
  std::vector<std::string> scopes = {};  // distinct, as declared
  std::vector<Family> families = {};     // distinct, as declared
  UnitPlan plan = {};

  std::int64_t bytes(std::int64_t element_bytes) const { return parameter_elements(plan.parameters) * element_bytes; }
};

template <typename Value>
void add_once(std::vector<Value>& values, const Value& value) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

constexpr std::string_view alone_key = "alone ";  // begins the key of a unit with one parameter of several stages

bool lies_in_blocks(Family family) {
  return family == Family::dense || family == Family::experts;
}

// "blocks.0" and "blocks.3" give "blocks.0-3".
std::string span_of(const std::string& first, const std::string& last) {
  if (first == last) return first;
  const std::size_t dot = first.rfind('.');
  const bool same_list = dot != std::string::npos && last.starts_with(first.substr(0, dot + 1));
  return fmt::format("{}-{}", first, same_list ? last.substr(dot + 1) : last);
}

class UnitFormer {
 public:
  UnitFormer(std::span<const ScopedParameters> pieces, int stage, const WrapRules& rules)
      : pieces_(pieces), stage_(stage), rules_(rules) {
    for (const auto& [family, policy] : rules.by_family) {
      if (is_replicated(family)) fail("{} parameters are replicated: nothing wraps them", name_of(family));
    }
    for (const ScopedParameters& piece : pieces) {
      const bool block = std::ranges::any_of(
          piece.parameters, [](const ParameterSpec& parameter) { return lies_in_blocks(parameter.family); });
      if (block) blocks_.try_emplace(piece.scope, std::ssize(blocks_));
    }
  }

  std::vector<UnitPlan> form() {
    for (const ScopedParameters& piece : pieces_) add(piece);
    for (Family family : {Family::dense, Family::experts}) merge_small(family);
    std::vector<UnitPlan> plans;
    std::set<std::string> names;
    for (FormingUnit& unit : units_) {
      name(unit);
      if (!names.insert(unit.plan.name).second) fail("two units of stage {} are called {}", stage_, unit.plan.name);
      plans.push_back(std::move(unit.plan));
    }
    std::ranges::stable_partition(plans, [](const UnitPlan& unit) { return !unit.replicated(); });
    return plans;
  }

 private:
  template <typename Value>
  static Value of_family(const std::map<Family, Value>& values, Family family) {
    const auto found = values.find(family);
    return found == values.end() ? Value{} : found->second;
  }
  WrapPolicy wrap_of(Family family) const { return of_family(rules_.by_family, family); }
  std::string merge_key_of(Family family) const { return of_family(rules_.merge_key, family); }

  void add(const ScopedParameters& piece) {
    for (const ParameterSpec& parameter : piece.parameters) {
      if (!names_.insert(parameter.name).second) {
        fail("parameter {} is declared twice on stage {}", parameter.name, stage_);
      }
      // What a kernel reads as one is whole together.
      if (!parameter.stacked) whole_ = is_asked_whole(parameter);
      FormingUnit& unit = unit_of(piece, parameter);
      add_once(unit.scopes, piece.scope);
      add_once(unit.families, parameter.family);
      unit.plan.parameters.push_back(parameter);
    }
  }

  bool is_asked_whole(const ParameterSpec& parameter) const {
    // Of a vector that tensor ranks split no rank has all.
    const bool may_be_small =
        parameter.global_columns == 1 && parameter.family != Family::experts && parameter.rows == parameter.global_rows;
    return matches_any(rules_.replicate, parameter.name) ||
           (may_be_small && parameter.global_size() < rules_.replicate_below && !rules_.alone.contains(parameter.name));
  }

  FormingUnit& unit_of(const ScopedParameters& piece, const ParameterSpec& parameter) {
    const Family family = parameter.family;
    FormingUnit fresh{.key = {}, .wrap = wrap_of(family)};
    fresh.plan.family = family;
    const bool root = fresh.wrap.kind == WrapKind::root && family != Family::experts && !is_replicated(family);
    if (!is_replicated(family) && whole_) {
      fresh.key = fresh.plan.name = fmt::format("stage.{}.{}.replicated", stage_, name_of(family));
      fresh.plan.as_asked = true;
    } else if (rules_.alone.contains(parameter.name)) {
      fresh.key = std::string(alone_key) + parameter.name;
      fresh.plan.name = family == Family::head ? piece.scope + ".projection" : end_unit_name(piece, family);
    } else if (root || family == Family::root) {
      // The root unit: leftover parameters, and families that are wrapped into it.
      if (merge_key_of(family) != merge_key_of(Family::root)) {
        fail_request(
            "stage {}: {} parameters are wrapped into the root unit, but are sharded otherwise: \"{}\" against \"{}\" "
            "of the root; a unit has one policy",
            stage_, name_of(family), merge_key_of(family), merge_key_of(Family::root));
      }
      fresh.plan.family = Family::root;
      fresh.key = fresh.plan.name = fmt::format("stage.{}.root", stage_);
    } else if (is_replicated(family) || fresh.wrap.kind == WrapKind::root) {
      fresh.key = fresh.plan.name = fmt::format("stage.{}.{}", stage_, name_of(family));
    } else if (fresh.wrap.kind == WrapKind::parameter) {
      if (!parameter.stacked) lead_ = parameter.name;
      fresh.key = fmt::format("parameter {}", lead_);
      fresh.plan.name = lead_;
    } else if (!lies_in_blocks(family)) {
      fresh.key = name_of(family);
      fresh.plan.name = end_unit_name(piece, family);
    } else if (fresh.wrap.kind == WrapKind::half_block) {
      fresh.segment = piece.segment.empty() ? piece.scope : piece.segment;
      fresh.key = fmt::format("half {} {}", name_of(family), fresh.segment);
      fresh.plan.name = half_block_name(piece, fresh.segment, family);
    } else {
      if (fresh.wrap.kind == WrapKind::buckets) fail("buckets have no size: the caller gives minimum_bytes");
      const std::int64_t count = fresh.wrap.kind == WrapKind::blocks ? fresh.wrap.amount : 1;
      if (count < 1) fail("a unit takes at least one block, not {}", count);
      fresh.key = fmt::format("run {} {}", blocks_.at(piece.scope) / count, name_of(family));
    }
    const auto [found, first] = unit_of_key_.try_emplace(fresh.key, units_.size());
    if (first) units_.push_back(std::move(fresh));
    FormingUnit& unit = units_[found->second];
    // A predictor declares the head's projection before the head does.
    if (unit.key == name_of(family) && piece.scope == unit.key) unit.plan.name = unit.key;
    return unit;
  }

  // "embedding", or "head.embedding" in the scope of the head.
  static std::string end_unit_name(const ScopedParameters& piece, Family family) {
    const std::string_view word = name_of(family);
    return piece.scope == word ? piece.scope : fmt::format("{}.{}", piece.scope, word);
  }

  // The segment's name, followed by the family if the segment has units of several families. "blocks.3.experts" is the
  // expert bank itself, "blocks.3.experts.dense" the parameters around it.
  static std::string half_block_name(const ScopedParameters& piece, const std::string& segment, Family family) {
    const bool alone = std::ranges::all_of(piece.parameters, [&](const ParameterSpec& parameter) {
      return parameter.family == family || is_replicated(parameter.family);
    });
    const bool named = segment == fmt::format("{}.{}", piece.scope, name_of(family));
    return alone || named ? segment : fmt::format("{}.{}", segment, name_of(family));
  }

  // Merges neighbours of a family until each unit has the minimum bytes. A small last unit joins the unit before it.
  void merge_small(Family family) {
    const WrapPolicy wrap = wrap_of(family);
    if (wrap.kind != WrapKind::minimum_bytes) return;
    std::vector<FormingUnit> merged;
    const auto is_small = [&](const FormingUnit& unit) { return unit.bytes(rules_.element_bytes) < wrap.amount; };
    std::ptrdiff_t last = -1, before_last = -1;  // of the family, in `merged`
    for (FormingUnit& unit : units_) {
      if (unit.plan.family != family || unit.plan.replicated()) {
        merged.push_back(std::move(unit));
      } else if (last >= 0 && is_small(merged[last])) {
        take_in(merged[last], unit);
      } else {
        before_last = last;
        last = std::ssize(merged);
        merged.push_back(std::move(unit));
      }
    }
    if (before_last >= 0 && is_small(merged[last])) {
      take_in(merged[before_last], merged[last]);
      merged.erase(merged.begin() + last);
    }
    units_ = std::move(merged);
  }

  static void take_in(FormingUnit& unit, const FormingUnit& next) {
    for (const std::string& scope : next.scopes) add_once(unit.scopes, scope);
    unit.plan.parameters.insert(unit.plan.parameters.end(), next.plan.parameters.begin(), next.plan.parameters.end());
  }

  void name(FormingUnit& unit) const {
    UnitPlan& plan = unit.plan;
    const std::string scopes = span_of(unit.scopes.front(), unit.scopes.back());
    if (plan.name.empty()) plan.name = fmt::format("{}.{}", scopes, name_of(plan.family));
    plan.why = reason(unit, scopes);
  }

  std::string reason(const FormingUnit& unit, const std::string& scopes) const {
    const Family family = unit.plan.family;
    if (family == Family::routing) return "in no unit: small, on the routing path, whole and in float32 on every rank";
    if (unit.plan.as_asked) return "in no unit, as asked: whole and in float32 on every rank";
    if (family == Family::helpers) return "in no unit: state of routers without a gradient, whole on every rank";
    if (family == Family::root) return root_reason(unit);
    const std::string what =
        family == Family::experts
            ? fmt::format("routed experts of {}, behind the dispatch and in the expert group", scopes)
            : fmt::format("{} parameters of {}", name_of(family), scopes);
    if (unit.key.starts_with(alone_key)) return fmt::format("{}: a copy, used on other stages too", what);
    if (unit.wrap.kind == WrapKind::parameter) {
      const bool alone = unit.plan.parameters.size() == 1;
      return fmt::format("{}: {}, with own collectives", what,
                         alone ? "one parameter alone, cut along its rows"
                               : "those that one product reads, cut along their rows as one matrix");
    }
    if (!lies_in_blocks(family)) return fmt::format("{}: used at one end of the model, apart from all blocks", what);
    switch (unit.wrap.kind) {
      case WrapKind::parameter:
      case WrapKind::block:
        return fmt::format("{}: used one after the other, so that one gather serves the block", what);
      case WrapKind::half_block:
        return fmt::format("{}: those of segment {} alone, so that less is gathered at once", what, unit.segment);
      case WrapKind::blocks:
        return fmt::format("{}: {} consecutive blocks a unit, for fewer and larger gathers", what, unit.wrap.amount);
      case WrapKind::buckets:
      case WrapKind::minimum_bytes: {
        const std::int64_t bytes = unit.bytes(rules_.element_bytes);
        const std::string size =
            unit.scopes.size() == 1 ? "one block" : fmt::format("{} neighbouring blocks", unit.scopes.size());
        return bytes < unit.wrap.amount
                   ? fmt::format(
                         "{}: all of its family on the stage, {} bytes, fewer than the {} that a unit should have",
                         what, bytes, unit.wrap.amount)
                   : fmt::format("{}: {} with {} bytes, at least the {} that a unit should have", what, size, bytes,
                                 unit.wrap.amount);
      }
      case WrapKind::root:
        return fmt::format("{}: wrapped as one unit of the stage, all gathered at once", what);
    }
    return {};
  }

  std::string root_reason(const FormingUnit& unit) const {
    std::vector<std::string_view> wrapped;
    for (Family family : unit.families) {
      if (family != Family::root) wrapped.push_back(name_of(family));
    }
    const bool leftovers = wrapped.size() < unit.families.size();
    if (wrapped.empty()) return fmt::format("left over on stage {}: of no family that forms units", stage_);
    return fmt::format("{}{} parameters of stage {}: wrapped into its root unit, all gathered at once",
                       leftovers ? "leftovers and all " : "all ", fmt::join(wrapped, ", "), stage_);
  }

  std::span<const ScopedParameters> pieces_;
  int stage_;
  const WrapRules& rules_;
  std::unordered_map<std::string, std::int64_t> blocks_;  // scopes that wrap policies count, numbered as declared
  std::set<std::string> names_;
  std::string lead_;    // the last parameter that is not stacked on another
  bool whole_ = false;  // whether that one is asked to be whole on every rank
  std::vector<FormingUnit> units_;
  std::unordered_map<std::string, std::size_t> unit_of_key_;  // indices into units_, valid until units are merged
};

}  // namespace

std::vector<UnitPlan> form_units(std::span<const ScopedParameters> pieces, int stage, const WrapRules& rules) {
  return UnitFormer(pieces, stage, rules).form();
}

}  // namespace weft
