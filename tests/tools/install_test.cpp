// The results of `cmake --install`: a program that runs where it was put, with configurations and documents.
#include "tests/tools/documents.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

class Install : public ProgramTest {};

TEST_F(Install, LeavesAProgramThatRunsAndWhatItIsRunWith) {
  const std::string build = std::filesystem::path(WEFT_PROGRAM).parent_path().string();
  const auto installed = run("cmake --install '" + build + "' --prefix here");
  ASSERT_EQ(installed.exit_code, 0) << installed.output << installed.messages;
  EXPECT_EQ(run("here/bin/weft --version").output, weft("--version").output);
  const auto planned = run("here/bin/weft plan here/share/weft/configs/plan_llama3_8b.toml");
  EXPECT_EQ(planned.exit_code, 0) << planned.messages;
  for (const char* file :
       {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE", "docs/configuration.md", "docs/step.svg"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / "here/share/doc/weft" / file)) << file;
  }
  // Where the prefix is moved, links of the documents lead there too.
  std::filesystem::rename(folder_ / "here", folder_ / "there");
  const auto links = links_of_documents(folder_ / "there/share/doc/weft");
  EXPECT_GT(links.size(), 40u);
  for (const auto& [document, place] : links) EXPECT_TRUE(std::filesystem::exists(place)) << document << ": " << place;
}

}  // namespace
}  // namespace weft
