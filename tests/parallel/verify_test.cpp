// Verification of sharding: a sound description of a stage, and each way of spoiling it found by its name.
#include "parallel/shard/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <ostream>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "parallel/shard/unit_plan.h"

namespace weft {
namespace {

ParameterSpec parameter(const std::string& name, Family family, std::int64_t rows, std::int64_t columns,
                        bool everywhere = false) {
  ParameterSpec spec = whole_parameter(name, family, rows, columns, Initializer::normal);
  spec.tensor_replicated = everywhere;
  return spec;
}

std::vector<ParameterSpec> attention(const std::string& scope) {
  return {parameter(scope + ".norm", Family::dense, 8, 1, true), parameter(scope + ".q_proj", Family::dense, 6, 8),
          parameter(scope + ".o_proj", Family::dense, 6, 8)};
}
std::vector<ParameterSpec> moe(const std::string& scope, int experts) {
  std::vector<ParameterSpec> parameters = {parameter(scope + ".norm", Family::dense, 8, 1, true),
                                           parameter(scope + ".router", Family::routing, 4, 8)};
  for (int e = 0; e < experts; ++e) {
    parameters.push_back(parameter(fmt::format("{}.bank.{}", scope, e), Family::experts, 5, 8));
  }
  return parameters;
}

// Sixteen ranks in two stages: rank 10 stands on the second, ranks 8 .. 15, with two tensor ranks (8, 10, 12 and 14
// hold the same dense boxes) and four expert ranks (10 and 14 the same experts). Sharded over 8, 10, 12, 14 and 10, 14.
constexpr int shards = 4, expert_shards = 2, shard_index = 1, expert_index = 0;

// Units of the segments, formed and laid out as a run would.
StageDescription describe(const std::vector<ScopedParameters>& pieces) {
  StageDescription d;
  d.rank = 10;
  d.stage = 1;
  d.dense_holders = {8, 10, 12, 14};
  d.expert_holders = {10, 14};
  d.stage_ranks = {8, 9, 10, 11, 12, 13, 14, 15};
  for (const ScopedParameters& piece : pieces) {
    std::int64_t experts = 0;
    for (const ParameterSpec& spec : piece.parameters) {
      d.formed_from.push_back(spec);
      d.stage_of_parameter[spec.name] = 1;
      d.rule_of_parameter[spec.name] = {"adamw"};
      experts += spec.family == Family::experts ? spec.size() : 0;
    }
    d.segments.push_back({piece.segment, piece.parameters, experts});
  }
  d.stage_of_parameter["blocks.0.attention.q_proj"] = 0;
  d.stepped.emplace();
  for (const UnitPlan& plan : form_units(pieces, 1)) {
    DescribedUnit unit;
    unit.name = plan.name;
    unit.replicated = plan.replicated();
    if (unit.replicated) {
      unit.replicated_parameters = plan.parameters;
      unit.group = "tokens";
      unit.group_ranks = 8;
      unit.reduced_over = d.stage_ranks;
    } else {
      const bool experts = plan.family == Family::experts;
      unit.group = experts ? "edp_shard" : "dp_shard";
      unit.group_ranks = experts ? expert_shards : shards;
      unit.group_index = experts ? expert_index : shard_index;
      unit.layout = lay_out_unit(plan.parameters, unit.group_ranks);
      unit.reduced_over = experts ? d.expert_holders : d.dense_holders;
    }
    const UnitHolder holder{d.rank, unit.group};
    const auto owned = unit.replicated ? owned_ranges(unit.replicated_parameters, holder)
                                       : owned_ranges(unit.layout, unit.group_index, holder);
    d.stepped->insert(d.stepped->end(), owned.begin(), owned.end());
    d.units.push_back(std::move(unit));
  }
  return d;
}

// Units blocks.4.dense, blocks.5.dense, blocks.5.experts, head and the replicated router.
StageDescription sound() {
  return describe({{"blocks.4", attention("blocks.4.attention"), "blocks.4.attention"},
                   {"blocks.5", attention("blocks.5.attention"), "blocks.5.attention"},
                   {"blocks.5", moe("blocks.5.experts", 2), "blocks.5.experts"},
                   {"head", {parameter("head", Family::head, 11, 8)}, "head"}});
}

DescribedUnit& unit_of(StageDescription& d, const std::string& name) {
  return *std::ranges::find(d.units, name, &DescribedUnit::name);
}

void lay_out_again(DescribedUnit& unit, const std::vector<ParameterSpec>& parameters) {
  unit.layout = lay_out_unit(parameters, unit.layout.shards);
}

struct Fault {
  std::string name;
  ShardingSeam seam;
  std::string says;  // part of the message
  std::function<void(StageDescription&)> spoil;
  bool steps = true;  // false where the optimizer's rows would change too: not looked at then
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

std::vector<Fault> faults() {
  return {
      {"in_no_unit", ShardingSeam::unmanaged, "blocks.4.attention.o_proj of segment blocks.4.attention is in no unit",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "blocks.4.dense");
         lay_out_again(unit, {unit.layout.parameters[0], unit.layout.parameters[1]});
       },
       false},
      {"router_dropped", ShardingSeam::unmanaged, "blocks.5.experts.router of segment blocks.5.experts is in no unit",
       [](StageDescription& d) { unit_of(d, "stage.1.routing").replicated_parameters.clear(); }, false},
      {"in_two_units", ShardingSeam::in_two_units, "head is held 2 times, by the units blocks.4.dense, head",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "blocks.4.dense");
         std::vector<ParameterSpec> parameters = unit.layout.parameters;
         parameters.push_back(unit_of(d, "head").layout.parameters[0]);
         lay_out_again(unit, parameters);
       },
       false},
      {"of_no_segment", ShardingSeam::of_no_segment, "old.proj of unit blocks.4.dense is a parameter of no segment",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "blocks.4.dense");
         std::vector<ParameterSpec> parameters = unit.layout.parameters;
         parameters.push_back(parameter("old.proj", Family::dense, 3, 8));
         lay_out_again(unit, parameters);
       },
       false},
      {"added_late", ShardingSeam::late,
       "blocks.4.attention.adapter was added to segment blocks.4.attention after units were formed",
       [](StageDescription& d) {
         d.segments[0].parameters.push_back(parameter("blocks.4.attention.adapter", Family::dense, 2, 8));
       }},
      {"grown_late", ShardingSeam::late, "head of segment head was changed after units were formed: 11 x 8",
       [](StageDescription& d) { d.segments[3].parameters[0] = parameter("head", Family::head, 12, 8); }},
      {"experts_over_dense_group", ShardingSeam::wrong_group,
       "unit blocks.5.experts is summed over ranks 8, 10, 12, 14 (dp_shard), but its blocks.5.experts.bank.0, of "
       "family experts, is held by ranks 10, 14",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "blocks.5.experts");
         unit.group = "dp_shard";
         unit.group_ranks = shards;
         unit.layout = lay_out_unit(std::vector(unit.layout.parameters), shards);
         unit.reduced_over = d.dense_holders;
       },
       false},
      {"dense_over_expert_group", ShardingSeam::wrong_group, "unit blocks.4.dense is summed over ranks 10, 14",
       [](StageDescription& d) { unit_of(d, "blocks.4.dense").reduced_over = d.expert_holders; }},
      {"router_over_dense_group", ShardingSeam::wrong_group, "is held by ranks 8, 9, 10, 11, 12, 13, 14, 15",
       [](StageDescription& d) { unit_of(d, "stage.1.routing").reduced_over = d.dense_holders; }},
      {"replicated_norm_over_dense_group", ShardingSeam::wrong_group, "its blocks.5.attention.norm, of family dense",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "blocks.5.dense");
         DescribedUnit norms;
         norms.name = "helpers";
         norms.replicated = true;
         std::vector<ParameterSpec> rest;
         for (const ParameterSpec& spec : unit.layout.parameters) {
           (spec.columns == 1 ? norms.replicated_parameters : rest).push_back(spec);
         }
         lay_out_again(unit, rest);
         norms.reduced_over = d.dense_holders;  // each tensor rank saw other tokens
         d.units.push_back(norms);
       },
       false},
      {"one_rank_forgotten", ShardingSeam::wrong_group, "unit head is summed over ranks 8, 10, 12 (dp_shard)",
       [](StageDescription& d) { unit_of(d, "head").reduced_over.pop_back(); }},
      {"no_marked_experts", ShardingSeam::unmarked_experts,
       "segment blocks.5.experts has 0 elements of family experts, but its routed experts are 80 elements",
       [](StageDescription& d) {
         std::vector<ScopedParameters> pieces = {{"blocks.5", moe("blocks.5.experts", 2), "blocks.5.experts"}};
         for (ParameterSpec& spec : pieces[0].parameters) {
           if (spec.family == Family::experts) spec.family = Family::dense;
         }
         d = describe(pieces);
         d.segments[0].expert_elements = 80;
       }},
      {"one_unmarked_expert", ShardingSeam::unmarked_experts,
       "segment blocks.5.experts has 40 elements of family experts, but its routed experts are 80 elements",
       [](StageDescription& d) {
         std::vector<ScopedParameters> pieces = {{"blocks.5", moe("blocks.5.experts", 2), "blocks.5.experts"}};
         pieces[0].parameters.back().family = Family::dense;
         d = describe(pieces);
         d.segments[0].expert_elements = 80;
       }},
      {"of_another_stage", ShardingSeam::two_stages,
       "unit blocks.4.dense of stage 1 holds blocks.0.attention.q_proj, which belongs to stage 0",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "blocks.4.dense");
         std::vector<ParameterSpec> parameters = unit.layout.parameters;
         parameters.push_back(parameter("blocks.0.attention.q_proj", Family::dense, 6, 8));
         lay_out_again(unit, parameters);
       },
       false},
      {"across_the_dispatch", ShardingSeam::dispatch,
       "unit blocks.5.dense crosses the dispatch: blocks.5.experts.bank.0 is a routed expert",
       [](StageDescription& d) {
         DescribedUnit& dense = unit_of(d, "blocks.5.dense");
         std::vector<ParameterSpec> parameters = dense.layout.parameters;
         for (const ParameterSpec& spec : unit_of(d, "blocks.5.experts").layout.parameters) parameters.push_back(spec);
         lay_out_again(dense, parameters);
         std::erase_if(d.units, [](const DescribedUnit& unit) { return unit.name == "blocks.5.experts"; });
       },
       false},
      {"matrices_of_two_rules", ShardingSeam::two_optimizers,
       "unit blocks.4.dense is cut in 4 shards, but blocks.4.attention.q_proj is stepped by muon, which needs whole "
       "matrices, and blocks.4.attention.o_proj by adamw",
       [](StageDescription& d) {
         d.rule_of_parameter["blocks.4.attention.q_proj"] = {"muon", true};
       }},
      {"rows_of_another_rank", ShardingSeam::optimizer_rows, "which the rank does not own",
       [](StageDescription& d) { d.stepped->back().row_begin += 1000; }},
      {"rows_missed", ShardingSeam::optimizer_rows, "the optimizer misses rows 0 to 3 of blocks.5.experts.router",
       [](StageDescription& d) { d.stepped->pop_back(); }},
      {"full_tensor_stepped", ShardingSeam::optimizer_rows, "of head, which the rank does not own",
       [](StageDescription& d) {
         for (OwnedRange& range : *d.stepped) {
           if (range.parameter != "head") continue;
           range.row_begin = 0;
           range.rows = 11;
         }
       }},
      {"laid_out_for_other_shards", ShardingSeam::shard_count,
       "unit head is laid out for 3 shards, but its group dp_shard has 4 ranks",
       [](StageDescription& d) {
         DescribedUnit& unit = unit_of(d, "head");
         unit.layout = lay_out_unit(std::vector(unit.layout.parameters), 3);
       },
       false},
      {"whole_and_yet_sharded", ShardingSeam::shard_count, "unit head is laid out for 4 shards, but is kept whole",
       [](StageDescription& d) { unit_of(d, "head").whole = true; }},
  };
}

