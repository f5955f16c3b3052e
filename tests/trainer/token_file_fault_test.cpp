// Damaged token files: by hand, field by field, cut at every byte, changed while they are read, and 20,000 times at
// random for each format. A plain judge (token_file_sample.h) knows which bytes are sound. The full check must agree
// with it. A file opened although it is damaged must answer inside its range or refuse.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_index.h"

namespace weft {
namespace {

ByteSource source_of(const std::string& name, const std::string& bytes) {
  return memory_source(name, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// Asks everything of an index that was opened. Counts the refusals.
int expect_answers_in_range(const TokenIndex& index, std::mt19937& chance) {
  int refused = 0;
  const auto in_range = [&](std::int64_t largest, auto&& ask) {
    const std::string why = token_refusal([&] {
      const std::int64_t answer = ask();
      EXPECT_TRUE(0 <= answer && answer <= largest) << answer << " of " << largest;
    });
    if (why != "accepted") {
      ++refused;
      EXPECT_NE(why.find(index.name()), std::string::npos) << why;
    }
  };
  for (std::int64_t d = 0; d <= index.documents(); ++d)
    in_range(index.tokens(), [&] { return index.document_begin(d); });
  for (std::int64_t s = 0; s <= index.sequences(); ++s)
    in_range(index.tokens(), [&] { return index.sequence_begin(s); });
  for (int i = 0; i < 5 && index.tokens() > 0; ++i) {
    const auto token = static_cast<std::int64_t>(chance() % static_cast<std::uint64_t>(index.tokens()));
    in_range(index.documents() - 1, [&] { return index.document_of(token); });
  }
  in_range(0, [&] {
    for (const std::int32_t length : index.sequence_lengths()) EXPECT_GE(length, 0);
    return 0;
  });
  return refused;
}

// One change that reaches further than a random byte does: to a bit, a byte, a number, the size.
void damage(std::string& bytes, std::mt19937& chance) {
  constexpr std::uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       255,
                                       256,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       0x7fffffffffffffff,
                                       0x8000000000000000,
                                       0xffffffffffffffff};
  if (bytes.empty()) bytes = "x";
  const std::size_t at = chance() % bytes.size();
  switch (chance() % 7) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << chance() % 8);
      return;
    case 1:
      bytes[at] = static_cast<char>(chance());
      return;
    case 2:
      bytes.erase(at, 1 + chance() % 12);
      return;
    case 3:
      bytes.insert(at, bytes.substr(chance() % bytes.size(), 8));
      return;
    case 4:
      bytes.resize(at);
      return;
    default: {
      std::string number;
      put(number, numbers[chance() % std::size(numbers)] + (chance() % 4 == 0 ? chance() % 8 : 0),
          chance() % 2 == 0 ? 4 : 8);
      bytes.replace(at, std::min(number.size(), bytes.size() - at), number.substr(0, bytes.size() - at));
    }
  }
}

struct Mutations {
  int sound = 0, opened_damaged = 0, refused_at_once = 0, answers_refused = 0;
};

// Opens damaged copies of random datasets as Index, and compares the full check with the judge.
template <typename Index, typename Make, typename Judge>
Mutations mutate_indices(unsigned seed, Make&& make, Judge&& judge) {
  std::mt19937 chance(seed);
  Mutations counted;
  for (int round = 0; round < 20000; ++round) {
    PlainFiles files = make(chance);
    for (std::uint32_t changes = 1 + chance() % 3; changes > 0; --changes) damage(files.index, chance);
    if (chance() % 8 == 0) files.data.resize(files.data.size() + chance() % 3);
    const bool sound = judge(files);
    bool opened = false;
    const std::string why = token_refusal([&] {
      const Index index(source_of("the index", files.index), "the data", std::ssize(files.data));
      opened = true;
      counted.answers_refused += expect_answers_in_range(index, chance);
      index.check();
    });
    EXPECT_EQ(why == "accepted", sound) << "round " << round << ": " << why;
    EXPECT_TRUE(sound || why.find("the index") != std::string::npos || why.find("the data") != std::string::npos)
        << why;
    counted.sound += sound;
    counted.opened_damaged += opened && !sound;
    counted.refused_at_once += !opened;
  }
  return counted;
}

TEST(TokenFileFault, RandomDamageToAnIndexOfMegatronIsFound) {
  const Mutations counted = mutate_indices<MegatronIndex>(
      11,
      [](std::mt19937& chance) {
        constexpr int codes[] = {1, 2, 3, 4, 5, 8};
        return plain_megatron(random_documents(chance, static_cast<int>(chance() % 6), 100), codes[chance() % 6]);
      },
      [](const PlainFiles& files) { return is_sound_megatron(files.index, files.data.size()); });
  // The test reaches all three fates.
  EXPECT_GT(counted.sound, 100);
  EXPECT_GT(counted.opened_damaged, 1000);
  EXPECT_GT(counted.refused_at_once, 1000);
  EXPECT_GT(counted.answers_refused, 1000);
}

TEST(TokenFileFault, RandomDamageToAnIndexOfDatatroveIsFound) {
  const Mutations counted = mutate_indices<DatatroveIndex>(
      12,
      [](std::mt19937& chance) {
        return plain_datatrove(random_documents(chance, static_cast<int>(chance() % 12), 100),
                               chance() % 2 == 0 ? 2 : 4);
      },
      [](const PlainFiles& files) { return is_sound_datatrove(files.index, files.data.size()); });
  EXPECT_GT(counted.sound, 100);
  EXPECT_GT(counted.opened_damaged, 1000);
  EXPECT_GT(counted.refused_at_once, 1000);
  EXPECT_GT(counted.answers_refused, 1000);
}

TEST(TokenFileFault, RandomDamageToAHeaderOfLlmCIsFound) {
  std::mt19937 chance(13);
  int sound = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::int64_t> ids(1 + chance() % 4, 5);
    const bool small = chance() % 2 == 0;
    std::string bytes = plain_llm_c(small ? 20240520 : 20240801, small ? 1 : 7, ids, small ? 2 : 4);
    std::string head = bytes.substr(0, 12);
    damage(head, chance);
    bytes.replace(0, 12, head);
    const auto number = [&](std::size_t at) { return bytes.size() < at + 4 ? -1 : taken(bytes, at, 4, true); };
    const std::int64_t width = number(0) == 20240520 && number(4) == 1   ? 2
                               : number(0) == 20240801 && number(4) == 7 ? 4
                                                                         : 0;
    const bool expected = width != 0 && number(8) > 0 && std::ssize(bytes) == 1024 + number(8) * width;
    bool parsed = false;
    token_refusal([&] { parsed = parse_llm_c(source_of("llm", bytes)).has_value(); });
    EXPECT_EQ(parsed, expected) << "round " << round;
    sound += expected;
  }
  EXPECT_GT(sound, 100);
}

