// The places of parameters in a shard unit, against the rules of any layout: every element owned once, whole rows only.
#include "parallel/shard/unit_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"

namespace weft {
namespace {

ParameterSpec parameter(const std::string& name, std::int64_t rows, std::int64_t columns,
                        bool tensor_replicated = false) {
  ParameterSpec spec = whole_parameter(name, Family::dense, rows, columns, Initializer::normal);
  spec.tensor_replicated = tensor_replicated;
  return spec;
}

struct ParameterSet {
  std::string name;
  std::vector<ParameterSpec> parameters;
};

ParameterSet random_set(std::uint64_t seed) {
  const RandomStream random(seed, "parameter sets");
  ParameterSet set{fmt::format("random {}", seed), {}};
  const std::uint64_t count = 1 + random.bits(0) % 30;
  for (std::uint64_t i = 1; i <= count; ++i) {
    const std::uint64_t draw = random.bits(i);
    const std::int64_t columns = draw % 3 == 0 ? 1 : static_cast<std::int64_t>(2 + draw / 3 % 11);
    const auto rows = static_cast<std::int64_t>(draw / 64 % 23);  // sometimes none: a tensor rank without a part
    set.parameters.push_back(parameter(fmt::format("p{}", i), rows, columns, columns == 1 && draw % 2 == 0));
  }
  return set;
}

std::vector<ParameterSet> parameter_sets() {
  std::vector<ParameterSet> sets = {
      {"no parameters", {}},
      {"rows that do not divide", {parameter("a", 7, 5), parameter("b", 11, 5)}},
      {"fewer rows than shards", {parameter("a", 2, 64)}},
      {"one row", {parameter("a", 1, 12)}},
      {"vectors only", {parameter("a", 5, 1), parameter("b", 3, 1, true), parameter("c", 4, 1)}},
      {"columns without a common divisor", {parameter("a", 9, 7), parameter("b", 4, 9), parameter("c", 13, 5)}},
      {"a block",
       {parameter("norm", 8, 1, true), parameter("q", 8, 8), parameter("bias", 6, 1), parameter("up", 22, 8)}},
      {"one huge matrix", {parameter("embedding", 151'936, 8192)}},
  };
  for (std::uint64_t seed = 0; seed < 40; ++seed) sets.push_back(random_set(seed));
  return sets;
}

template <typename Body>
void for_every_layout(const Body& body) {
  for (const ParameterSet& set : parameter_sets()) {
    for (std::int64_t shards = 1; shards <= 9; ++shards) {
      SCOPED_TRACE(fmt::format("{}, {} shards", set.name, shards));
      body(set.parameters, lay_out_unit(set.parameters, shards));
    }
  }
}

TEST(UnitLayout, OwnsEveryRowExactlyOnce) {
  for_every_layout([](const std::vector<ParameterSpec>& parameters, const UnitLayout& layout) {
    ASSERT_EQ(layout.parameters.size(), parameters.size());
    std::vector<std::vector<int>> owners;
    for (const ParameterSpec& spec : layout.parameters) owners.emplace_back(static_cast<std::size_t>(spec.rows), 0);
    for (std::int64_t shard = 0; shard < layout.shards; ++shard) {
      for (const RowBlock& block : layout.rows_of_shard(shard)) {
        const std::int64_t columns = layout.parameters[block.parameter].columns;
        ASSERT_GT(block.rows, 0);
        ASSERT_GE(block.offset, 0);
        ASSERT_LE(block.offset + block.rows * columns, layout.shard_size);
        // The shard's rows are the same elements as the unsharded parameter's.
        ASSERT_EQ(shard * layout.shard_size + block.offset,
                  layout.offsets[block.parameter] + block.row_begin * columns);
        for (std::int64_t row = 0; row < block.rows; ++row) {
          ++owners[block.parameter].at(static_cast<std::size_t>(block.row_begin + row));
        }
      }
    }
    for (const auto& rows : owners) {
      EXPECT_EQ(std::count(rows.begin(), rows.end(), 1), static_cast<std::ptrdiff_t>(rows.size()));
    }
  });
}

TEST(UnitLayout, LaysParametersApartAndInsideTheBuffer) {
  for_every_layout([](const std::vector<ParameterSpec>&, const UnitLayout& layout) {
    std::int64_t end = 0;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      EXPECT_GE(layout.offsets[i], end);
      end = layout.offsets[i] + layout.parameters[i].size();
    }
    EXPECT_LE(end, layout.unsharded_size());
  });
}

// The cut between two shards, looked at without rows_of_shard: it falls on a row boundary of whatever lies there.
TEST(UnitLayout, CutsBetweenRows) {
  for_every_layout([](const std::vector<ParameterSpec>&, const UnitLayout& layout) {
    for (std::int64_t shard = 1; shard < layout.shards; ++shard) {
      const std::int64_t cut = shard * layout.shard_size;
      for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
        const std::int64_t within = cut - layout.offsets[i];
        if (within <= 0 || within >= layout.parameters[i].size()) continue;
        EXPECT_EQ(within % layout.parameters[i].columns, 0) << layout.parameters[i].name;
      }
    }
  });
}

TEST(UnitLayout, ConsecutiveMatricesOfEqualColumnsTouch) {
  for_every_layout([](const std::vector<ParameterSpec>&, const UnitLayout& layout) {
    for (std::size_t i = 1; i < layout.parameters.size(); ++i) {
      if (layout.parameters[i].columns != layout.parameters[i - 1].columns) continue;
      EXPECT_EQ(layout.offsets[i], layout.offsets[i - 1] + layout.parameters[i - 1].size());
    }
  });
}

TEST(UnitLayout, TensorReplicatedParametersAreOneRangeAtTheFront) {
  for_every_layout([](const std::vector<ParameterSpec>& parameters, const UnitLayout& layout) {
    std::int64_t replicated = 0;
    for (const ParameterSpec& spec : parameters) replicated += spec.tensor_replicated ? spec.size() : 0;
    // The sets replicate vectors only, which need no alignment: the range has no gaps.
    EXPECT_EQ(layout.tensor_replicated_size(), replicated);
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      const ParameterSpec& spec = layout.parameters[i];
      if (spec.size() == 0) continue;
      EXPECT_EQ(spec.tensor_replicated, layout.offsets[i] + spec.size() <= replicated) << spec.name;
    }
  });
}

TEST(UnitLayout, KeepsTheDeclaredOrderWithinVectorsAndMatrices) {
  for_every_layout([](const std::vector<ParameterSpec>& parameters, const UnitLayout& layout) {
    std::vector<ParameterSpec> expected;
    for (const auto& belongs : {+[](const ParameterSpec& p) { return p.tensor_replicated; },
                                +[](const ParameterSpec& p) { return !p.tensor_replicated && p.columns == 1; },
                                +[](const ParameterSpec& p) { return !p.tensor_replicated && p.columns > 1; }}) {
      std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(expected), belongs);
    }
    EXPECT_EQ(layout.parameters, expected);
  });
}

// Let P be the elements of all parameters, s the shards and L the least common multiple of all columns.
// A matrix of c columns begins at the next multiple of c. The gap is at most c - 1, and none where the parameter
// before has c columns too. With G the sum of these gaps the last parameter ends at E <= P + G. A shard is
// ceil(E / s) <= (E + s - 1) / s elements, rounded up to a multiple of L by at most L - 1 more. So all shards have at
// most E + s - 1 + s (L - 1) = E + s L - 1 elements, and padding is at most G + s L - 1.
std::int64_t padding_bound(const UnitLayout& layout) {
  std::int64_t gaps = 0, multiple = 1, columns_before = 1;
  for (const ParameterSpec& spec : layout.parameters) {
    if (spec.columns != columns_before) gaps += spec.columns - 1;
    multiple = std::lcm(multiple, spec.columns);
    columns_before = spec.columns;
  }
  return gaps + layout.shards * multiple - 1;
}

TEST(UnitLayout, PaddingStaysWithinItsBound) {
  for_every_layout([](const std::vector<ParameterSpec>& parameters, const UnitLayout& layout) {
    std::int64_t size = 0;
    for (const ParameterSpec& spec : parameters) size += spec.size();
    EXPECT_EQ(layout.parameter_size(), size);
    EXPECT_EQ(layout.padding(), layout.unsharded_size() - size);
    EXPECT_GE(layout.padding(), 0);
    EXPECT_LE(layout.padding(), padding_bound(layout));
  });
}

// Where all matrices have c columns the bound is closer. Vectors end at V and are rounded up to a multiple of c, by at
// most c - 1. With the rows behind them the end is E = k c. So the parameters have at least k c - (c - 1) elements. A
// shard is ceil(k / s) c elements, all of them at most (k + s - 1) c. Padding is thus at most (s - 1) c + c - 1 = s
// c - 1: less than a row a shard. One element before k - 1 rows with k = 1 modulo s has just that much.
TEST(UnitLayout, PadsMatricesOfEqualColumnsByLessThanARowAShard) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const RandomStream random(seed, "equal columns");
    std::uint64_t next = 0;
    const auto draw = [&](std::uint64_t below) { return static_cast<std::int64_t>(random.bits(next++) % below); };
    const std::int64_t columns = 2 + draw(40), shards = 1 + draw(70);
    std::vector<ParameterSpec> parameters = {parameter("norm", draw(90), 1, true), parameter("bias", draw(9), 1)};
    for (std::int64_t i = draw(6); i >= 0; --i) {
      parameters.push_back(parameter(fmt::format("m{}", i), draw(50), columns));
    }
    const UnitLayout layout = lay_out_unit(parameters, shards);
    EXPECT_LT(layout.padding(), shards * columns) << "seed " << seed;

