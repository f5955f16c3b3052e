// Datasets that are written against the bytes of Megatron's own builder and of a plain writer, whole, in parts, and
// when the disk refuses.
#include "trainer/data/indexed_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/token_file.h"

namespace weft {
namespace {

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& ids) {
  return {ids.begin(), ids.end()};
}

void add(IndexedWriter& writer, const PlainDocument& document) {
  for (const auto& sequence : document) {
    // In two pieces, as they come from a tokenizer.
    const std::vector<std::int32_t> ids = narrow(sequence);
    const std::span<const std::int32_t> all = ids;
    writer.add_tokens(all.first(all.size() / 2));
    writer.add_tokens(all.subspan(all.size() / 2));
    writer.end_sequence();
  }
  writer.end_document();
}

std::vector<std::string> names_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

class IndexedWriting : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  PlainFiles read(const std::string& prefix) const {
    return {read_file(folder_ / (prefix + ".idx")), read_file(folder_ / (prefix + ".bin"))};
  }
  void expect_files(const std::string& prefix, const PlainFiles& files) const {
    EXPECT_EQ(read(prefix).index, files.index);
    EXPECT_EQ(read(prefix).data, files.data);
  }

  TemporaryFolder folder_;
};

TEST_F(IndexedWriting, WritesWhatMegatronsBuilderWrites) {
  IndexedWriter writer(path("x"), 11);
  for (const PlainDocument& document : golden_documents()) writer.add_document(narrow(document[0]));
  EXPECT_EQ(names_in(folder_), (std::vector<std::string>{"x.bin.partial", "x.documents.partial", "x.lengths.partial"}));
  writer.finish();
  expect_files("x", golden_megatron());
  EXPECT_EQ(writer.tokens(), 13);
}

TEST_F(IndexedWriting, ChoosesTheTypeAsMegatronDoes) {
  EXPECT_EQ(indexed_type(1), TokenType::uint16);
  EXPECT_EQ(indexed_type(65499), TokenType::uint16);
  EXPECT_EQ(indexed_type(65500), TokenType::int32);
  EXPECT_EQ(indexed_type(std::int64_t{1} << 31), TokenType::int32);
}

TEST_F(IndexedWriting, WritesRandomDatasetsAndReadsThemBack) {
  std::mt19937 chance(31);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t vocab_size = round % 2 == 0 ? 65499 : std::int64_t{1} << 31;
    const std::vector<PlainDocument> documents = random_documents(chance, static_cast<int>(chance() % 20), vocab_size);
    const std::string name = fmt::format("x{}", round);
    {
      IndexedWriter writer(path(name), vocab_size);
      for (const PlainDocument& document : documents) add(writer, document);
      writer.finish();
    }
    expect_files(name, plain_megatron(documents, round % 2 == 0 ? 8 : 4));
    const TokenFile file(path(name), vocab_size);
    file.check();
    EXPECT_EQ(file.documents(), std::ssize(documents));
  }
  for (const std::string& name : names_in(folder_))
    EXPECT_TRUE(name.ends_with(".bin") || name.ends_with(".idx")) << name;
}

TEST_F(IndexedWriting, PartsInOrderAreTheWhole) {
  std::mt19937 chance(32);
  for (int round = 0; round < 8; ++round) {
    std::vector<PlainDocument> all;
    std::vector<std::string> parts;
    for (std::uint32_t part = 0, count = 1 + chance() % 5; part < count; ++part) {
      std::vector<PlainDocument> documents = random_documents(chance, static_cast<int>(chance() % 8), 50000);
      if (chance() % 3 == 0) documents.clear();  // a worker without documents
      IndexedWriter writer(path(parts.emplace_back(fmt::format("{}.part{}", round, part))), 50000);
      for (const PlainDocument& document : documents) add(writer, document);
      writer.finish();
      all.insert(all.end(), documents.begin(), documents.end());
    }
    IndexedWriter writer(path(fmt::format("{}", round)), 50000);
    // Documents of its own may come between parts.
    const PlainDocument own = {{1, 2}, {3}};
    add(writer, own);
    all.insert(all.begin(), own);
    for (const std::string& part : parts) writer.append(path(part));
    add(writer, own);
    all.push_back(own);
    writer.finish();
    expect_files(fmt::format("{}", round), plain_megatron(all, 8));
    EXPECT_EQ(writer.documents(), std::ssize(all));
    EXPECT_EQ(writer.tokens(), std::ssize(plain_tokens(all)));
  }
}