// One damage for each promise, with the words that name it.
TEST(TokenFileFault, EveryFieldOfMegatronsIndexIsChecked) {
  const PlainFiles golden = golden_megatron();
  const std::size_t lengths = 34, offsets = lengths + 12, documents = offsets + 24;
  struct Damage {
    std::size_t at;
    std::uint64_t number;
    int bytes;
    bool found_at_opening;
    const char* message;
  };
  const Damage damages[] = {
      {0, 'm', 1, true, "does not begin with \"MMIDIDX\""},
      {8, 1, 1, true, "does not begin with \"MMIDIDX\""},
      {9, 2, 8, true, "version 2 of Megatron's index"},
      {9, 1ull << 40, 8, true, "version 1099511627776"},
      {17, 0, 1, true, "the type code 0 at byte 17"},
      {17, 9, 1, true, "the type code 9 at byte 17"},
      {17, 4, 1, true, "26 bytes, but by its index"},
      {18, 4, 8, true, "4 sequences and 4 document boundaries take"},
      {18, ~0ull, 8, true, "18446744073709551615 sequences"},
      {26, 0, 8, true, "3 sequences and 0 document boundaries take"},
      {26, 1ull << 61, 8, true, "2305843009213693952 document boundaries"},
      {lengths, 5, 4, false, "sequence 1 has 3 tokens from byte 8 on; those before it end at byte 10"},
      {lengths, 0xffffffff, 4, false, "sequence 0 has -1 tokens"},
      {lengths + 4, 2, 4, false, "its sequences have 12 tokens together, but the dataset has 13"},
      {lengths + 8, 7, 4, true, "the last sequence begins at byte 14 and has 14 bytes"},
      {lengths + 8, 0xffffffff, 4, true, "has -2 bytes"},
      {offsets, 2, 8, true, "the first sequence begins at byte 2"},
      {offsets + 8, 10, 8, false, "sequence 1 has 3 tokens from byte 10 on; those before it end at byte 8"},
      {offsets + 8, 9, 8, false, "sequence 1 begins at byte 9 of 26, where no uint16 begins"},
      {offsets + 8, ~0ull, 8, false, "sequence 1 begins at byte -1 of 26"},
      {offsets + 16, 1ull << 62, 8, true, "the last sequence begins at byte 4611686018427387904"},
      {documents, 1, 8, true, "documents go from sequence 1 to 3 instead of from 0 to 3"},
      {documents + 8, 3, 8, false, "document 2 begins at sequence 2, the one before it at 3"},
      {documents + 8, 4, 8, false, "document 1 begins at sequence 4 of 3"},
      {documents + 24, 2, 8, true, "documents go from sequence 0 to 2"},
  };
  std::mt19937 chance(1);
  for (const Damage& fault : damages) {
    std::string index = golden.index, number;
    put(number, fault.number, fault.bytes);
    index.replace(fault.at, number.size(), number);
    EXPECT_FALSE(is_sound_megatron(index, golden.data.size())) << fault.message;
    bool opened = false;
    std::string all;
    const auto say = [&](const std::string& why) { all += why + "\n"; };
    say(token_refusal([&] {
      const MegatronIndex read(source_of("x.idx", index), "x.bin", 26);
      opened = true;
      expect_answers_in_range(read, chance);
      for (std::int64_t s = 0; s <= read.sequences(); ++s) say(token_refusal([&] { read.sequence_begin(s); }));
      for (std::int64_t d = 0; d <= read.documents(); ++d) say(token_refusal([&] { read.document_begin(d); }));
      say(token_refusal([&] { read.sequence_lengths(); }));
      read.check();
    }));
    EXPECT_EQ(opened, !fault.found_at_opening) << fault.message;
    EXPECT_NE(all.find(fault.message), std::string::npos) << fault.message << " is not in:\n" << all;
  }
}

