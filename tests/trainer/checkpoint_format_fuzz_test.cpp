// Checkpoints broken at random, from fixed seeds. Single bits anywhere are found. A mutated text that a reader takes is
// sound by a judgement that shares nothing with it. A refusal says why.
#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <random>

#include "parallel/runtime/error.h"
#include "tests/trainer/checkpoint_sample.h"
#include "tests/trainer/safetensors_judge.h"
#include "trainer/checkpoint/reader.h"

namespace weft {
namespace {

class Chance {
 public:
  explicit Chance(unsigned seed) : engine_(seed) {}
  // 0 .. count - 1
  std::size_t below(std::size_t count) { return engine_() % count; }
  bool one_in(std::size_t count) { return below(count) == 0; }

 private:
  std::mt19937 engine_;
};

// What stands for a number, and what JSON is made of: mutations with these reach further than any byte would.
constexpr std::string_view numbers[] = {"0",
                                        "-1",
                                        "1",
                                        "2",
                                        "7",
                                        "1.5",
                                        "1e3",
                                        "-0",
                                        "255",
                                        "256",
                                        "999999",
                                        "2147483648",
                                        "4294967296",
                                        "9223372036854775807",
                                        "9223372036854775808",
                                        "18446744073709551616",
                                        "-9223372036854775808",
                                        "1e999"};
constexpr std::string_view words[] = {"null",     "true",    "[]",    "{}",        "\"\"", "[[]]", "\"F32\"",
                                      "\"BF16\"", "\"x\"",   "[0,1]", "[1,0]",     ",",    ":",    "\"",
                                      "\\",       "\\u0000", "\xff",  "{\"a\":1}", "]",    "}"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void mutate(std::string& text, Chance& chance) {
  if (text.empty()) return;
  const std::size_t at = chance.below(text.size());
  switch (chance.below(8)) {
    case 0:
      text[at] = static_cast<char>(chance.below(256));
      return;
    case 1:
      text[at] ^= static_cast<char>(1 << chance.below(8));
      return;
    case 2:
      text.erase(at, 1 + chance.below(8));
      return;
    case 3: {  // a piece of it once more
      const std::string piece = text.substr(at, chance.below(40));
      text.insert(chance.below(text.size() + 1), piece);
      return;
    }
    case 4:
      text.insert(at, words[chance.below(std::size(words))]);
      return;
    case 5: {  // one value for another
      const std::size_t end = std::min(text.find_first_of(",:]}", at), text.size());
      text.replace(at, end - at, words[chance.below(std::size(words))]);
      return;
    }
    default: {  // a number, by one or altogether
      std::size_t begin = at;
      while (begin < text.size() && !is_digit(text[begin])) ++begin;
      std::size_t end = begin;
      while (end < text.size() && is_digit(text[end])) ++end;
      if (begin == end) return;
      if (chance.one_in(2) || end - begin > 9) {
        text.replace(begin, end - begin, numbers[chance.below(std::size(numbers))]);
      } else {
        const int value = std::stoi(text.substr(begin, end - begin));
        text.replace(begin, end - begin, std::to_string(value + (chance.one_in(2) ? 1 : -1)));
      }
    }
  }
}

// "" where `read` takes what it is given.
template <typename Read>
std::string read_refusal(Read read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::failure) << error.what();
    EXPECT_GT(std::string_view(error.what()).size(), 6u);
    return error.what();
  }
  return "";
}

// --- single bits ----------------------------------------------------------------------------------------------------

// XXH64 sees every change of one bit; a byte that no checksum covers, or a length that nobody holds against the file,
// would show here.
void flip(std::fstream& file, std::size_t bit) {
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << bit % 8)));
  file.flush();
}

