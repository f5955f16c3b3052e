#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/trainer/config_sample.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class ConfigInclude : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / fmt::format("weft-{}-{}", test->name(), getpid());
    fs::create_directories(folder_ / "base");
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path put(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  static std::string message(const fs::path& file) {
    try {
      read_config(file);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "accepted";
  }
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

TEST_F(ConfigInclude, MergesDeeplyAndTheIncludingFileWins) {
  put("base/common.toml", config_sample::complete());
  put("base/small.toml", "include = [\"common.toml\"]\n[run]\nsteps = 50\nseed = 1\n");
  const auto file = put("run.toml", "include = [\"base/small.toml\"]\nrun.seed = 2\n[data]\ntrain = [\"mine\"]\n");
  const ResolvedConfig resolved = read_config(file, {"--model.moe.num_experts=4"});
  EXPECT_EQ(resolved.config.run.seed, 2u);
  EXPECT_EQ(resolved.config.run.steps, 50);
  EXPECT_EQ(resolved.config.run.name, "sample");
  EXPECT_EQ(resolved.config.data.train, std::vector<DataSource>{std::string("mine")});
  EXPECT_EQ(resolved.config.model.moe.num_experts, 4);
  for (const char* origin : {"run.toml:2\n", "base/small.toml:3\n", "base/common.toml:10\n"}) {
    EXPECT_NE(resolved.annotated.find("# " + in_folder(origin)), std::string::npos) << resolved.annotated;
  }
}

// Each file includes the next one twice: read each time, the last would be read a million times.
TEST_F(ConfigInclude, AFileIsReadOnce) {
  for (int i = 0; i < 20; ++i) {
    put(fmt::format("{}.toml", i), fmt::format("include = [\"{0}.toml\", \"base/../{0}.toml\"]\n", i + 1));
  }
  put("20.toml", config_sample::complete());
  EXPECT_EQ(read_config(folder_ / "0.toml").config.run.name, "sample");
}

TEST_F(ConfigInclude, AChainHasAnEnd) {
  for (int i = 0; i < 40; ++i) put(fmt::format("{}.toml", i), fmt::format("include = [\"{}.toml\"]\n", i + 1));
  put("40.toml", config_sample::complete());
  const std::string text = message(folder_ / "0.toml");
  EXPECT_NE(text.find("33 files include each other in a row"), std::string::npos) << text;
}

// Whoever walks such a table would recurse sixty thousand times.
TEST_F(ConfigInclude, AKeyHasABoundToItsParts) {
  std::string key = "a", dots = "\"a";
  for (int i = 0; i < 60'000; ++i) {
    key += ".a";
    dots += ".a";
  }
  EXPECT_NE(message(put("key.toml", "x = 1\n" + key + " = 1\n")).find("a key has more than 64 parts"),
            std::string::npos);
  EXPECT_NE(message(put("table.toml", "[" + key + "]\n")).find("a key has more than 64 parts"), std::string::npos);
  // In a text or a remark they are nothing of the kind.
  const std::string text = config_sample::complete();
  EXPECT_EQ(message(put("text.toml", "# " + key + "\n" + text + "# 'x" + key + "\n")), "accepted");
  const std::string name = message(put("name.toml", "run.name = " + dots + "\"\n"));
  EXPECT_EQ(name.find("a key has more than"), std::string::npos);
  // A text that ends within an escape has no symbol to look at behind it.
  EXPECT_NE(message(put("escape.toml", "run.name = \"j\\")).find("escape.toml:1:"), std::string::npos);
}

TEST_F(ConfigInclude, LaterFilesOfAListWin) {
  put("a.toml", config_sample::complete());
  put("b.toml", "[run]\nsteps = 60\n");
  EXPECT_EQ(read_config(put("run.toml", "include = [\"a.toml\", \"b.toml\"]\n")).config.run.steps, 60);
}

// A file is read where it is first asked for: behind another of the list it would win by its place, and does not.
TEST_F(ConfigInclude, AFileOfAListIsNotReadForOneBeforeIt) {
  put("a.toml", config_sample::complete());
  put("steps.toml", "[run]\nsteps = 50\n");
  put("more.toml", "include = [\"steps.toml\"]\n[run]\nsteps = 60\n");
  const std::string text = message(put("run.toml", "include = [\"a.toml\", \"more.toml\", \"steps.toml\"]\n"));
  EXPECT_NE(text.find("run.toml:1:35: error: include: " + in_folder("steps.toml") + " has been read before others"),
            std::string::npos)
      << text;
  put("list.toml", "include = [\"more.toml\", \"steps.toml\"]\n");
  EXPECT_NE(message(put("run.toml", "include = [\"a.toml\", \"steps.toml\", \"list.toml\"]\n"))
                .find("list.toml:1:25: error: include: "),
            std::string::npos);
  const auto steps = [&](const std::string& list) {
    return read_config(put("run.toml", "include = [" + list + "]\n")).config.run.steps;
  };
  EXPECT_EQ(steps(R"("a.toml", "steps.toml", "more.toml")"), 60);
  EXPECT_EQ(steps(R"("a.toml", "steps.toml", "./steps.toml")"), 50);
}

TEST_F(ConfigInclude, FaultsNameTheIncludedFile) {
  put("base.toml", config_sample::with("steps = 200", "steps = 0"));
  const auto file = put("run.toml", "include = [\"base.toml\"]\n[run]\nsead = 1\n");
  const std::string text = message(file);
  EXPECT_TRUE(text.starts_with(file.string() + ":3:1: error: unknown key run.sead: did you mean run.seed?\n")) << text;
  EXPECT_NE(text.find(in_folder("base.toml") + ":5:9: error: run.steps: 0 is out of range: at least 1\n"),
            std::string::npos)
      << text;
}

TEST_F(ConfigInclude, ReportsMissingFilesAndWrongTypesWithoutFollowOns) {
  const auto file = put("run.toml", "include = [\"gone.toml\", 3]\n");
  EXPECT_EQ(message(file), fmt::format("{0}:1:12: error: include: cannot read {1}\n"
                                       "  1 | include = [\"gone.toml\", 3]\n"
                                       "    |            ^~~~~~~~~~~\n"
                                       "{0}:1:25: error: include: expected a string, got the integer 3\n"
                                       "  1 | include = [\"gone.toml\", 3]\n"
                                       "    |                         ^",
                                       file.string(), in_folder("gone.toml")));
}

TEST_F(ConfigInclude, TakesASingleNameAsAListOfOne) {
  EXPECT_NE(
      message(put("run.toml", "include = \"gone.toml\"\n")).find("include: cannot read " + in_folder("gone.toml")),
      std::string::npos);
}

TEST_F(ConfigInclude, ReportsACircle) {
  put("b.toml", "include = [\"./a.toml\"]\n");
  const auto file = put("a.toml", "include = [\"b.toml\"]\n");
  const std::string text = message(file);
  EXPECT_TRUE(text.starts_with(
      in_folder("b.toml") + ":1:12: error: include: the files include each other in a circle: " + in_folder("a.toml") +
      " -> " + in_folder("b.toml")))
      << text;
}

TEST_F(ConfigInclude, ASyntaxErrorInAnIncludedFileIsTheOnlyFault) {
  put("base.toml", "[run]\nsteps = = 3\n");
  const std::string text = message(put("run.toml", "include = [\"base.toml\"]\n"));
  EXPECT_TRUE(text.starts_with(in_folder("base.toml") + ":2:9: error: ")) << text;
  EXPECT_EQ(config_sample::count(text, "error:"), 1) << text;
}

TEST_F(ConfigInclude, AFileThatIsNotThereIsARequestError) {
  EXPECT_EQ(message(folder_ / "no.toml"), in_folder("no.toml") + ": error: there is no such file");
  EXPECT_EQ(message(folder_ / "base"), in_folder("base") + ": error: this is not a regular file");
}

}  // namespace
}  // namespace weft