    const UnitLayout worst =
        lay_out_unit(std::vector{parameter("one", 1, 1), parameter("m", shards * 3, columns)}, shards);
    EXPECT_EQ(worst.padding(), shards * columns - 1) << "seed " << seed;
  }
}

// Where all columns divide the largest, that is their least common multiple and no gap is as long. So the bound above
// is below (shards + places where columns change) x largest.
TEST(UnitLayout, PadsMatricesOfOtherWidthsByARowEach) {
  constexpr std::int64_t widths[] = {2, 3, 4, 6, 8, 12, 24}, widest = 24;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const RandomStream random(seed, "widths");
    std::uint64_t next = 0;
    const std::int64_t shards = 1 + static_cast<std::int64_t>(random.bits(next++) % 20);
    std::vector<ParameterSpec> parameters = {parameter("norm", 5, 1, true), parameter("wide", 3, widest)};
    for (std::uint64_t i = random.bits(next++) % 9; i > 0; --i) {
      const std::uint64_t draw = random.bits(next++);
      parameters.push_back(
          parameter(fmt::format("m{}", i), static_cast<std::int64_t>(draw / 7 % 19), widths[draw % 7]));
    }
    const UnitLayout layout = lay_out_unit(parameters, shards);
    std::int64_t changes = 0;
    for (std::size_t i = 1; i < layout.parameters.size(); ++i) {
      changes += layout.parameters[i].columns != layout.parameters[i - 1].columns ? 1 : 0;
    }
    EXPECT_LT(layout.padding(), widest * (shards + changes)) << "seed " << seed;
  }
}