TEST_F(IndexedWriting, RefusesPartsThatDoNotFit) {
  for (const auto& [name, vocab_size] : {std::pair{"small", 100}, std::pair{"large", 100000}}) {
    IndexedWriter writer(path(name), vocab_size);
    writer.add_document(std::vector<std::int32_t>{1, 2, 3});
    writer.finish();
  }
  IndexedWriter writer(path("x"), 100);
  const std::string other = token_refusal([&] { writer.append(path("large")); });
  EXPECT_NE(other.find("large.idx\": its tokens are int32"), std::string::npos) << other;
  EXPECT_NE(token_refusal([&] { writer.append(path("none")); }), "accepted");
  // A part whose index is damaged in the middle is found before a byte of it is taken.
  PlainFiles damaged = plain_megatron({{{1}}, {{2, 3}}, {{4}}}, 8);
  damaged.index[34] = 2;
  write_file(folder_ / "damaged.idx", damaged.index);
  write_file(folder_ / "damaged.bin", damaged.data);
  EXPECT_NE(token_refusal([&] { writer.append(path("damaged")); }), "accepted");
  writer.append(path("small"));
  writer.finish();
  expect_files("x", read("small"));
}

TEST_F(IndexedWriting, RefusesIdsOutsideTheVocabulary) {
  IndexedWriter writer(path("x"), 100);
  writer.add_tokens(std::vector<std::int32_t>{1, 2});
  EXPECT_EQ(
      token_refusal([&] {
        writer.add_tokens(std::vector<std::int32_t>{3, 100});
      }),
      "\"" + path("x") + ".bin\": token 3 of document 0 has the id 100, which is outside the vocabulary of 100 tokens");
  EXPECT_NE(token_refusal([&] { writer.add_tokens(std::vector<std::int32_t>{-1}); }), "accepted");
  // Nothing of a refused piece is written.
  writer.end_sequence();
  writer.end_document();
  writer.finish();
  expect_files("x", plain_megatron({{{1, 2}}}, 8));
}

TEST_F(IndexedWriting, ReplacesNoDatasetAndLeavesNothingBehind) {
  write_file(folder_ / "x.bin", "precious");
  const std::string why = token_refusal([&] { IndexedWriter(path("x"), 10); });
  EXPECT_NE(why.find("x.bin\" exists, and a dataset is not overwritten"), std::string::npos) << why;
  EXPECT_EQ(read_file(folder_ / "x.bin"), "precious");
  write_file(folder_ / "y.bin.partial", "of a killed process");
  { IndexedWriter(path("y"), 10).add_document(std::vector<std::int32_t>{1}); }
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{"x.bin"});
  // Another process finishes the same name first.
  {
    IndexedWriter writer(path("z"), 10);
    writer.add_document(std::vector<std::int32_t>{1});
    write_file(folder_ / "z.idx", "precious");
    EXPECT_NE(token_refusal([&] { writer.finish(); }), "accepted");
  }
  EXPECT_EQ(read_file(folder_ / "z.idx"), "precious");
  EXPECT_EQ(names_in(folder_), (std::vector<std::string>{"x.bin", "z.idx"}));
}

TEST_F(IndexedWriting, EndsWhereMegatronsReaderWouldStop) {
  IndexedWriter writer(path("x"), 10);
  writer.add_tokens(std::vector<std::int32_t>{1});
  EXPECT_THROW(writer.end_document(), Error);
  EXPECT_THROW(writer.finish(), Error);
  writer.end_sequence();
  EXPECT_THROW(writer.finish(), Error);
  EXPECT_THROW(writer.append(path("x")), Error);
  writer.end_document();
  writer.finish();
}

// A limit on the size of files stands for a full disk: at every size that stops some write, a failure with a name and
// nothing under the final names.
TEST_F(IndexedWriting, AFullDiskLeavesNoDataset) {
  struct Limit {
    rlimit before{};
    Limit() { getrlimit(RLIMIT_FSIZE, &before); }
    void set(rlim_t bytes) const {
      const rlimit limit{bytes, before.rlim_max};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~Limit() { setrlimit(RLIMIT_FSIZE, &before); }
  } limit;
  // Beyond the limit a write is answered by a signal unless that is ignored.
  const auto old = signal(SIGXFSZ, SIG_IGN);
  int failed = 0;
  const std::vector<std::int32_t> ids(10, 7);
  for (const rlim_t bytes : {0, 1, 100, 5000, 20000, 34033, 34042, 1 << 20}) {
    limit.set(bytes);
    std::string why = "finished";
    try {
      IndexedWriter writer(path("x"), 100);
      for (int document = 0; document < 1700; ++document) writer.add_document(ids);
      writer.finish();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failure);
      why = error.what();
    }
    limit.set(limit.before.rlim_cur);
    // The index has 34 + 20 * 1700 + 8 bytes, the tokens 34000.
    EXPECT_EQ(why == "finished", bytes >= 34042) << bytes << ": " << why;
    if (why == "finished") {
      EXPECT_EQ(TokenFile(path("x"), 100).check(), 7);
      std::filesystem::remove(path("x.bin"));
      std::filesystem::remove(path("x.idx"));
      continue;
    }
    ++failed;
    EXPECT_NE(why.find("cannot be written"), std::string::npos) << why;
    EXPECT_EQ(names_in(folder_), std::vector<std::string>{}) << bytes;
  }
  signal(SIGXFSZ, old);
  EXPECT_EQ(failed, 6);
}

}  // namespace
}  // namespace weft
