// `weft bench checkpoint`: what it measures, beside files of dd in a folder of any name.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using BenchCheckpoint = TinyTraining;

constexpr const char* checkpoint_bench = "bench checkpoint run.toml --rounds 1 --json ";

TEST_F(BenchCheckpoint, WorksInAFolderOfAnyName) {
  const auto result = weft(std::string(checkpoint_bench) + "--directory \"it's {0} {}\"");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const auto document = nlohmann::json::parse(result.output);
  EXPECT_EQ(document["ranks"], 8);
  for (const auto& [name, seconds] : document["seconds"].items()) EXPECT_GT(seconds.get<double>(), 0.0) << name;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "it's {0} {}"));
}

// The dd of one rank alone fails.
TEST_F(BenchCheckpoint, NoticesADdThatFailsAndLeavesNothing) {
  std::filesystem::create_directory(folder_ / "bin");
  put("bin/dd", "#!/bin/sh\ncase \"$*\" in *of=dd-3*) exit 1;; esac\nexec /bin/dd \"$@\"\n");
  std::filesystem::permissions(folder_ / "bin/dd", std::filesystem::perms::owner_all);
  const auto result = run("PATH=\"$PWD/bin:$PATH\" '" + weft_program() + "' " + checkpoint_bench + "--directory there");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.messages.find("it did not work: cd"), std::string::npos) << result.messages;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "there"));
}

}  // namespace
}  // namespace weft
