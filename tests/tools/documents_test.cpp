// The promises of the documents: a short README, links that lead somewhere, every command and every key.
#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "tests/tools/documents.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

TEST(Documents, ReadmeIsShort) {
  const std::string readme = text_of_document(documents_root / "README.md");
  EXPECT_LE(std::ranges::count(readme, '\n'), 120);
}

TEST(Documents, LinksLeadToFiles) {
  const auto links = links_of_documents(documents_root);
  EXPECT_GT(links.size(), 40u);
  for (const auto& [document, place] : links) EXPECT_TRUE(std::filesystem::exists(place)) << document << ": " << place;
}

// Sources and scripts, by the end of their path; a star stands for a part of a name.
TEST(Documents, FilesThatTheyNameExist) {
  std::string paths;
  for (const char* folder : {"layers", "parallel", "tests", "tools", "trainer"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(documents_root / folder)) {
      paths += "/" + std::filesystem::relative(entry.path(), documents_root).string() + "\n";
    }
  }
  const std::regex named(R"(`([\w/.*-]+\.(h|cpp|cuh?|sh|py))`)"), dot("\\."), star("\\*");
  std::map<std::string, std::filesystem::path> names;
  for (const auto& path : all_documents(documents_root)) {
    const std::string text = text_of_document(path);
    for (auto found = std::sregex_iterator(text.begin(), text.end(), named); found != std::sregex_iterator(); ++found) {
      names.emplace((*found)[1], path);
    }
  }
  EXPECT_GT(names.size(), 100u);
  for (const auto& [name, path] : names) {
    const std::string pattern = std::regex_replace(std::regex_replace(name, dot, "\\."), star, "[^/\n]*");
    EXPECT_TRUE(std::regex_search(paths, std::regex("/" + pattern + "\n"))) << path << ": " << name;
  }
}

TEST(Documents, EveryPageSaysAtOnceWhatItIsFor) {
  for (const auto& path : all_documents(documents_root)) {
    if (path.parent_path() != documents_root / "docs") continue;
    const std::string text = text_of_document(path);
    EXPECT_TRUE(text.starts_with("# ") && text.substr(text.find('\n')).starts_with("\n\nThis page ")) << path;
  }
}

// Readers find a page by its link alone.
TEST(Documents, EveryPageIsLinkedFromTheReadme) {
  const std::string readme = text_of_document(documents_root / "README.md");
  for (const auto& path : all_documents(documents_root)) {
    if (path.filename() == "README.md") continue;
    const std::string relative = std::filesystem::relative(path, documents_root).string();
    EXPECT_NE(readme.find("(" + relative + ")"), std::string::npos) << relative;
  }
}

class DocumentedCommands : public ProgramTest {
 protected:
  // Of the list at the end of a help text.
  std::vector<std::string> subcommands_of(const std::string& command) const {
    const std::string help = weft(command + " --help").output, heading = "Subcommands:\n";
    std::vector<std::string> names;
    const std::size_t begin = help.find(heading);
    if (begin == std::string::npos) return names;
    std::istringstream lines(help.substr(begin + heading.size()));
    for (std::string line, name; std::getline(lines, line) && std::istringstream(line) >> name;) names.push_back(name);
    return names;
  }
};

TEST_F(DocumentedCommands, AreAllInTheList) {
  const std::string list = text_of_document(documents_root / "docs/cli.md");
  const auto expect_listed = [&](const std::string& command) {
    EXPECT_TRUE(std::regex_search(list, std::regex("weft " + command + "\\b"))) << command;
  };
  const auto commands = subcommands_of("");
  EXPECT_GE(commands.size(), 18u);
  for (const std::string& command : commands) {
    const auto parts = subcommands_of(command);
    if (parts.empty()) expect_listed(command);
    for (const std::string& part : parts) expect_listed(command + " " + part);
  }
}

