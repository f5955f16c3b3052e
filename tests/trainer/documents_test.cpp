// Lines of JSON that are unusual, and the documents or refusals that they give.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/runtime/refusal.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/data/documents.h"

namespace weft {
namespace {

class Documents : public testing::Test {
 protected:
  std::vector<std::string> read(const std::string& lines, BadLines bad_lines = BadLines::refuse) {
    write_file(folder_ / "a.jsonl", lines);
    DocumentReader reader({(folder_ / "a.jsonl").string()}, {"text", bad_lines, TextDocuments::file});
    std::vector<std::string> documents;
    while (auto document = reader.next()) documents.push_back(*document);
    skipped_ = reader.skipped();
    return documents;
  }

  TemporaryFolder folder_;
  std::int64_t skipped_ = 0;
};

TEST_F(Documents, ANumberThatIsTooLargeIsABadLine) {
  const std::string lines = "{\"text\":\"a\",\"n\":1e999}\n{\"text\":\"b\"}\n";
  const auto message = refusal_of([&] { read(lines); });
  EXPECT_TRUE(message && message->find("a.jsonl\":1:1: a number is too large") != std::string::npos)
      << message.value_or("none");
  EXPECT_EQ(read(lines, BadLines::skip), std::vector<std::string>{"b"});
  EXPECT_EQ(skipped_, 1);
}

TEST_F(Documents, BracketsInTextsAreNoLevels) {
  const std::string brackets(1000, '[');
  EXPECT_EQ(read("{\"text\":\"\\\"" + brackets + "\\\\\"}\n"), std::vector<std::string>{"\"" + brackets + "\\"});
  const auto message = refusal_of([&] { read("{\"a\":\"\\\\\",\"text\":" + brackets); });
  EXPECT_TRUE(message && message->find("nested deeper than 256 levels") != std::string::npos);
}

}  // namespace
}  // namespace weft