// Sizes agree, but tokens are cut in half.
TEST(TokenFileFault, TokensBeginAtAWholeToken) {
  std::string index = golden_megatron().index;
  index[34 + 12 + 16] = 13;
  const std::string why = token_refusal([&] { MegatronIndex(source_of("x.idx", index), "x.bin", 25); });
  EXPECT_NE(why.find("x.bin\": 25 bytes, but by its index"), std::string::npos) << why;
}

TEST(TokenFileFault, AnIndexCutAnywhereIsRefused) {
  const PlainFiles golden = golden_megatron();
  for (std::size_t size = 0; size < golden.index.size(); ++size) {
    const std::string cut = golden.index.substr(0, size);
    EXPECT_NE(token_refusal([&] { MegatronIndex(source_of("x.idx", cut), "x.bin", 26); }), "accepted") << size;
  }
  for (std::int64_t bytes = 0; bytes < 40; ++bytes) {
    if (bytes == 26) continue;
    EXPECT_NE(token_refusal([&] { MegatronIndex(source_of("x.idx", golden.index), "x.bin", bytes); }), "accepted")
        << bytes;
  }
  const PlainFiles other = plain_datatrove(golden_documents(), 2);
  for (std::size_t size = 0; size < other.index.size(); ++size) {
    const std::string cut = other.index.substr(0, size);
    EXPECT_NE(token_refusal([&] { DatatroveIndex(source_of("x.ds.index", cut), "x.ds", 26); }), "accepted") << size;
  }
}

