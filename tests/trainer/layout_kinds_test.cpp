// Data sharding alone beside hybrids for 70 billion parameters on 64 ranks, against figures worked out by hand. That
// both are the best of their kinds, search_test.cpp shows by planning every choice.
#include "trainer/planning/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "trainer/planning/remedies.h"
#include "trainer/planning/search_space.h"

namespace weft {
namespace {

KindsOfLayout kinds_on(const std::string& memory, const std::string& tensor) {
  const SearchSpace space = search_space(
      WEFT_SOURCE_DIR "/configs/plan_llama3_70b.toml", {"--hardware.name=h100", "--hardware.memory=" + memory},
      {.axes = parse_search_axes({"pipeline=1", tensor, "context=1", "data_replicate=1", "schedule=1f1b", "chunks=1",
                                  "microbatch_size=1", "strategy=full_shard", "residency=reshard_after_use",
                                  "reduction=each_microbatch", "recompute=full"})});
  return compare_kinds(space, search_plans(space, {.top = 1}), {});
}

// 16 bytes a parameter over 64 ranks make 17.6 GB of 70.55e9 parameters. Each of 82 units and their rows' tensors has
// less than a row of 8,192 of padding. On cards of 24 GB the memory decides, and the bucket is named.
TEST(LayoutKinds, SeventyBillionWithDataShardingAlone) {
  const KindsOfLayout large = kinds_on("80GiB", "tensor=1,8");
  ASSERT_TRUE(large.data_sharding.fits());
  ASSERT_TRUE(large.hybrid.fits());
  EXPECT_EQ(large.data_sharding.config->parallelism, (Degrees{.data_shard = 64}));
  const double state = static_cast<double>(bytes_of(Cause::state, large.data_sharding.plan->peak()));
  const double parameters = static_cast<double>(large.data_sharding.plan->parameters.total);
  EXPECT_NEAR(parameters, 70.55e9, 0.01e9);
  EXPECT_GE(state, 16 * parameters / 64);
  EXPECT_LT(state, 16 * parameters / 64 * 1.001);
  EXPECT_NE(large.decision().find("of steps that differ by"), std::string::npos) << large.decision();
  EXPECT_EQ(large.decision().find("memory"), std::string::npos) << large.decision();
  // Tensor ranks divide the activations that data ranks do not.
  const double between = static_cast<double>(large.hybrid.plan->verdict.needed) / Verdict::limit + 0x1p20;
  ASSERT_LT(between * Verdict::limit, static_cast<double>(large.data_sharding.plan->verdict.needed));
  const KindsOfLayout small = kinds_on(fmt::format("{:.0f} B", between), "tensor=1,8");
  EXPECT_FALSE(small.data_sharding.fits());
  EXPECT_TRUE(small.hybrid.fits());
  EXPECT_TRUE(small.decision().starts_with("memory: data sharding alone does not fit")) << small.decision();
  EXPECT_NE(small.decision().find(" decides with "), std::string::npos) << small.decision();
}

TEST(LayoutKinds, SaysWhichTheAxesLack) {
  const KindsOfLayout kinds = kinds_on("80GiB", "tensor=8");
  EXPECT_FALSE(kinds.data_sharding.searched);
  EXPECT_FALSE(kinds.data_sharding.plan);
  EXPECT_TRUE(kinds.hybrid.fits());
  EXPECT_EQ(kinds.decision(), "no mesh of the axes is data sharding alone");
  EXPECT_EQ(kinds_on("80GiB", "tensor=1").decision(), "no mesh of the axes is hybrid");
}

TEST(LayoutKinds, AreToldByTheMeshAlone) {
  EXPECT_EQ(kind_of({.data_shard = 8}), LayoutKind::data_sharding);
  EXPECT_EQ(kind_of({.data_replicate = 2, .data_shard = 4}), LayoutKind::neither);
  for (const Degrees& mesh : {Degrees{.pipeline = 2, .data_shard = 4}, Degrees{.data_shard = 4, .context = 2},
                              Degrees{.data_shard = 4, .tensor = 2}, Degrees{.data_shard = 8, .expert = 4},
                              Degrees{.data_replicate = 2, .data_shard = 2, .tensor = 2}}) {
    EXPECT_EQ(kind_of(mesh), LayoutKind::hybrid);
  }
}

}  // namespace
}  // namespace weft
