// tools/docs-tables.sh on a document of its own. Computed figures are written anew each time, measured ones only when
// asked, and the rest of the document never.
#include "tests/tools/program.h"

namespace weft {
namespace {

class DocsTables : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::filesystem::create_directories(folder_ / "tools");
    std::filesystem::create_directories(folder_ / "docs");
    std::filesystem::copy(WEFT_SOURCE_DIR "/tools/docs-tables.sh", folder_ / "tools");
  }
  std::string document() const {
    std::ifstream file(folder_ / "docs/a.md");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
};

// The command of each marker counts its own runs in a file.
std::string text_with(const std::string& computed, const std::string& measured) {
  return "before\n\n<!-- $ echo >>computed; wc -l <computed -->\n\n```text\n" + computed +
         "```\n\n<!-- end -->\nbetween\n<!-- measured $ echo >>measured; wc -l <measured -->\n\n" + measured +
         "```\n\n<!-- end -->\n\nafter\n";
}

TEST_F(DocsTables, MeasureOnlyWhenAsked) {
  const std::string old = "Measured on 2001-02-03, on 5 cores:\n\n```text\n$ another\n\n17\n";
  put("docs/a.md", text_with("old\n", old));
  for (const char* runs : {"1\n", "2\n"}) {
    const auto result = run("tools/docs-tables.sh");
    ASSERT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(document(), text_with(std::string("$ echo >>computed; wc -l <computed\n") + runs, old));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "measured"));

  const std::string day = run("date +%F").output, cores = run("nproc").output;
  ASSERT_EQ(run("tools/docs-tables.sh --measured docs/a.md").exit_code, 0);
  const std::string heading =
      "Measured on " + day.substr(0, day.size() - 1) + ", on " + cores.substr(0, cores.size() - 1) + " cores:\n\n";
  EXPECT_EQ(document(), text_with("$ echo >>computed; wc -l <computed\n3\n",
                                  heading + "```text\n$ echo >>measured; wc -l <measured\n1\n"));
}

TEST_F(DocsTables, RefuseATableWithoutItsEnd) {
  for (const char* marker : {"<!-- $ true -->", "<!-- measured $ true -->"}) {
    const std::string text = std::string("before\n") + marker + "\n\n```text\n```\n";
    put("docs/a.md", text);
    EXPECT_EQ(run("tools/docs-tables.sh").exit_code, 1);
    EXPECT_EQ(document(), text);
  }
}

}  // namespace
}  // namespace weft
