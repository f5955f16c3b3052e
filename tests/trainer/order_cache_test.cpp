// Tables of orders in files: as those in memory, made once by any number of processes, and harmless when damaged.
#include "trainer/data/order_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "tests/trainer/byte_vocabulary.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/indexed_writer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<std::int64_t>;

Numbers all_of(const StoredNumbers& table) {
  Numbers numbers(static_cast<std::size_t>(table.count()));
  table.read(0, numbers);
  return numbers;
}

std::vector<NumberColumn> sample_columns() {
  return {number_column(TokenType::int16, std::vector<std::int16_t>{-3, 0, 32767}),
          number_column(TokenType::uint32, std::vector<std::uint32_t>{}),
          number_column(TokenType::uint32, std::vector<std::uint32_t>{4294967295u}),
          number_column(TokenType::int64, Numbers{-(std::int64_t{1} << 60), 5})};
}

std::vector<Numbers> sample_numbers() {
  return {{-3, 0, 32767}, {}, {4294967295}, {-(std::int64_t{1} << 60), 5}};
}

std::vector<Numbers> numbers_of(const NumberTables& tables) {
  std::vector<Numbers> numbers;
  for (const StoredNumbers& table : tables) numbers.push_back(all_of(table));
  return numbers;
}

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The header tells the content of the numbers as they are.
std::string with_content(const std::string& tables) {
  const auto size = static_cast<std::size_t>(taken(tables, 0, 8, false));
  const std::string numbers = tables.substr(8 + size);
  auto header = nlohmann::ordered_json::parse(tables.substr(8, size));
  header["content"] = sampled_content(
      memory_source("numbers", {reinterpret_cast<const std::uint8_t*>(numbers.data()), numbers.size()}));
  const std::string text = header.dump();
  std::string bytes;
  put(bytes, text.size(), 8);
  return bytes + text + numbers;
}

class OrderCaches : public testing::Test {
 protected:
  std::string cache_folder() const { return (folder_ / "cache").string(); }
  std::vector<fs::path> cached() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(cache_folder())) {
      if (entry.path().extension() == ".tables") files.push_back(entry.path());
    }
    return files;
  }
  // Documents of 1 to 40 tokens.
  DataSource dataset(const std::string& name, unsigned seed, std::optional<double> weight = {}) const {
    std::mt19937 chance(seed);
    IndexedWriter writer((folder_ / name).string(), 10000);
    for (int d = 0; d < 200; ++d) {
      std::vector<std::int32_t> ids(1 + chance() % 40);
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(chance() % 10000);
      writer.add_document(ids);
    }
    writer.finish();
    return {(folder_ / name).string(), weight};
  }
  static std::vector<std::int32_t> read_all(const DataRequest& request) {
    const TokenDataset data(request, {nullptr, "none", 10000});
    std::vector<std::int32_t> read;
    for (std::int64_t sample = 0; sample < request.samples; ++sample) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(request.sequence_length)), targets(tokens.size()),
          begins(tokens.size());
      data.read(sample, {tokens, targets, begins});
      for (const auto* part : {&tokens, &targets, &begins}) read.insert(read.end(), part->begin(), part->end());
    }
    return read;
  }
  void remake_first(unsigned seed) const {
    for (const char* file : {"a.idx", "a.bin"}) fs::remove(folder_ / file);
    dataset("a", seed);
  }
  // One of each kind of order that has tables.
  std::vector<DataRequest> requests() const {
    const DataSource a = dataset("a", 1), b = dataset("b", 2);
    DataRequest plain{.sources = {a}, .sequence_length = 16, .seed = 7, .samples = 300};
    DataRequest megatron = plain, blend = plain, packed = plain, weighted = plain;
    megatron.order = blend.order = DataOrder::megatron;
    megatron.documents = Documents::mask;
    megatron.split = "80,20";
    blend.sources = weighted.sources = {DataSource(a.path, 0.7), DataSource(b.path, 0.3)};
    packed.documents = weighted.documents = Documents::pack;
    packed.sources = {a, b};
    return {megatron, blend, packed, weighted};
  }

  TemporaryFolder folder_;
};

