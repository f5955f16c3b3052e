// Every configuration in configs/ is one a newcomer may start from: it is read without a fault and its step compiles.
#include <gtest/gtest.h>

#include <filesystem>

#include "trainer/config/config_reader.h"
#include "trainer/resolved_run.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

TEST(ShippedConfigs, AreReadAndCompileForEveryStage) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(WEFT_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++found;
    const Config config = read_config(entry.path()).config;
    const Mesh mesh(config.parallelism);
    // step_program checks what it compiled.
    const Program program = step_program(ResolvedRun(config), mesh.coordinates(0));
    ASSERT_EQ(program.ranks.size(), static_cast<std::size_t>(config.parallelism.pipeline)) << entry.path();
    for (const auto& actions : program.ranks) EXPECT_GT(actions.size(), 0u) << entry.path();
  }
  EXPECT_GE(found, 3u);
}

}  // namespace
}  // namespace weft
