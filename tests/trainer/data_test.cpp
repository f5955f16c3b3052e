#include "trainer/data/data.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>

#include "parallel/runtime/error.h"
#include "tests/trainer/byte_vocabulary.h"
#include "trainer/data/indexed_writer.h"
#include "trainer/data/token_facts.h"

namespace weft {
namespace {

constexpr std::uint64_t seed = 1234;

// A folder of its own for each test, gone with it.
class Data : public testing::Test {
 protected:
  Data()
      : folder_(
            std::filesystem::temp_directory_path() /
            fmt::format("weft_data_{}_{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Data() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

// Bytes begin, begin + 1, ...: a window tells by its first byte where it was cut.
std::string ascending(int begin, int count) {
  std::string text(count, '\0');
  std::iota(text.begin(), text.end(), static_cast<char>(begin));
  return text;
}

struct Sequence {
  std::vector<std::int32_t> tokens, targets;
};

Sequence read(const TokenDataset& dataset, std::int64_t sample, std::int64_t length) {
  Sequence sequence{std::vector<std::int32_t>(length, -1), std::vector<std::int32_t>(length, -1)};
  dataset.read(sample, {sequence.tokens, sequence.targets, {}});
  return sequence;
}

// Windows of an epoch.
std::int64_t windows_of(const TokenDataset& dataset) {
  return std::llround(1.0 / dataset.order().passes(1).front());
}

std::int64_t position_in(std::uint64_t of_seed, std::int64_t epoch, std::int64_t index, std::int64_t count) {
  return shuffled_position(of_seed, fmt::format("data.order.{}", epoch), index, count);
}

// What the call throws, or "accepted".
std::string message(ErrorKind kind, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "accepted";
}

TEST(Shuffle, VisitsEveryPositionOnceInEachEpoch) {
  for (std::int64_t count = 1; count <= 50; ++count) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::int64_t> seen;
      for (std::int64_t index = 0; index < count; ++index) {
        const std::int64_t position = position_in(seed, epoch, index, count);
        EXPECT_TRUE(position >= 0 && position < count) << position << " of " << count;
        EXPECT_TRUE(seen.insert(position).second) << position << " twice among " << count;
      }
    }
  }
}

TEST(Shuffle, DependsOnSeedAndEpoch) {
  const auto order = [](std::uint64_t order_seed, std::int64_t epoch) {
    std::vector<std::int64_t> positions(50);
    for (std::int64_t i = 0; i < 50; ++i) positions[i] = position_in(order_seed, epoch, i, 50);
    return positions;
  };
  std::vector<std::int64_t> unshuffled(50);
  std::iota(unshuffled.begin(), unshuffled.end(), 0);
  // Two independent orders of 50 agree with a chance of 1 in 50!, and the seeds are fixed.
  EXPECT_EQ(order(seed, 0), order(seed, 0));
  EXPECT_NE(order(seed, 0), unshuffled);
  EXPECT_NE(order(seed, 0), order(seed, 1));
  EXPECT_NE(order(seed, 0), order(seed + 1, 0));
}

TEST(Shuffle, SpreadsNeighbours) {
  // In a uniform order of n the distance of neighbours is n/3 on average, with a standard deviation below n/4 each. The
  // mean over n - 1 = 999 of them (correlated only with the next) stays within 10 % of n unless the order is
  // structured.
  constexpr std::int64_t count = 1000;
  double sum = 0;
  for (std::int64_t i = 1; i < count; ++i) {
    sum += static_cast<double>(std::abs(position_in(seed, 0, i, count) - position_in(seed, 0, i - 1, count)));
  }
  EXPECT_NEAR(sum / (count - 1), count / 3.0, count / 10.0);
}

TEST(Shuffle, RefusesAnIndexOutsideItsEpoch) {
  EXPECT_THROW(position_in(seed, 0, 5, 5), Error);
  EXPECT_THROW(position_in(seed, 0, -1, 5), Error);
}

TEST_F(Data, ReadsEveryWindowOncePerEpoch) {
  constexpr std::int64_t length = 4;
  for (int windows = 1; windows <= 50; ++windows) {
    // Three bytes more than the windows need, which is one too few for another.
    const std::string text = ascending(length, static_cast<int>(windows * length + 1 + 3));
    const TokenDataset dataset(files_of({file("text", text)}, length, seed), byte_vocabulary(256));
    ASSERT_EQ(windows_of(dataset), windows);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::set<std::int32_t> begins;
      for (std::int64_t i = 0; i < windows; ++i) {
        const Sequence sequence = read(dataset, epoch * windows + i, length);
        begins.insert(sequence.tokens[0]);
        EXPECT_EQ(sequence.tokens[0] % length, 0);
        for (std::int64_t t = 0; t < length; ++t) {
          EXPECT_EQ(sequence.tokens[t], sequence.tokens[0] + t);
          EXPECT_EQ(sequence.targets[t], sequence.tokens[0] + t + 1);
        }
      }
      EXPECT_EQ(begins.size(), static_cast<std::size_t>(windows));
    }
  }
}

TEST_F(Data, ReadsTheEpochsInDifferentOrders) {
  constexpr std::int64_t length = 4, windows = 50;
  const TokenDataset dataset(files_of({file("text", ascending(1, windows * length + 1))}, length, seed),
                             byte_vocabulary(256));
  std::vector<std::int32_t> first, second;
  for (std::int64_t i = 0; i < windows; ++i) {
    first.push_back(read(dataset, i, length).tokens[0]);
    second.push_back(read(dataset, windows + i, length).tokens[0]);
  }
  EXPECT_NE(first, second);
}

TEST_F(Data, NeverCrossesFromOneFileIntoTheNext) {
  // Of lengths that leave 0, 1 and 3 bytes behind the last window; values tell the files apart.
  constexpr std::int64_t length = 4;
  const TokenDataset dataset(
      files_of({file("a", ascending(4, 9)), file("b", ascending(100, 6)), file("c", ascending(200, 16))}, length, seed),
      byte_vocabulary(256));
  ASSERT_EQ(windows_of(dataset), 2 + 1 + 3);
  std::set<std::int32_t> begins;
  for (std::int64_t i = 0; i < windows_of(dataset); ++i) {
    const Sequence sequence = read(dataset, i, length);
    begins.insert(sequence.tokens[0]);
    EXPECT_EQ(sequence.targets[length - 1], sequence.tokens[0] + length);
  }
  EXPECT_EQ(begins, (std::set<std::int32_t>{4, 8, 100, 200, 204, 208}));
}

TEST_F(Data, NamesEveryFileThatCannotBeUsed) {
  const std::string good = file("good", ascending(1, 100));
  const std::string empty = file("empty", "");
  const std::string brief = file("brief", ascending(1, 8));
  const std::string missing = folder() / "missing";
  const std::string text = message(ErrorKind::request, [&] {
    TokenDataset(files_of({missing, good, empty, brief, folder().string()}, 8, seed), byte_vocabulary(256));
  });
  EXPECT_NE(text.find("\"" + missing + "\": No such file"), std::string::npos) << text;
  EXPECT_NE(text.find("\"" + empty + "\": the file is empty"), std::string::npos) << text;
  EXPECT_NE(text.find("\"" + brief + "\": 8 bytes are fewer than one window of sequence_length + 1 = 9"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\"" + folder().string() + "\": it is not a regular file"), std::string::npos) << text;
  EXPECT_EQ(text.find(good), std::string::npos) << text;
  // One byte more is enough.
  EXPECT_EQ(windows_of(TokenDataset(files_of({file("enough", ascending(1, 9))}, 8, seed), byte_vocabulary(256))), 1);
  EXPECT_NE(message(ErrorKind::request, [] { TokenDataset(files_of({}, 8, seed), byte_vocabulary(256)); })
                .find("names no file"),
            std::string::npos);
}

TEST_F(Data, NamesTheOffsetOfATokenOutsideTheVocabulary) {
  constexpr std::int64_t length = 4;
  const std::string name = file("text", std::string(13, 'a'));
  const TokenDataset dataset(files_of({name}, length, seed), byte_vocabulary(128));
  std::string text(13, 'a');
  text[12] = static_cast<char>(200);  // the last target of the last window
  file("text", text);
  std::string faults;
  for (std::int64_t i = 0; i < windows_of(dataset); ++i) {
    const std::string fault = message(ErrorKind::request, [&] { read(dataset, i, length); });
    if (fault != "accepted") faults += fault;
  }
  EXPECT_EQ(faults, "\"" + name + "\": the byte 200 at offset 12 is outside the vocabulary of 128 tokens");
  // Known before a step where the file has it from the beginning. A vocabulary of 201 holds token 200.
  const std::string one = file("one", std::string(5, static_cast<char>(200)));
  EXPECT_NO_THROW(read(TokenDataset(files_of({one}, 4, seed), byte_vocabulary(201)), 0, 4));
  EXPECT_EQ(message(ErrorKind::request, [&] { TokenDataset(files_of({one}, 4, seed), byte_vocabulary(200)); }),
            "data.train: \"" + one + "\": the byte 200 at offset 0 is outside the vocabulary of 200 tokens");
}

// Of a file of 64 MiB every token is looked at, of a larger one the ends and pieces between. Facts beside the tokens
// stand for the look.
TEST_F(Data, LooksForTokensOutsideTheVocabularyBeforeTheRun) {
  const std::int64_t pieces = 64, ids_of_piece = (std::int64_t{1} << 20) / 2;
  const TextVocabulary ids{nullptr, "none", 1000};
  const std::string name = file("ids.bin", std::string(2 * pieces * ids_of_piece, '\0'));
  const auto fault_with = [&](std::int64_t at, std::int64_t size) {
    std::filesystem::resize_file(name, static_cast<std::uintmax_t>(2 * size));
    std::fstream bytes(name, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](const char* id) {
      bytes.seekp(2 * at);
      bytes.write(id, 2);
      bytes.flush();
    };
    put("\xe8\x03");  // 1000
    const std::string fault = token_file_fault(name + "#uint16", ids, 8);
    put("\0\0");
    return fault;
  };
  const std::int64_t whole = pieces * ids_of_piece, larger = whole + 5 * ids_of_piece + 3;
  const auto message_at = [](std::int64_t at) { return fmt::format("token {} has the id 1000, which is outside", at); };
  for (const std::int64_t at : {std::int64_t{0}, whole / 3, whole / 2 + 1, whole - 1}) {
    EXPECT_NE(fault_with(at, whole).find(message_at(at)), std::string::npos) << at;
  }
  for (const std::int64_t at : {std::int64_t{0}, ids_of_piece - 1, larger - ids_of_piece, larger - 1}) {
    EXPECT_NE(fault_with(at, larger).find(message_at(at)), std::string::npos) << at;
  }
  int found = 0;
  for (int i = 0; i < 10; ++i) found += fault_with(larger / 10 * i + 17, larger).empty() ? 0 : 1;
  EXPECT_GE(found, 8) << "64 of 69 parts";

  IndexedWriter writer(folder() / "told", 2000);
  writer.add_document(std::vector<std::int32_t>{1, 2, 3, 4, 5, 1500, 7, 8, 9, 10});
  writer.finish();
  const std::string told = folder() / "told";
  EXPECT_NE(token_file_fault(told, ids, 8).find("token 5 has the id 1500"), std::string::npos);
  TokenFacts facts;
  facts.tokenizer = "x";
  facts.tokenizer_hash = "0";
  facts.vocab_size = 2000;
  facts.documents = 1;
  facts.tokens = 10;
  std::ofstream(told + ".json") << format_token_facts(facts);
  EXPECT_NE(token_file_fault(told, ids, 8).find("token 5 has the id 1500"), std::string::npos);
  facts.vocab_size = 1000;
  std::ofstream(told + ".json") << format_token_facts(facts);
  EXPECT_EQ(token_file_fault(told, ids, 8), "");
  // A prefix may end like a file of a dataset, and has facts of its own.
  EXPECT_TRUE(find_token_facts(told + ".bin"));
  std::ofstream(told + ".idx.idx");
  EXPECT_FALSE(find_token_facts(told + ".idx.bin"));
}

TEST(BatchPlan, RanksTogetherReadTheGlobalBatch) {
  constexpr std::int64_t global_batch = 16;
  for (std::int64_t data_ranks : {1, 2, 4, 8}) {
    for (std::int64_t microbatch_size : {1, 2}) {
      const BatchPlan plan{global_batch / (data_ranks * microbatch_size), data_ranks, microbatch_size};
      ASSERT_EQ(plan.sequences(), global_batch);
      for (std::int64_t step : {0, 1, 7}) {
        std::vector<std::int64_t> samples;
        for (std::int64_t rank = 0; rank < data_ranks; ++rank) {
          for (std::int64_t microbatch = 0; microbatch < plan.microbatches; ++microbatch) {
            for (std::int64_t sequence = 0; sequence < microbatch_size; ++sequence) {
              samples.push_back(plan.sample(step * plan.sequences(), microbatch, rank, sequence));
            }
          }
        }
        std::sort(samples.begin(), samples.end());
        std::vector<std::int64_t> expected(global_batch);
        std::iota(expected.begin(), expected.end(), step * global_batch);
        EXPECT_EQ(samples, expected) << data_ranks << " data ranks, microbatches of " << microbatch_size;
      }
    }
  }
}

}  // namespace
}  // namespace weft