// One document, whose boundaries are in a file of any bytes.
class LargeIndex final : public TokenIndex {
 public:
  explicit LargeIndex(const std::string& name) : TokenIndex(name), file_(open_source(name)) {}
  std::int64_t tokens() const override { return 7; }
  std::int64_t documents() const override { return 1; }
  std::int64_t document_begin(std::int64_t document) const override { return 7 * document; }
  std::vector<std::int32_t> sequence_lengths() const override { return {7}; }

 private:
  const ByteSource* source() const override { return &file_; }

  ByteSource file_;
};

// Of more than 64 MiB a checksum covers a part. A change elsewhere still gives other tables.
TEST_F(OrderCaches, AChangeAnywhereInALargeIndexIsAnotherIndex) {
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  const std::string name = (folder_ / "a.idx").string();
  for (const std::int64_t size : {64 * mib, 128 * mib}) {
    std::ofstream(name) << "index";
    fs::resize_file(name, static_cast<std::uintmax_t>(size));
    const std::string before = LargeIndex(name).identity();
    EXPECT_EQ(LargeIndex(name).identity(), before);
    std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * mib / 2);  // of 128 MiB between the first piece and the second
    file << "other";
    file.close();
    const LargeIndex after(name);
    const std::string changed = after.identity();
    EXPECT_NE(changed, before) << size;
    fs::last_write_time(name, fs::file_time_type::clock::now() + std::chrono::hours(1));
    EXPECT_EQ(LargeIndex(name).identity() == changed, size == 64 * mib);
    EXPECT_EQ(LargeIndex(name).content(), after.content());
  }
}

TEST_F(OrderCaches, TablesOfAFileAreThoseInMemory) {
  int made = 0;
  const auto make = [&] {
    ++made;
    return sample_columns();
  };
  EXPECT_EQ(numbers_of(OrderCache().tables("key", make)), sample_numbers());
  EXPECT_EQ(numbers_of(OrderCache().tables("key", make)), sample_numbers());
  EXPECT_EQ(made, 2) << "without a folder, each time";
  const OrderCache cache(cache_folder());
  EXPECT_EQ(numbers_of(cache.tables("key", make)), sample_numbers());
  EXPECT_EQ(numbers_of(cache.tables("key", make)), sample_numbers());
  EXPECT_EQ(made, 3) << "with one, once";
  cache.tables("another", make);
  EXPECT_EQ(made, 4);
  EXPECT_EQ(cached().size(), 2u);
}

// Four processes at once: each sees the tables, and one made them.
TEST_F(OrderCaches, OneOfSeveralProcessesMakesTables) {
  const std::string log = (folder_ / "made").string();
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const NumberTables tables = OrderCache(cache_folder()).tables("key", [&] {
        std::ofstream(log, std::ios::app) << 'x';
        usleep(50000);
        return sample_columns();
      });
      _exit(numbers_of(tables) == sample_numbers() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(bytes_of_file(log), "x");
}

// A maker that is killed leaves no file of that name; the next makes it.
TEST_F(OrderCaches, AKilledMakerLeavesNothingInTheWay) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    OrderCache(cache_folder()).tables("key", []() -> std::vector<NumberColumn> { _exit(9); });
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 9);
  EXPECT_TRUE(cached().empty());
  EXPECT_EQ(numbers_of(OrderCache(cache_folder()).tables("key", sample_columns)), sample_numbers());
}