// Flips every `stride`-th bit of every file, one at a time; how many.
std::size_t expect_flips_found(const std::filesystem::path& folder, const Manifest& manifest, std::size_t stride) {
  EXPECT_EQ(find_checkpoint_faults(folder), std::vector<std::string>{});
  std::vector<std::string> names = {manifest_name};
  for (const SavedFile& file : manifest.files) names.push_back(file.name);
  std::size_t flipped = 0;
  for (const std::string& name : names) {
    const std::size_t bits = 8 * std::filesystem::file_size(folder / name);
    std::fstream file(folder / name, std::ios::in | std::ios::out | std::ios::binary);
    for (std::size_t bit = 0; bit < bits; bit += stride) {
      flip(file, bit);
      const auto faults = find_checkpoint_faults(folder);
      EXPECT_FALSE(faults.empty()) << name << " bit " << bit;
      if (faults.empty()) return flipped;
      EXPECT_NE(faults[0].find(name), std::string::npos) << faults[0];
      flip(file, bit);
      ++flipped;
    }
  }
  EXPECT_EQ(find_checkpoint_faults(folder), std::vector<std::string>{});
  return flipped;
}

TEST(CheckpointFuzz, EverySingleBitOfATinyCheckpointIsFound) {
  const TemporaryFolder folder;
  const auto all = sample_tensors(21);
  const Manifest manifest = write_sample(folder.path(), {all[3]}, 1);
  std::size_t bits = 8 * std::filesystem::file_size(folder.path() / manifest_name);
  for (const SavedFile& file : manifest.files) bits += 8 * static_cast<std::size_t>(file.bytes);
  EXPECT_EQ(expect_flips_found(folder.path(), manifest, 1), bits);
  fmt::print("{} bits flipped, all found\n", bits);
}

TEST(CheckpointFuzz, ABitOfEveryByteOfACheckpointOfSeveralFilesIsFound) {
  const TemporaryFolder folder;
  const Manifest manifest = write_sample(folder.path(), sample_tensors(21), 2);
  EXPECT_GT(expect_flips_found(folder.path(), manifest, 9), 3000u);  // each byte, and another bit of it in turn
}

// --- manifests ------------------------------------------------------------------------------------------------------

// The judgement: each row of each tensor in one place, which is inside a file and of no other row. Rows are marked one
// by one, bytes too, so only of small checkpoints.
std::string fault_of(const Manifest& manifest) {
  std::vector<std::vector<int>> used;
  for (const SavedFile& file : manifest.files) {
    if (file.bytes < 0 || file.bytes > 1'000'000) return "a file of another size than that on disk is no concern here";
    used.emplace_back(static_cast<std::size_t>(file.bytes), 0);
    for (std::int64_t i = 0; i < file.prefix_bytes; ++i) ++used.back().at(static_cast<std::size_t>(i));
  }
  std::string last;
  for (const SavedTensor& tensor : manifest.tensors) {
    const std::string key = tensor.name + '\0' + tensor.state;
    if (!last.empty() && key <= last) return "order";
    last = key;
    if (tensor.rows < 1 || tensor.columns < 1 || tensor.rows > 1'000'000) return "shape";
    std::vector<int> rows(static_cast<std::size_t>(tensor.rows), 0);
    for (const SavedBox& box : tensor.boxes) {
      if (box.bytes != box.rows * tensor.columns * size_of(tensor.dtype)) return "bytes";
      for (std::int64_t r = 0; r < box.rows; ++r) ++rows.at(static_cast<std::size_t>(box.row_begin + r));
      auto& file = used.at(static_cast<std::size_t>(box.file));
      for (std::int64_t b = 0; b < box.bytes; ++b) ++file.at(static_cast<std::size_t>(box.offset + b));
    }
    if (std::ranges::any_of(rows, [](int count) { return count != 1; })) return "rows of " + tensor.name;
  }
  for (const auto& file : used) {
    if (std::ranges::any_of(file, [](int count) { return count != 1; })) return "bytes of a file";
  }
  return "";
}

