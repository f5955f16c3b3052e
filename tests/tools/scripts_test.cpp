// What the scripts of tools/ refuse. They run where the commands that would build, install, copy or remove are missing.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "tests/tools/documents.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class Scripts : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    fs::create_directories(folder_ / "bin");
    for (const char* name : {"bash", "dirname", "grep", "realpath", "sed"}) {
      fs::create_symlink(fs::path("/usr/bin") / name, folder_ / "bin" / name);
    }
    fs::copy(documents_root / "tools", folder_ / "tools");
    fs::create_directories(folder_ / "build");
    put("build/test_tools", "#!/bin/bash\necho \"$WEFT_MUTATIONS $WEFT_SEED $WEFT_KILLS\"\n");
    fs::permissions(folder_ / "build/test_tools", fs::perms::owner_all);
  }
  ProgramResult script(const std::string& line) const {
    return run("/usr/bin/env PATH=\"$PWD/bin\" WEFT_CLANG=bash tools/" + line);
  }
};

TEST_F(Scripts, RefuseCountsThatAreNone) {
  EXPECT_EQ(script("attack-configs.sh").output, "10000 7 \n");
  EXPECT_EQ(script("attack-configs.sh 20 3").output, "20 3 \n");
  EXPECT_EQ(script("kill-trial.sh").output, "  200\n");
  EXPECT_EQ(script("kill-trial.sh 2").output, "  2\n");
  for (const char* name : {"attack-configs.sh", "kill-trial.sh"}) {
    for (const char* count : {"10,000", "abc", "-5", "0", "''", "1e3", "99999999999", "--help", "5 x", "5 5 5"}) {
      const auto refused = script(fmt::format("{} {}", name, count));
      EXPECT_EQ(refused.exit_code, 2) << name << " " << count << ": " << refused.output;
      EXPECT_EQ(refused.messages.find(fmt::format("usage: tools/{}", name)), 0u) << refused.messages;
    }
  }
}

TEST_F(Scripts, AnswerAnOptionThatTheyDoNotHave) {
  int scripts = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "tools")) {
    if (entry.path().extension() != ".sh") continue;
    ++scripts;
    for (const char* option : {"--help", "-h"}) {
      const std::string name = entry.path().filename();
      const auto refused = script(name + " " + option);
      EXPECT_EQ(refused.exit_code, 2) << name << " " << option << "\n" << refused.output << refused.messages;
      EXPECT_EQ(refused.output, "") << name;
      EXPECT_NE(refused.messages.find(name), std::string::npos) << refused.messages;
    }
  }
  EXPECT_GE(scripts, 18);
  for (const char* name : {"quickstart.sh", "dictionary.sh", "ready-for-cpu.sh"}) {
    EXPECT_EQ(script(fmt::format("{} help", name)).exit_code, 2) << name;
  }
}

}  // namespace
}  // namespace weft