// Rows of each parameter that each shard holds.
std::vector<std::vector<std::int64_t>> rows_by_shard(const std::vector<ParameterSpec>& parameters,
                                                     std::int64_t shards) {
  const UnitLayout layout = lay_out_unit(parameters, shards);
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    rows.emplace_back(parameters.size(), 0);
    for (const RowBlock& block : layout.rows_of_shard(shard)) rows.back()[block.parameter] += block.rows;
  }
  return rows;
}

// A cut of q, k and v into equal runs of rows. The rows that a shard has of each are a matter of where it lies, not of
// proportion. 4096 + 1024 + 1024 rows on eight ranks are 768 a rank.
TEST(UnitLayout, SplitsQueriesKeysAndValuesWhereTheyLie) {
  const std::vector<std::vector<std::int64_t>> expected = {{768, 0, 0}, {768, 0, 0},   {768, 0, 0},   {768, 0, 0},
                                                           {768, 0, 0}, {256, 512, 0}, {0, 512, 256}, {0, 0, 768}};
  EXPECT_EQ(rows_by_shard({parameter("q", 4096, 64), parameter("k", 1024, 64), parameter("v", 1024, 64)}, 8), expected);
  // With a norm before them everything moves on by the rows that it takes the place of: one of 64 columns.
  const auto behind_a_norm = rows_by_shard(
      {parameter("norm", 64, 1), parameter("q", 4096, 64), parameter("k", 1024, 64), parameter("v", 1024, 64)}, 8);
  // 6145 rows in eight shards are 769 a shard, and the last has 762.
  EXPECT_EQ(behind_a_norm[0], (std::vector<std::int64_t>{64, 768, 0, 0}));
  EXPECT_EQ(behind_a_norm[5], (std::vector<std::int64_t>{0, 252, 517, 0}));
  EXPECT_EQ(behind_a_norm[7], (std::vector<std::int64_t>{0, 0, 0, 762}));
}