TEST(CheckpointFuzz, MutatedManifests) {
  constexpr int mutants = 6000;
  const TemporaryFolder folder;
  const Manifest sample = write_sample(folder.path(), sample_tensors(22), 2);
  const std::string sound = to_json(sample);
  ASSERT_EQ(fault_of(sample), "");
  int taken = 0, opened = 0, no_json = 0;
  for (int seed = 0; seed < mutants; ++seed) {
    Chance chance(static_cast<unsigned>(seed));
    std::string text = sound;
    for (std::size_t times = 1 + chance.below(3); times > 0; --times) mutate(text, chance);
    text = signed_again(text);
    Manifest manifest;
    const std::string said = read_refusal([&] { manifest = parse_manifest(text, "NAME"); });
    no_json += said.find("no JSON") != std::string::npos ? 1 : 0;
    if (!said.empty()) continue;
    ++taken;
    ASSERT_EQ(fault_of(manifest), "") << "seed " << seed;
    ASSERT_EQ(parse_manifest(to_json(manifest), "NAME"), manifest) << "seed " << seed;
    // It promises things of files that do not hold them: reading says so, and touches nothing else.
    write_file(folder.path() / manifest_name, text);
    const bool differs = manifest.files != sample.files || manifest.tensors != sample.tensors;
    const auto faults = find_checkpoint_faults(folder.path());
    if (!differs) {
      ASSERT_TRUE(faults.empty()) << "seed " << seed << ": " << faults[0];
    }
    read_refusal([&] {
      const CheckpointReader reader(folder.path());
      ++opened;
      for (const SavedTensor& tensor : reader.manifest().tensors) {
        std::vector<std::uint8_t> rows(static_cast<std::size_t>(tensor.rows * tensor.row_bytes()));
        reader.read_rows(tensor, 0, tensor.rows, rows);
      }
    });
  }
  fmt::print("{} manifests: {} taken, {} opened, {} no JSON\n", mutants, taken, opened, no_json);
  // Otherwise the mutations are too rough, or nothing but JSON is tested.
  EXPECT_GT(taken, mutants / 50);
  EXPECT_GT(opened, mutants / 50);
  EXPECT_GT(mutants - taken - no_json, mutants / 5);
}

// --- headers --------------------------------------------------------------------------------------------------------