class SeededSharding : public ::testing::TestWithParam<Fault> {};

TEST_P(SeededSharding, FindsTheSeamAndNoOther) {
  const Fault& fault = GetParam();
  StageDescription d = sound();
  fault.spoil(d);
  if (!fault.steps) d.stepped.reset();
  const auto found = find_sharding_faults(d);
  ASSERT_FALSE(found.empty());
  for (const ShardingFault& each : found) EXPECT_EQ(name_of(each.seam), name_of(fault.seam)) << each.message;
  EXPECT_TRUE(std::ranges::any_of(found, [&](const ShardingFault& each) {
    return each.message.find(fault.says) != std::string::npos;
  })) << found.front().message;
}

INSTANTIATE_TEST_SUITE_P(Faults, SeededSharding, ::testing::ValuesIn(faults()),
                         [](const auto& instance) { return instance.param.name; });

std::string messages(const StageDescription& d) {
  std::string text;
  for (const ShardingFault& fault : find_sharding_faults(d)) text += fault.message + "\n";
  return text;
}

TEST(VerifySharding, FindsNothingWhereAllIsSound) {
  EXPECT_EQ(messages(sound()), "");
  EXPECT_NO_THROW(verify_sharding(sound()));
  EXPECT_EQ(messages({}), "");
}