// An index of 10 GB that exists only as an answer to reads.
TEST(TokenFileFault, OpeningReadsAFewPagesOfAHugeIndex) {
  constexpr std::int64_t sequences = 500'000'000, length = 7;
  const std::vector<std::uint8_t> header = megatron_header({TokenType::uint16, sequences, sequences});
  std::int64_t bytes_read = 0;
  const auto number_at = [&](std::int64_t at) {  // the number that holds byte `at`, shifted so that this byte is lowest
    const std::int64_t in_lengths = at - 34, in_offsets = in_lengths - 4 * sequences,
                       in_documents = in_offsets - 8 * sequences;
    if (in_documents >= 0) return static_cast<std::uint64_t>(in_documents / 8) >> 8 * (in_documents % 8);
    if (in_offsets >= 0) return static_cast<std::uint64_t>(in_offsets / 8 * length * 2) >> 8 * (in_offsets % 8);
    return static_cast<std::uint64_t>(length) >> 8 * (in_lengths % 4);
  };
  const ByteSource huge{"huge.idx", 34 + 20 * sequences + 8, [&](std::int64_t offset, std::span<std::uint8_t> to) {
                          bytes_read += std::ssize(to);
                          for (std::size_t i = 0; i < to.size(); ++i) {
                            const std::int64_t at = offset + static_cast<std::int64_t>(i);
                            to[i] = at < 34 ? header[static_cast<std::size_t>(at)]
                                            : static_cast<std::uint8_t>(number_at(at));
                          }
                        }};
  const MegatronIndex index(huge, "huge.bin", sequences * length * 2);
  // The header and at most six pages of numbers.
  EXPECT_LE(bytes_read, 34 + 6 * 4096);
  EXPECT_EQ(index.tokens(), sequences * length);
  // 2^29 > sequences: at most 30 pages of each array, and the second search finds most of them in the cache.
  bytes_read = 0;
  EXPECT_EQ(index.document_of(1'234'567'890), 1'234'567'890 / length);
  EXPECT_LE(bytes_read, 2 * 30 * 4096);
  bytes_read = 0;
  EXPECT_EQ(index.document_of(1'234'567'897), 1'234'567'897 / length);
  EXPECT_LE(bytes_read, 4 * 4096);
}

TEST(TokenFileFault, FilesThatChangeWhileTheyAreReadRefuseOrAnswer) {
  const TemporaryFolder folder;
  std::mt19937 chance(21);
  std::vector<PlainDocument> documents = random_documents(chance, 4000, 60000);
  const PlainFiles files = plain_megatron(documents, 8);
  write_file(folder / "x.idx", files.index);
  write_file(folder / "x.bin", files.data);
  const TokenFile file((folder / "x").string());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));

  std::filesystem::resize_file(folder / "x.bin", files.data.size() - 1);
  const std::string cut = token_refusal([&] { file.read(0, ids); });
  EXPECT_NE(cut.find("x.bin\": it was cut short while it was read"), std::string::npos) << cut;
  // The index is overwritten in place with noise, and then cut to its header.
  {
    std::fstream noise(folder / "x.idx", std::ios::binary | std::ios::in | std::ios::out);
    noise.seekp(34);
    for (std::size_t i = 34; i < files.index.size(); ++i) noise.put(static_cast<char>(chance()));
  }
  const auto ask = [&] {
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto token = static_cast<std::int64_t>(chance() % static_cast<std::uint64_t>(file.tokens()));
      const auto document = static_cast<std::int64_t>(chance() % static_cast<std::uint64_t>(file.documents()));
      refused += token_refusal([&] { EXPECT_LT(file.document_of(token), file.documents()); }) != "accepted";
      refused += token_refusal([&] { EXPECT_LE(file.document_begin(document), file.tokens()); }) != "accepted";
    }
    return refused;
  };
  EXPECT_GT(ask(), 1000);
  EXPECT_NE(token_refusal([&] { file.index()->sequence_lengths(); }), "accepted");
  std::filesystem::resize_file(folder / "x.idx", 34);
  ask();
  EXPECT_NE(token_refusal([&] { file.check(); }), "accepted");
}

TEST(TokenFileFault, SeveralThreadsReadAtTheSameTime) {
  const TemporaryFolder folder;
  std::mt19937 chance(22);
  // More numbers than the cache of an array holds (256 pages of 512).
  std::vector<PlainDocument> documents(150000);
  std::vector<std::int64_t> begins, owner;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    documents[d] = {std::vector<std::int64_t>(chance() % 3, static_cast<std::int64_t>(d % 1000))};
    begins.push_back(std::ssize(owner));
    owner.insert(owner.end(), documents[d][0].size(), static_cast<std::int64_t>(d));
  }
  const PlainFiles files = plain_megatron(documents, 8);
  write_file(folder / "x.idx", files.index);
  write_file(folder / "x.bin", files.data);
  const TokenFile file((folder / "x").string());
  std::atomic<int> wrong = 0;
  const auto read = [&](unsigned seed) {
    std::mt19937 own(seed);
    for (int i = 0; i < 5000; ++i) {
      const std::size_t token = own() % owner.size(), document = own() % documents.size();
      std::vector<std::int32_t> id(1);
      file.read(static_cast<std::int64_t>(token), id);
      wrong += id[0] != owner[token] % 1000;
      wrong += file.document_of(static_cast<std::int64_t>(token)) != owner[token];
      wrong += file.document_begin(static_cast<std::int64_t>(document)) != begins[document];
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back(read, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace weft