TEST(CheckpointFuzz, MutatedHeaders) {
  constexpr int mutants = 3000;
  const TemporaryFolder folder;
  const auto prefix = safetensors_prefix(arrange_safetensors(
      {{"a", "F32", {2, 3}, 0, 0}, {"b", "F32", {0}, 0, 0}, {"\"c\\", "BF16", {7}, 0, 0}, {"d", "F4", {2}, 0, 0}},
      {{"format", "pt"}, {"note", "\n"}}));
  const std::string data(24 + 14 + 1, 'x');
  std::vector<std::filesystem::path> files;
  std::vector<std::string> opinions;
  int taken = 0, no_json = 0;
  for (int seed = 0; seed < mutants; ++seed) {
    Chance chance(static_cast<unsigned>(seed));
    std::string header = prefix.substr(8), length = prefix.substr(0, 8), rest = data;
    for (std::size_t times = 1 + chance.below(3); times > 0; --times) mutate(header, chance);
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
    if (chance.one_in(10)) mutate(length, chance);
    if (chance.one_in(20)) mutate(rest, chance);
    const std::string text = length + header + rest;
    SafetensorsHeader parsed;
    const std::string said = read_refusal([&] {
      parsed = parse_safetensors({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, std::ssize(text),
                                 "NAME");
    });
    if (said.empty()) {
      ++taken;
      ASSERT_EQ(parsed.data_begin + parsed.data_bytes(), std::ssize(text)) << "seed " << seed;
      const std::string again = safetensors_prefix(parsed) + text.substr(static_cast<std::size_t>(parsed.data_begin));
      auto reread = parse_safetensors({reinterpret_cast<const std::uint8_t*>(again.data()), again.size()},
                                      std::ssize(again), "NAME");
      reread.data_begin = parsed.data_begin;
      ASSERT_EQ(reread, parsed) << "seed " << seed;
    }
    no_json += said.find("no JSON") != std::string::npos ? 1 : 0;
    opinions.push_back(said);
    files.push_back(folder.path() / fmt::format("{:04}", seed));
    write_file(files.back(), text);
  }
  fmt::print("{} headers: {} taken, {} no JSON\n", mutants, taken, no_json);
  EXPECT_GT(taken, mutants / 100);
  EXPECT_GT(mutants - taken - no_json, mutants / 5);
  if (!python_is_here()) GTEST_SKIP() << "there is no python3 to judge them as well";
  const auto others = judge_safetensors(files);
  ASSERT_EQ(others.size(), files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& other = others.at(files[i].string());
    EXPECT_EQ(other.starts_with("OK ("), opinions[i].empty()) << "seed " << i << "\n" << opinions[i] << "\n" << other;
  }
}

// A whole file of a checkpoint cut, grown or overwritten at random: found, and never more than refused.
TEST(CheckpointFuzz, MutatedFilesOfACheckpoint) {
  constexpr int mutants = 1000;
  const TemporaryFolder folder;
  const Manifest manifest = write_sample(folder.path(), sample_tensors(23), 3);
  std::vector<std::string> names = {manifest_name};
  for (const SavedFile& file : manifest.files) names.push_back(file.name);
  for (int seed = 0; seed < mutants; ++seed) {
    Chance chance(static_cast<unsigned>(seed));
    const auto path = folder.path() / names[chance.below(names.size())];
    const std::string sound = read_file(path);
    std::string text = sound;
    for (std::size_t times = 1 + chance.below(3); times > 0; --times) mutate(text, chance);
    if (chance.one_in(8)) text.resize(chance.below(text.size() + 1));
    if (text == sound) continue;
    write_file(path, text);
    ASSERT_FALSE(find_checkpoint_faults(folder.path()).empty()) << "seed " << seed;
    write_file(path, sound);
  }
  EXPECT_TRUE(find_checkpoint_faults(folder.path()).empty());
}

// Sizes that nobody has, promised by manifests that are right otherwise.
TEST(CheckpointFuzz, AbsurdSizesTakeNoTime) {
  const auto begin = std::chrono::steady_clock::now();
  Manifest manifest;
  const std::int64_t large = INT64_MAX;
  manifest.files = {{"a", large, 8, 0}};
  manifest.tensors = {{"t", "", large - 8, 1, DType::float32, {{0, large - 8, 0, 8, large - 8, 0}}}};
  EXPECT_EQ(find_manifest_faults(manifest).size(), 1u);  // four bytes an element
  manifest.tensors[0].columns = large;
  EXPECT_EQ(find_manifest_faults(manifest).size(), 1u);
  manifest.tensors[0] = {"t", "", large / 4, 1, DType::float32, {{0, large / 4, 0, 8, large / 4 * 4, 0}}};
  EXPECT_EQ(find_manifest_faults(manifest).size(), 1u);  // 8 bytes too many
  // One that is sound: of a file that nobody has.
  manifest.tensors[0] = {"t", "", large / 4 - 2, 1, DType::float32, {{0, large / 4 - 2, 0, 8, large - 3 - 8, 0}}};
  manifest.files[0].bytes = large - 3;
  EXPECT_EQ(find_manifest_faults(manifest), std::vector<std::string>{});
  const TemporaryFolder folder;
  write_file(folder.path() / manifest_name, to_json(manifest));
  write_file(folder.path() / "a", "12345678");
  const auto faults = find_checkpoint_faults(folder.path());
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("has 8 bytes where 9223372036854775804 were written"), std::string::npos) << faults[0];
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace weft