// What only looks like a fault.
TEST(VerifySharding, AcceptsRulesThatShareALayout) {
  // Two element-wise rules; a vector beside matrices of another rule; two rules in a unit that is kept whole.
  StageDescription d = sound();
  d.rule_of_parameter["blocks.4.attention.q_proj"] = {"lion"};
  EXPECT_EQ(messages(d), "");
  d = sound();
  for (const char* name : {"blocks.4.attention.q_proj", "blocks.4.attention.o_proj"}) {
    d.rule_of_parameter[name] = {"muon", true};
  }
  EXPECT_EQ(messages(d), "");
  d = sound();
  DescribedUnit& unit = unit_of(d, "blocks.4.dense");
  unit.layout = lay_out_unit(std::vector(unit.layout.parameters), 1);
  unit.whole = true;
  d.rule_of_parameter["blocks.4.attention.q_proj"] = {"muon", true};
  d.stepped.reset();
  EXPECT_EQ(messages(d), "");
}

TEST(VerifySharding, TellsEverythingAtOnce) {
  StageDescription d = sound();
  unit_of(d, "head").reduced_over = {8, 10};
  d.rule_of_parameter["blocks.4.attention.q_proj"] = {"muon", true};
  d.stepped->pop_back();
  try {
    verify_sharding(d);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    const std::string text = error.what();
    EXPECT_EQ(text.find("the sharding of stage 1 is not sound on rank 10:\n"), 0u) << text;
    for (const char* seam : {"\n  wrong_group: ", "\n  two_optimizers: ", "\n  optimizer_rows: "}) {
      EXPECT_NE(text.find(seam), std::string::npos) << text;
    }
  }
}

