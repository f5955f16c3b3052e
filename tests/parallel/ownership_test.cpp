// The owner table against a plain count of elements, and each way in which it can be wrong.
#include "parallel/shard/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ostream>

#include "parallel/runtime/random.h"
#include "parallel/shard/verify.h"

namespace weft {
namespace {

OwnedRange range(int rank, std::int64_t row_begin, std::int64_t rows, std::int64_t column_begin, std::int64_t columns,
                 int replica = 0) {
  return {"p", rank, row_begin, rows, column_begin, columns, "dp_shard", "adamw", replica};
}

struct Seeded {
  OwnershipSeam seam;
  std::string message;
  bool operator==(const Seeded&) const = default;
};
void PrintTo(const Seeded& fault, std::ostream* out) {
  *out << name_of(fault.seam) << ": " << fault.message;
}

std::vector<Seeded> faults_of(const OwnerTable& table, const std::vector<GlobalParameter>& parameters) {
  std::vector<Seeded> faults;
  for (const OwnershipFault& fault : find_ownership_faults(table, parameters)) {
    faults.push_back({fault.seam, fault.message});
  }
  return faults;
}

// Ten rows of four columns on ranks 0 and 1 by rows, twice; the second copy cut by columns as well.
const std::vector<GlobalParameter> one_parameter = {{"p", 10, 4, 2}};
OwnerTable sound_table() {
  return {range(0, 0, 6, 0, 4),    range(1, 6, 4, 0, 4),    range(2, 0, 6, 0, 3, 1),
          range(3, 0, 6, 3, 1, 1), range(2, 6, 4, 0, 1, 1), range(3, 6, 4, 1, 3, 1)};
}

TEST(OwnerTable, HasNoFaultsWhereEveryElementIsOwnedOnce) {
  EXPECT_EQ(faults_of(sound_table(), one_parameter), (std::vector<Seeded>{}));
}

TEST(OwnerTable, ReportsWhatNoRankOwns) {
  OwnerTable table = sound_table();
  table[0].rows = 4;
  table[5].row_begin = 8;
  table[5].rows = 2;
  EXPECT_EQ(faults_of(table, one_parameter),
            (std::vector<Seeded>{
                {OwnershipSeam::unowned, "rows 4 to 5 of 10 of p (replica 0) are owned by no rank"},
                {OwnershipSeam::unowned, "rows 6 to 7 of 10, columns 1 to 3 of p (replica 1) are owned by no rank"}}));
  // A whole copy, and a parameter, that are missing.
  table = sound_table();
  std::erase_if(table, [](const OwnedRange& owned) { return owned.replica == 1; });
  EXPECT_EQ(faults_of(table, one_parameter),
            (std::vector<Seeded>{{OwnershipSeam::unowned, "rows 0 to 9 of 10 of p (replica 1) are owned by no rank"}}));
  EXPECT_EQ(faults_of({}, {{"q", 3, 1, 1}}),
            (std::vector<Seeded>{{OwnershipSeam::unowned, "rows 0 to 2 of 3 of q (replica 0) are owned by no rank"}}));
}

TEST(OwnerTable, ReportsWhatSeveralRanksOwn) {
  OwnerTable table = sound_table();
  table[1].row_begin = 5;
  table[1].rows = 5;
  table.push_back(table[3]);
  table.back().rank = 7;
  EXPECT_EQ(faults_of(table, one_parameter),
            (std::vector<Seeded>{
                {OwnershipSeam::doubled, "rows 5 to 5 of 10 of p (replica 0) are owned 2 times, by ranks 0, 1"},
                {OwnershipSeam::doubled,
                 "rows 0 to 5 of 10, columns 3 to 3 of p (replica 1) are owned 2 times, by ranks 3, 7"}}));
}

TEST(OwnerTable, ReportsWhatLiesOutsideTheModel) {
  OwnerTable table = sound_table();
  table.push_back(range(5, 8, 3, 0, 4));
  table.push_back(range(6, 0, 10, 0, 4, 2));
  table.push_back(range(4, 0, 1, 0, 1));
  table.back().parameter = "stranger";
  EXPECT_EQ(
      faults_of(table, one_parameter),
      (std::vector<Seeded>{{OwnershipSeam::outside, "rank 4 owns rows of stranger, which is no parameter of the model"},
                           {OwnershipSeam::outside,
                            "rank 5 owns rows 8 to 10, columns 0 to 3 of replica 0 of p, which has 10 rows, 4 "
                            "columns and 2 replicas"},
                           {OwnershipSeam::outside,
                            "rank 6 owns rows 0 to 9, columns 0 to 3 of replica 2 of p, which has 10 rows, 4 "
                            "columns and 2 replicas"}}));
}

TEST(OwnerTable, ReportsAParameterOfTwoRules) {
  OwnerTable table = sound_table();
  table[4].optimizer = "muon";
  EXPECT_EQ(faults_of(table, one_parameter),
            (std::vector<Seeded>{{OwnershipSeam::two_optimizers,
                                  "p is stepped by adamw on ranks 0, 1, 2, 3, 3 and by muon on rank 2"}}));
}

// Random boxes, right and wrong, against a count of every element.
TEST(OwnerTable, AgreesWithACountOfElements) {
  int with_faults = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const RandomStream random(seed, "owner tables");
    std::uint64_t next = 0;
    const auto draw = [&](std::int64_t below) {
      return static_cast<std::int64_t>(random.bits(next++) % static_cast<std::uint64_t>(below));
    };
    const std::int64_t rows = 1 + draw(7), columns = 1 + draw(4);
    OwnerTable table;
    // Cuts into row runs and each run into column runs, then spoils some.
    for (std::int64_t row = 0, rank = 0; row < rows;) {
      const std::int64_t height = 1 + draw(rows - row);
      for (std::int64_t column = 0; column < columns; ++rank) {
        const std::int64_t width = 1 + draw(columns - column);
        table.push_back(range(static_cast<int>(rank), row, height, column, width));
        column += width;
      }
      row += height;
    }
    if (seed % 2 == 1) {
      OwnedRange& spoilt = table[static_cast<std::size_t>(draw(std::ssize(table)))];
      spoilt.row_begin = draw(rows);
      spoilt.rows = draw(rows - spoilt.row_begin + 1);
    }
    std::vector<int> owners(static_cast<std::size_t>(rows * columns), 0);
    for (const OwnedRange& owned : table) {
      for (std::int64_t r = owned.row_begin; r < owned.row_begin + owned.rows; ++r) {
        for (std::int64_t c = owned.column_begin; c < owned.column_begin + owned.columns; ++c) {
          ++owners[static_cast<std::size_t>(r * columns + c)];
        }
      }
    }
    bool unowned = false, doubled = false;
    for (const auto& fault : find_ownership_faults(table, std::vector<GlobalParameter>{{"p", rows, columns, 1}})) {
      unowned = unowned || fault.seam == OwnershipSeam::unowned;
      doubled = doubled || fault.seam == OwnershipSeam::doubled;
    }
    EXPECT_EQ(unowned, std::ranges::count(owners, 0) > 0) << "seed " << seed;
    EXPECT_EQ(doubled, std::ranges::any_of(owners, [](int count) { return count > 1; })) << "seed " << seed;
    with_faults += unowned || doubled ? 1 : 0;
  }
  EXPECT_GT(with_faults, 50);  // the spoiling spoils
}

ParameterSpec parameter(const std::string& name, std::int64_t rows, std::int64_t columns, bool everywhere = false) {
  ParameterSpec spec = whole_parameter(name, Family::dense, rows, columns, Initializer::normal);
  spec.tensor_replicated = everywhere;
  return spec;
}

// Two replicas of three shards on each of two tensor ranks: a table from layouts alone is complete.
TEST(OwnerTable, IsCompleteWhenPutTogetherFromLayouts) {
  constexpr int tensor = 2, shards = 3, replicas = 2;
  OwnerTable table;
  for (int rank = 0; rank < tensor * shards * replicas; ++rank) {
    const int tensor_rank = rank % tensor, shard = rank / tensor % shards, replica = rank / tensor / shards;
    // Seven rows split 4 + 3 over the tensor ranks, and a norm that both hold.
    ParameterSpec split = parameter("split", 7, 5);
    split.row_begin = tensor_rank * 4;
    split.rows = tensor_rank == 0 ? 4 : 3;
    const UnitHolder holder{.rank = rank,
                            .group = "dp_shard",
                            .optimizer_of = [](const ParameterSpec&) { return "adamw"; },
                            .replica = replica,
                            .tensor_rank = tensor_rank,
                            .tensor_ranks = tensor};
    const auto sharded =
        owned_ranges(lay_out_unit(std::vector{split, parameter("norm", 4, 1, true)}, shards), shard, holder);
    // A unit kept whole, and parameters in no unit: each rank has a copy of its own.
    UnitHolder everywhere = holder;
    everywhere.replica = rank;
    everywhere.tensor_ranks = 1;
    everywhere.tensor_rank = 0;
    const auto whole = owned_ranges(lay_out_unit(std::vector{parameter("whole", 3, 2)}, 1), 0, everywhere);
    const auto replicated = owned_ranges(std::vector{parameter("router", 4, 5)}, everywhere);
    for (const auto* ranges : {&sharded, &whole, &replicated})
      table.insert(table.end(), ranges->begin(), ranges->end());
  }
  const std::vector<GlobalParameter> parameters = {
      {"split", 7, 5, replicas}, {"norm", 4, 1, replicas * tensor}, {"whole", 3, 2, 12}, {"router", 4, 5, 12}};
  EXPECT_EQ(faults_of(table, parameters), (std::vector<Seeded>{}));
  // Global rows, the group and the rule are those that were given.
  const auto last = std::ranges::find_if(
      table, [](const OwnedRange& owned) { return owned.parameter == "split" && owned.row_begin + owned.rows == 7; });
  ASSERT_NE(last, table.end());
  EXPECT_EQ(last->group, "dp_shard");
  EXPECT_EQ(last->optimizer, "adamw");
  EXPECT_EQ(last->rank % tensor, 1);
  // Each range is needed.
  for (std::size_t i = 0; i < table.size(); ++i) {
    OwnerTable without = table;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    const auto faults = faults_of(without, parameters);
    ASSERT_EQ(faults.size(), 1u) << table[i].parameter;
    EXPECT_EQ(faults[0].seam, OwnershipSeam::unowned);
  }
}

TEST(RowDifferences, NameWhatIsSteppedWronglyAndNothingElse) {
  const std::vector<OwnedRange> owned = {range(0, 0, 4, 0, 8), range(0, 6, 4, 0, 8)};
  EXPECT_TRUE(row_differences(owned, owned).empty());
  // The same rows in other pieces.
  EXPECT_TRUE(
      row_differences(owned, std::vector{range(0, 6, 1, 0, 8), range(0, 7, 3, 0, 8), range(0, 0, 4, 0, 8)}).empty());
  EXPECT_EQ(row_differences(owned, std::vector{range(0, 0, 5, 0, 8), range(0, 7, 3, 0, 8), range(0, 2, 1, 0, 8)}),
            (std::vector<std::string>{"the optimizer steps rows 2 to 2 of p 2 times",
                                      "the optimizer steps rows 4 to 4 of p, which the rank does not own",
                                      "the optimizer misses rows 6 to 6 of p, which the rank owns"}));
  EXPECT_EQ(row_differences(owned, {}),
            (std::vector<std::string>{"the optimizer misses rows 0 to 3 of p, which the rank owns",
                                      "the optimizer misses rows 6 to 9 of p, which the rank owns"}));
  // Pieces that touch and are wrong in the same way are one run.
  EXPECT_EQ(row_differences(std::vector{owned[0]},
                            std::vector{range(0, 0, 4, 0, 8), range(0, 4, 1, 0, 8), range(0, 5, 1, 0, 8)}),
            (std::vector<std::string>{"the optimizer steps rows 4 to 5 of p, which the rank does not own"}));
  // The same rows of other columns are other elements.
  EXPECT_EQ(row_differences(std::vector{range(0, 0, 1, 0, 8)}, std::vector{range(0, 0, 1, 8, 8)}).size(), 2u);
}

}  // namespace
}  // namespace weft
