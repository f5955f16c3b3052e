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

std::vector<std::int32_t> narrowed(const std::vector<std::int64_t>& ids) {
  return {ids.begin(), ids.end()};
}

// Documents of one sequence each, as the writer has them.
std::vector<PlainDocument> random_sequences(std::mt19937& chance, int count, std::int64_t end) {
  std::vector<PlainDocument> documents = random_documents(chance, count, end);
  for (PlainDocument& document : documents) document = {plain_tokens({document})};
  return documents;
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
  for (const PlainDocument& document : golden_documents()) writer.add_document(narrowed(document[0]));
  EXPECT_EQ(names_in(folder_), (std::vector<std::string>{"x.bin.partial", "x.lengths.partial"}));
  writer.finish();
  expect_files("x", golden_megatron());
  EXPECT_EQ(writer.counts().tokens, 13);
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
    const std::vector<PlainDocument> documents = random_sequences(chance, static_cast<int>(chance() % 20), vocab_size);
    const std::string name = fmt::format("x{}", round);
    {
      IndexedWriter writer(path(name), vocab_size);
      for (const PlainDocument& document : documents) writer.add_document(narrowed(document[0]));
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

// What is written behind a flush is lost with its writer; the next one goes on from there, and the whole is that of
// one.
TEST_F(IndexedWriting, GoesOnFromWhereItWasFlushed) {
  std::mt19937 chance(32);
  for (int round = 0; round < 12; ++round) {
    const std::int64_t vocab_size = round % 2 == 0 ? 50000 : 100000;
    const std::vector<PlainDocument> all = random_sequences(chance, 12, vocab_size);
    const std::string name = fmt::format("x{}", round);
    IndexedCounts flushed;
    for (std::size_t done = 0; done < all.size();) {
      IndexedWriter writer(path(name), vocab_size, flushed);
      EXPECT_EQ(writer.counts(), flushed);
      for (std::uint32_t more = chance() % 4; more > 0 && done < all.size(); --more) {
        writer.add_document(narrowed(all[done++][0]));
      }
      flushed = writer.flush();
      writer.add_document(std::vector<std::int32_t>{1, 2, 3});  // never flushed
    }
    IndexedWriter writer(path(name), vocab_size, flushed);
    writer.finish();
    expect_files(name, plain_megatron(all, round % 2 == 0 ? 8 : 4));
  }
  for (const std::string& name : names_in(folder_))
    EXPECT_TRUE(name.ends_with(".bin") || name.ends_with(".idx")) << name;
}

TEST_F(IndexedWriting, RefusesToGoOnBehindLostBytes) {
  IndexedCounts flushed;
  {
    IndexedWriter writer(path("x"), 100);
    writer.add_document(std::vector<std::int32_t>{1, 2, 3});
    flushed = writer.flush();
  }
  std::filesystem::resize_file(path("x.bin.partial"), 4);
  try {
    IndexedWriter(path("x"), 100, flushed);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("x.bin.partial\" has fewer bytes than the 6"), std::string::npos)
        << error.what();
  }
}

TEST_F(IndexedWriting, RefusesAPrefixThatAnotherWrites) {
  IndexedWriter writer(path("x"), 100);
  writer.add_document(std::vector<std::int32_t>{1, 2});
  const std::string why = token_refusal([&] { IndexedWriter(path("x"), 100); });
  EXPECT_NE(why.find("x.bin.partial\" is being written by another process"), std::string::npos) << why;
  writer.finish();
  expect_files("x", plain_megatron({{{1, 2}}}, 8));
}

TEST_F(IndexedWriting, RefusesIdsOutsideTheVocabulary) {
  IndexedWriter writer(path("x"), 100);
  writer.add_document(std::vector<std::int32_t>{1, 2});
  EXPECT_EQ(
      token_refusal([&] {
        writer.add_document(std::vector<std::int32_t>{3, 100});
      }),
      "\"" + path("x") + ".bin\": token 1 of document 1 has the id 100, which is outside the vocabulary of 100 tokens");
  EXPECT_NE(token_refusal([&] { writer.add_document(std::vector<std::int32_t>{-1}); }), "accepted");
  // Nothing of a refused document is written.
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

// A limit on the size of files stands for a full disk. Every size that stops some write gives a failure with a name and
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