// In running text; what stands in blocks is run by tests of its own.
TEST_F(DocumentedCommands, ThatAreNamedExist) {
  const std::regex named("`weft ([a-z-]+)(?: ([a-z][a-z-]*)(?=[ `]))?");
  std::map<std::string, std::vector<std::string>> parts;
  for (const std::string& command : subcommands_of("")) parts[command] = subcommands_of(command);
  std::size_t found = 0;
  for (const auto& path : all_documents(documents_root)) {
    const std::string text = text_of_document(path);
    for (auto name = std::sregex_iterator(text.begin(), text.end(), named); name != std::sregex_iterator(); ++name) {
      const std::string command = (*name)[1], part = (*name)[2];
      ++found;
      ASSERT_TRUE(parts.contains(command)) << path << ": " << name->str();
      const auto& known = parts[command];
      EXPECT_TRUE(part.empty() || std::ranges::count(known, part) > 0) << path << ": " << name->str();
    }
  }
  EXPECT_GT(found, 50u);
}

// The reader's first file of his own.
TEST_F(DocumentedCommands, TheReadmesConfigurationTrains) {
  std::istringstream lines(text_of_document(documents_root / "README.md"));
  std::string line, config;
  while (std::getline(lines, line) && line != "    # mine.toml") continue;
  while (std::getline(lines, line) && line.starts_with("    ")) config += line.substr(4) + "\n";
  put("mine.toml", config);
  put("mine.txt", std::string(100'000, 'w'));
  EXPECT_EQ(weft("check mine.toml").exit_code, 0);
  const auto trained = weft(
      "train mine.toml --parallelism.pipeline=2 --shard.experts.residency=reshard_after_use --run.steps=2 "
      "--lr_scheduler.warmup_steps=1");
  EXPECT_EQ(trained.exit_code, 0) << trained.messages;
  EXPECT_EQ(trained.messages.find("router_aux_loss_coef"), std::string::npos) << trained.messages;
  EXPECT_EQ(weft("generate runs/mine --prompt T --max-tokens 2").exit_code, 0);
  // As they stand, behind that run.
  while (std::getline(lines, line) && line != "## Where the time goes") continue;
  int commands = 0;
  for (std::getline(lines, line); std::getline(lines, line) && line.starts_with("    build/weft "); ++commands) {
    const auto result = weft(line.substr(std::string("    build/weft ").size()));
    EXPECT_EQ(result.exit_code, 0) << line << "\n" << result.messages;
  }
  EXPECT_EQ(commands, 3);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/traced/trace_rank1.json"));
}

// The words in the first column of the page's table, and those beside it, are all keys of the mesh. Sequence
// parallelism, sharding and recompute are none.
TEST_F(DocumentedCommands, AxesAreTheKeysOfTheMesh) {
  std::istringstream keys(weft("keys").output);
  std::set<std::string> of_mesh, of_page = {"expert_dispatch", "expert_nodes"};
  std::string line;
  while (std::getline(keys, line) && line != "[parallelism]") continue;
  while (std::getline(keys, line) && !line.empty()) of_mesh.insert(line.substr(0, line.find(' ')));
  const std::string page = text_of_document(documents_root / "docs/parallelism.md");
  const std::regex row(R"(\n\| `(\w+)` \|)");
  for (auto found = std::sregex_iterator(page.begin(), page.end(), row); found != std::sregex_iterator(); ++found) {
    of_page.insert((*found)[1]);
  }
  EXPECT_EQ(of_page, of_mesh);
  EXPECT_NE(page.find("`expert_dispatch` and `expert_nodes` choose"), std::string::npos);
}

TEST_F(DocumentedCommands, KeysAreThoseOfTheProgram) {
  const auto keys = weft("keys");
  ASSERT_EQ(keys.exit_code, 0);
  EXPECT_NE(
      text_of_document(documents_root / "docs/configuration.md").find("$ build/weft keys\n" + keys.output + "```"),
      std::string::npos)
      << "tools/docs-tables.sh docs/configuration.md writes them anew";
}

}  // namespace
}  // namespace weft