std::vector<ScopedParameters> random_pieces(const RandomStream& random) {
  std::uint64_t draw = 0;
  std::vector<ScopedParameters> pieces;
  if (random.bits(draw++) % 2 == 0) {
    pieces.push_back({"embedding", {parameter("embedding", Family::embedding, 13, 8)}, "embedding"});
  }
  const int blocks = static_cast<int>(random.bits(draw++) % 5);
  for (int block = 2; block < 2 + blocks; ++block) {
    const std::string scope = fmt::format("blocks.{}", block);
    pieces.push_back({scope, attention(scope + ".attention"), scope + ".attention"});
    const auto experts = static_cast<int>(random.bits(draw++) % 4);
    if (experts > 0) pieces.push_back({scope, moe(scope + ".experts", experts), scope + ".experts"});
  }
  pieces.push_back({"extra", {parameter("temperature", Family::root, 1, 1, true)}, "extra"});
  return pieces;
}

// A description is sound as it is formed on any stage. Any parameter that is taken out of its unit, or is put into
// another one besides, is found and named, and it alone.
TEST(VerifySharding, FindsAnyParameterThatIsDroppedOrDoubledOnAnyStage) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const StageDescription d = describe(random_pieces(RandomStream(seed, "random stages")));
    ASSERT_EQ(messages(d), "");
    for (std::size_t u = 0; u < d.units.size(); ++u) {
      for (const ParameterSpec& spec : d.units[u].parameters()) {
        StageDescription dropped = d;
        dropped.stepped.reset();
        DescribedUnit& unit = dropped.units[u];
        std::vector<ParameterSpec> rest = unit.parameters();
        std::erase(rest, spec);
        if (unit.replicated) {
          unit.replicated_parameters = rest;
        } else {
          lay_out_again(unit, rest);
        }
        auto found = find_sharding_faults(dropped);
        ASSERT_EQ(found.size(), 1u) << spec.name;
        EXPECT_EQ(found[0].seam, ShardingSeam::unmanaged);
        EXPECT_EQ(found[0].message.find(spec.name + " of segment"), 0u) << found[0].message;

        // What the optimizer was given of it before is not the rank's any more.
        dropped.stepped = d.stepped;
        for (const OwnedRange& range : *d.stepped) {
          if (range.parameter != spec.name) continue;
          EXPECT_NE(messages(dropped).find(fmt::format("rows {} to {} of {}, which the rank does not own",
                                                       range.row_begin, range.row_begin + range.rows - 1, spec.name)),
                    std::string::npos);
        }

        StageDescription doubled = d;
        doubled.stepped.reset();
        doubled.units.push_back(d.units[u]);
        doubled.units.back().name = "again";
        if (unit.replicated) {
          doubled.units.back().replicated_parameters = {spec};
        } else {
          lay_out_again(doubled.units.back(), {spec});
        }
        found = find_sharding_faults(doubled);
        ASSERT_EQ(found.size(), 1u) << spec.name;
        EXPECT_EQ(found[0].seam, ShardingSeam::in_two_units);
        EXPECT_EQ(found[0].message.find(spec.name + " is held 2 times"), 0u) << found[0].message;
      }
    }
  }
}

}  // namespace
}  // namespace weft