// A file that differs in any byte is made anew.
TEST_F(OrderCaches, DamagedFilesAreMadeAnew) {
  const OrderCache cache(cache_folder());
  cache.tables("key", sample_columns);
  const fs::path file = cached().front();
  const std::string good = bytes_of_file(file);
  std::mt19937 chance(5);
  int remade = 0;
  for (int round = 0; round < 200; ++round) {
    std::string bad = good;
    if (round < 3) {
      bad = std::vector<std::string>{"", good.substr(0, good.size() - 1), good + "x"}[static_cast<std::size_t>(round)];
    } else {
      bad[chance() % bad.size()] = static_cast<char>(chance());
    }
    std::ofstream(file, std::ios::binary) << bad;
    bool made = false;
    const NumberTables tables = cache.tables("key", [&] {
      made = true;
      return sample_columns();
    });
    EXPECT_EQ(numbers_of(tables), sample_numbers());
    EXPECT_EQ(made, bad != good) << round;
    remade += made ? 1 : 0;
  }
  EXPECT_GT(remade, 150);
}

// The lock is for all who may write into the folder, whatever the umask of the first.
TEST_F(OrderCaches, TheLockHasTheRightsOfItsFolder) {
  fs::create_directory(cache_folder());
  fs::permissions(cache_folder(), fs::perms(0777));
  const mode_t before = umask(077);
  OrderCache(cache_folder()).tables("key", sample_columns);
  umask(before);
  EXPECT_EQ(fs::status(cache_folder() + "/lock").permissions(), fs::perms(0666));
}

TEST_F(OrderCaches, AFolderThatCannotBeIsRefused) {
  std::ofstream(cache_folder()) << "a file";
  const std::string why = token_refusal([&] { OrderCache(cache_folder()).tables("key", sample_columns); });
  EXPECT_NE(why.find("data.index_cache: \"" + cache_folder() + "\" cannot be created"), std::string::npos) << why;
}

TEST_F(OrderCaches, OrdersReadTheSameFromFiles) {
  std::size_t files = 0;
  for (DataRequest request : requests()) {
    const std::vector<std::int32_t> expected = read_all(request);
    request.index_cache = cache_folder();
    EXPECT_EQ(read_all(request), expected) << "made";
    EXPECT_GT(cached().size(), files);
    files = cached().size();
    EXPECT_EQ(read_all(request), expected) << "found";
    EXPECT_EQ(cached().size(), files);
  }
}

// Everything that the tables depend on is in their key.
TEST_F(OrderCaches, OtherRunsAndContentsHaveTablesOfTheirOwn) {
  for (const DataRequest& given : requests()) {
    std::vector<DataRequest> others(4, given);
    others[0].sequence_length = 12;
    others[1].split = "70,30";
    others[2].seed = given.seed + 1;
    others[3].samples = 250;
    for (DataRequest& request : others) {
      const std::vector<std::int32_t> expected = read_all(request);
      request.index_cache = cache_folder();
      EXPECT_EQ(read_all(request), expected);
    }
    const std::vector<std::int32_t> before = read_all(given);
    DataRequest request = given;
    request.index_cache = cache_folder();
    read_all(request);
    remake_first(99);
    const std::vector<std::int32_t> expected = read_all(given);
    EXPECT_NE(expected, before);
    EXPECT_EQ(read_all(request), expected) << "the same name, other documents";
    remake_first(1);
  }
}

// Numbers that no longer fit the data are refused where they are read, and read nothing outside.
TEST_F(OrderCaches, DamagedNumbersAreRefusedOrReadTokens) {
  std::mt19937 chance(11);
  int refused = 0;
  for (DataRequest request : requests()) {
    request.index_cache = cache_folder();
    request.samples = 120;
    read_all(request);
    for (const fs::path& file : cached()) {
      const std::string good = bytes_of_file(file);
      for (int round = 0; round < 40; ++round) {
        std::string bad = good;
        for (int b = 0; b < 8; ++b) {
          const std::size_t header = 8 + static_cast<std::size_t>(taken(good, 0, 8, false));
          const std::size_t at = header + chance() % (good.size() - header);
          bad[at] = static_cast<char>(chance());
        }
        std::ofstream(file, std::ios::binary) << with_content(bad);
        const std::string why = token_refusal([&] { read_all(request); });
        refused += why != "accepted" ? 1 : 0;
        EXPECT_TRUE(why == "accepted" || why.find("delete them") != std::string::npos) << why;
      }
      std::ofstream(file, std::ios::binary) << good;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace weft