// Uneven rows: every shard has as many as the first until none are left, and the last ones may be empty.
TEST(UnitLayout, GivesTrailingShardsWhatIsLeft) {
  struct Case {
    std::int64_t rows;
    std::vector<std::int64_t> of_shard;
  };
  const std::vector<Case> cases = {{10, {3, 3, 3, 1}},
                                   {7, {1, 1, 1, 1, 1, 1, 1, 0}},
                                   {9, {2, 2, 2, 2, 1, 0, 0, 0}},
                                   {17, {3, 3, 3, 3, 3, 2, 0, 0}},
                                   {32'000, {5334, 5334, 5334, 5334, 5334, 5330}},
                                   {0, {0, 0}}};
  for (const auto& [rows, of_shard] : cases) {
    const auto found = rows_by_shard({parameter("a", rows, 16)}, std::ssize(of_shard));
    for (std::size_t shard = 0; shard < of_shard.size(); ++shard) {
      EXPECT_EQ(found[shard][0], of_shard[shard]) << rows << " rows, shard " << shard;
    }
  }
}

// Every matrix has hidden_size columns because projections into the hidden width are kept transposed.
std::vector<ParameterSpec> block_of_7b() {
  constexpr std::int64_t hidden = 4096, intermediate = 11'008, heads = 32, head_dim = 128;
  return {parameter("attention.norm", hidden, 1, true),  parameter("q_proj", heads * head_dim, hidden),
          parameter("k_proj", heads * head_dim, hidden), parameter("v_proj", heads * head_dim, hidden),
          parameter("o_proj", heads * head_dim, hidden), parameter("mlp.norm", hidden, 1, true),
          parameter("gate_proj", intermediate, hidden),  parameter("up_proj", intermediate, hidden),
          parameter("down_proj", intermediate, hidden)};
}

TEST(UnitLayout, PadsABlockOf7BBelowOneOrTwoPercent) {
  struct Case {
    std::int64_t shards;
    double percent;
  };
  for (const auto& [shards, percent] : {Case{8, 1.0}, Case{64, 2.0}, Case{512, 2.0}}) {
    const UnitLayout layout = lay_out_unit(block_of_7b(), shards);
    EXPECT_LT(100.0 * static_cast<double>(layout.padding()), percent * static_cast<double>(layout.parameter_size()))
        << shards << " shards";
  }
}

TEST(UnitLayout, LaysOutASmallUnitAsDrawn) {
  //   0..4 norm (tensor-replicated)  4..7 bias  7..9 gap, so that up begins at a multiple of 3  9..24 up, 5 rows of 3
  // Three shards hold ceil(24 / 3) = 8 elements, rounded up to 9 so that cuts fall between rows of 3.
  const UnitLayout layout =
      lay_out_unit(std::vector{parameter("up", 5, 3), parameter("bias", 3, 1), parameter("norm", 4, 1, true)}, 3);
  EXPECT_EQ(layout.shard_size, 9);
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{0, 4, 9}));
  EXPECT_EQ(layout.tensor_replicated_size(), 4);
  EXPECT_EQ(layout.padding(), 27 - 22);
  EXPECT_EQ(layout.rows_of_shard(0), (std::vector<RowBlock>{{0, 0, 4, 0}, {1, 0, 3, 4}}));
  EXPECT_EQ(layout.rows_of_shard(1), (std::vector<RowBlock>{{2, 0, 3, 0}}));
  EXPECT_EQ(layout.rows_of_shard(2), (std::vector<RowBlock>{{2, 3, 2, 0}}));
}

TEST(UnitLayout, TrailingShardsMayHoldPaddingOnly) {
  const UnitLayout layout = lay_out_unit(std::vector{parameter("a", 2, 64)}, 5);
  EXPECT_EQ(layout.shard_size, 64);
  for (std::int64_t shard = 2; shard < 5; ++shard) EXPECT_TRUE(layout.rows_of_shard(shard).empty());
}

std::string layout_error_of(const std::vector<ParameterSpec>& parameters) {
  try {
    lay_out_unit(parameters, 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    return error.what();
  }
  return "";
}

TEST(UnitLayout, RefusesParametersWithoutColumnsOrDeclaredTwice) {
  EXPECT_EQ(layout_error_of({parameter("a", 4, 2), parameter("b", 4, 0)}), "parameter b has no columns");
  EXPECT_EQ(layout_error_of({parameter("a", 4, 2), parameter("b", 4, 2), parameter("a", 4, 1)}),
            "parameter a is declared twice in one shard unit");
}

}  // namespace
}  // namespace weft
