// Windows over token files, and the documents inside them, by counting them off.
#include "trainer/data/token_windows.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/sample_order.h"

namespace weft {
namespace {

TEST(WindowPool, PlacesEveryWindowInsideItsFile) {
  std::mt19937 chance(51);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> tokens(chance() % 8);
    for (std::int64_t& count : tokens) count = static_cast<std::int64_t>(chance() % 40);
    const auto length = static_cast<std::int64_t>(1 + chance() % 9);
    std::vector<weft::Range> ranges;
    for (const std::int64_t count : tokens) ranges.push_back({0, count});
    std::vector<TokenPiece> expected;
    for (std::int64_t file = 0; file < std::ssize(tokens); ++file) {
      for (std::int64_t offset = 0; offset + length + 1 <= tokens[static_cast<std::size_t>(file)]; offset += length) {
        expected.push_back({file, offset, length + 1});
      }
    }
    const auto pool = make_window_pool(ranges, 0, length);
    ASSERT_EQ(pool->samples(), std::ssize(expected));
    for (std::int64_t window = 0; window < pool->samples(); ++window) {
      EXPECT_EQ(pool->pieces(window), std::vector{expected[static_cast<std::size_t>(window)]});
    }
    EXPECT_THROW(pool->pieces(pool->samples()), Error);
    EXPECT_THROW(pool->pieces(-1), Error);
  }
}

TEST(DocumentBegins, AreWhereTheDocumentChanges) {
  const TemporaryFolder folder;
  std::mt19937 chance(52);
  for (int round = 0; round < 100; ++round) {
    const std::vector<PlainDocument> documents = random_documents(chance, static_cast<int>(chance() % 12), 100);
    const PlainFiles files = plain_megatron(documents, 8);
    const std::string prefix = folder / fmt::format("x{}", round);
    write_file(prefix + ".idx", files.index);
    write_file(prefix + ".bin", files.data);
    std::vector<std::size_t> owner;  // the document of each token
    for (std::size_t d = 0; d < documents.size(); ++d) {
      for (const auto& sequence : documents[d]) owner.insert(owner.end(), sequence.size(), d);
    }
    const TokenFile file(prefix);
    for (std::int64_t first = 0; first < file.tokens(); ++first) {
      const auto count = 1 + static_cast<std::int64_t>(chance() % static_cast<std::uint64_t>(file.tokens() - first));
      std::vector<std::int32_t> expected = {0};
      for (std::int64_t t = 1; t < count; ++t) {
        const auto at = static_cast<std::size_t>(first + t);
        if (owner[at] != owner[at - 1]) expected.push_back(static_cast<std::int32_t>(t));
      }
      ASSERT_EQ(document_begins(file, first, count), expected) << first << " " << count;
    }
  }
}

TEST(DocumentBegins, IsOneForFilesWithoutDocuments) {
  const TemporaryFolder folder;
  write_file(folder / "text", "a line\nanother\n");
  const TokenFile file((folder / "text").string());
  EXPECT_EQ(document_begins(file, 3, 9), std::vector<std::int32_t>{0});
  EXPECT_THROW(document_begins(file, 10, 6), Error);
}

// An index that was replaced while it is open, so that documents do not ascend.
TEST(DocumentBegins, RefuseDocumentsThatDoNotAscend) {
  const TemporaryFolder folder;
  PlainFiles files = plain_megatron({{{1, 2}}, {{3, 4}}, {{5, 6}}, {{7, 8}}, {{9}}}, 8);
  std::string second;
  put(second, 0, 8);
  files.index.replace(34 + 12 * 5 + 8 * 3, 8, second);  // document 3 begins at sequence 0
  write_file(folder / "x.idx", files.index);
  write_file(folder / "x.bin", files.data);
  const TokenFile file((folder / "x").string());
  const std::string why = token_refusal([&] { document_begins(file, 2, 7); });
  EXPECT_NE(why.find("the index is damaged"), std::string::npos) << why;
}

}  // namespace
}  // namespace weft
