// The manifest there and back, each fault that it can have, and its checksum against a second XXH64.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <random>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/checkpoint_sample.h"

namespace weft {
namespace {

// XXH64 from its description (xxHash, doc/xxhash_spec.md), a byte at a time and seed 0.
std::uint64_t plain_xxh64(std::span<const std::uint8_t> bytes) {
  constexpr std::uint64_t p1 = 0x9E3779B185EBCA87, p2 = 0xC2B2AE3D27D4EB4F, p3 = 0x165667B19E3779F9,
                          p4 = 0x85EBCA77C2B2AE63, p5 = 0x27D4EB2F165667C5;
  const auto read = [&](std::size_t at, int count) {
    std::uint64_t value = 0;
    for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[at + static_cast<std::size_t>(i)];
    return value;
  };
  const auto round = [&](std::uint64_t lane, std::uint64_t input) { return std::rotl(lane + input * p2, 31) * p1; };
  std::size_t at = 0;
  std::uint64_t sum = p5;
  if (bytes.size() >= 32) {
    std::uint64_t lanes[4] = {p1 + p2, p2, 0, 0 - p1};
    for (; at + 32 <= bytes.size(); at += 32) {
      for (std::size_t i = 0; i < 4; ++i) lanes[i] = round(lanes[i], read(at + 8 * i, 8));
    }
    sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const std::uint64_t lane : lanes) sum = (sum ^ round(0, lane)) * p1 + p4;
  }
  sum += bytes.size();
  for (; at + 8 <= bytes.size(); at += 8) sum = std::rotl(sum ^ round(0, read(at, 8)), 27) * p1 + p4;
  if (at + 4 <= bytes.size()) {
    sum = std::rotl(sum ^ (read(at, 4) * p1), 23) * p2 + p3;
    at += 4;
  }
  for (; at < bytes.size(); ++at) sum = std::rotl(sum ^ (bytes[at] * p5), 11) * p1;
  sum = (sum ^ (sum >> 33)) * p2;
  sum = (sum ^ (sum >> 29)) * p3;
  return sum ^ (sum >> 32);
}

TEST(Checksum, IsXxh64HoweverBytesCome) {
  EXPECT_EQ(checksum(std::string_view()), 0xef46db3751d8e999u);
  EXPECT_EQ(checksum("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(checksum_text(checksum("abc")), "44bc2cf5ad770999");
  EXPECT_EQ(checksum_text(10), "000000000000000a");
  std::mt19937 engine(3);
  std::vector<std::uint8_t> bytes;
  RunningChecksum again;
  for (int size = 0; size < 200; ++size) {
    const std::uint64_t expected = plain_xxh64(bytes);
    EXPECT_EQ(checksum(bytes), expected) << size;
    again.reset();
    for (std::span<const std::uint8_t> rest = bytes; !rest.empty();) {
      const std::size_t piece = std::min<std::size_t>(engine() % 40, rest.size());
      again.add(rest.first(piece));
      rest = rest.subspan(piece);
    }
    EXPECT_EQ(again.value(), expected) << size;
    bytes.push_back(static_cast<std::uint8_t>(engine()));
  }
}

Manifest sample_manifest() {
  const TemporaryFolder folder;
  return write_sample(folder.path(), sample_tensors(1), 3);
}

std::string manifest_refusal(const std::string& text, ErrorKind kind = ErrorKind::request) {
  try {
    parse_manifest(text, "NAME");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_TRUE(std::string_view(error.what()).starts_with("NAME: ")) << error.what();
    return error.what();
  }
  return "";
}

TEST(Manifest, ThereAndBack) {
  Manifest manifest = sample_manifest();
  EXPECT_EQ(parse_manifest(to_json(manifest), "NAME"), manifest);
  manifest.progress = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, 0x1.fffffffffffffp-1000};
  manifest.mesh = {3, 2, 4, 1, 5, 8, 5};
  manifest.hashes = {"0123456789abcdef", "", "\" é"};
  manifest.model = {};
  manifest.data = {{"", ""}, {"quote \" back \\ \n \x01", "😀\u2028"}};
  for (SavedFile& file : manifest.files) file.checksum = UINT64_MAX;
  for (SavedTensor& tensor : manifest.tensors) {
    for (SavedBox& box : tensor.boxes) box.checksum = 0;
  }
  EXPECT_EQ(parse_manifest(to_json(manifest), "NAME"), manifest);
  Manifest bare;
  EXPECT_EQ(parse_manifest(to_json(bare), "NAME"), bare);
  // As before norms had a mean.
  EXPECT_EQ(to_json(bare).find("norm_trend"), std::string::npos);
}

TEST(Manifest, FindsTensorsByNameAndState) {
  const Manifest manifest = sample_manifest();
  for (const SavedTensor& tensor : manifest.tensors) EXPECT_EQ(manifest.find(tensor.name, tensor.state), &tensor);
  EXPECT_EQ(manifest.find("embedding.weight", "exp_avg"), nullptr);
  EXPECT_EQ(manifest.find("embedding"), nullptr);
  EXPECT_EQ(manifest.find("zzz"), nullptr);
}

// Every sentence that find_manifest_faults can say, with nothing else wrong where that can be.
TEST(Manifest, EachFaultIsNamed) {
  const Manifest sound = sample_manifest();
  EXPECT_TRUE(find_manifest_faults(sound).empty());
  const auto faults_of = [&](auto change) {
    Manifest manifest = sound;
    change(manifest);
    EXPECT_THROW(to_json(manifest), Error);
    return find_manifest_faults(manifest);
  };
  using Faults = std::vector<std::string>;
  const std::string q = "blocks.0.attention.q_proj.weight";
  // Tensor 0 has rows 0, 1-3 and 4-8 in files 0, 1 and 2, of 12 bytes each.
  const auto box = [](Manifest& manifest, std::size_t i) -> SavedBox& { return manifest.tensors[0].boxes[i]; };

  for (auto field :
       {&Progress::step, &Progress::samples, &Progress::tokens, &Progress::good_steps, &Progress::good_in_a_row}) {
    EXPECT_EQ(faults_of([&](Manifest& m) { m.progress.*field = -1; }), Faults{"its progress is not one of a run"});
  }
  for (double scale : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    EXPECT_EQ(faults_of([&](Manifest& m) { m.progress.loss_scale = scale; }),
              Faults{"its progress is not one of a run"});
  }
  for (const LossTrend trend : {LossTrend{-1, 1.0, 1.0}, LossTrend{1, double(NAN), 1.0}, LossTrend{1, 1.0, -1.0},
                                LossTrend{1, 1.0, double(INFINITY)}, LossTrend{1, 1.0, double(NAN)}}) {
    EXPECT_EQ(faults_of([&](Manifest& m) { m.progress.loss_trend = trend; }),
              Faults{"its progress is not one of a run"});
  }
  for (const NormTrend trend :
       {NormTrend{-1, 1.0}, NormTrend{1, -1.0}, NormTrend{1, double(NAN)}, NormTrend{1, double(INFINITY)}}) {
    EXPECT_EQ(faults_of([&](Manifest& m) { m.progress.norm_trend = trend; }),
              Faults{"its progress is not one of a run"});
  }
  EXPECT_EQ(faults_of([](Manifest& m) { m.mesh.tensor = 0; }), Faults{"its degrees form no mesh"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.mesh.tensor = m.mesh.pipeline = 1 << 16; }),
            Faults{"its degrees form no mesh"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.mesh.expert = m.mesh.expert_tensor = 1 << 16; }),
            Faults{"its degrees form no mesh"});
  EXPECT_NE(faults_of([](Manifest& m) { m.mesh.expert = 2; }).at(0).find("its mesh: expert 2"), std::string::npos);

  for (const char* name : {"", ".", "..", "../x", "a/b", "/x"}) {
    EXPECT_EQ(faults_of([&](Manifest& m) { m.files[3].name = name; }),
              Faults{fmt::format("\"{}\" is not a file of its folder", name)});
  }
  EXPECT_EQ(faults_of([](Manifest& m) { m.files[3].name = std::string("a\0b", 3); }).size(), 1u);
  EXPECT_EQ(faults_of([](Manifest& m) { m.files[3].name = m.files[0].name; }),
            Faults{"the file part-00000.safetensors stands twice"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.files[3].bytes = -1; }),
            Faults{"config.toml: its first 22 bytes are not inside -1"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.files[3].prefix_bytes = -1; }),
            Faults{"config.toml: its first -1 bytes are not inside 22"});
  EXPECT_EQ(faults_of([](Manifest& m) { ++m.files[3].prefix_bytes; }),
            Faults{"config.toml: its first 23 bytes are not inside 22"});
  EXPECT_EQ(faults_of([](Manifest& m) { --m.files[3].prefix_bytes; }),
            Faults{"bytes 21 to 21 of config.toml belong to no tensor"});

  EXPECT_EQ(faults_of([](Manifest& m) { std::swap(m.tensors[5], m.tensors[6]); }),
            Faults{"head.weight stands twice, or not in order"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.tensors[6].boxes.clear(), m.tensors[6].rows = 0; }),
            Faults{"router.loads: 0 x 1 elements"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.tensors[6].columns = -1; }), Faults{"router.loads: 4 x -1 elements"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.tensors.push_back(m.tensors.back()); }).at(0),
            "router.loads stands twice, or not in order");

  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 2).row_begin = -4; }),
            Faults{q + ": 5 rows from -4 are not inside its 9 rows"});
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 2).row_begin = 5; }),
            Faults{q + ": 5 rows from 5 are not inside its 9 rows"});
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 2).rows = INT64_MAX; }),
            Faults{fmt::format("{}: {} rows from 4 are not inside its 9 rows", q, INT64_MAX)});
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 2).rows = 0; }),
            Faults{q + ": 0 rows from 4 are not inside its 9 rows"});
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 1).row_begin = 0; }).at(0), q + ": rows 0 to 0 are saved twice");
  EXPECT_EQ(faults_of([&](Manifest& m) { m.tensors[0].boxes.erase(m.tensors[0].boxes.begin() + 1); }),
            Faults{q + ": rows 1 to 3 are missing"});
  EXPECT_EQ(faults_of([&](Manifest& m) { m.tensors[0].boxes.pop_back(); }), Faults{q + ": rows 4 to 8 are missing"});
  EXPECT_EQ(faults_of([&](Manifest& m) { m.tensors[0].boxes.clear(); }), Faults{q + ": rows 0 to 8 are missing"});
  EXPECT_EQ(faults_of([&](Manifest& m) { std::swap(m.tensors[0].boxes[0], m.tensors[0].boxes[1]); }),
            (Faults{q + ": rows 0 to 0 are missing", q + ": rows 0 to 0 are saved twice"}));
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 1).bytes = 35; }),
            Faults{q + ": 35 bytes cannot be 3 rows of 3 columns"});
  EXPECT_EQ(faults_of([&](Manifest& m) { m.tensors[0].columns = INT64_MAX / 2; }).size(), 3u);
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 1).file = 4; }), Faults{q + ": there is no file 4"});
  EXPECT_EQ(faults_of([&](Manifest& m) { box(m, 1).file = -1; }), Faults{q + ": there is no file -1"});
  const std::int64_t end = sound.files[1].bytes, prefix = sound.files[1].prefix_bytes;
  for (std::int64_t offset : {end - 35, prefix - 1, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(
        faults_of([&](Manifest& m) { box(m, 1).offset = offset; }),
        Faults{fmt::format("{}: 36 bytes from {} are not inside the tensors of part-00001.safetensors, which has {}", q,
                           offset, end)});
  }
  const auto shared =
      faults_of([&](Manifest& m) { box(m, 1).offset = box(m, 1).offset == prefix ? prefix + 1 : prefix; });
  EXPECT_TRUE(std::ranges::any_of(shared, [](const std::string& fault) {
    return fault.find("share bytes of part-00001.safetensors") != std::string::npos;
  })) << fmt::format("{}", fmt::join(shared, "\n"));
  const std::string state = "exp_avg of " + q;
  EXPECT_EQ(faults_of([](Manifest& m) { m.tensors[1].boxes.pop_back(); }), Faults{state + ": rows 7 to 8 are missing"});
  EXPECT_EQ(faults_of([](Manifest& m) { m.tensors.pop_back(); }).at(0).find("bytes "), 0u);
  EXPECT_EQ(faults_of([](Manifest& m) { m.files[2].bytes += 7; }),
            Faults{fmt::format("bytes {} to {} of part-00002.safetensors belong to no tensor", sound.files[2].bytes,
                               sound.files[2].bytes + 6)});
}

TEST(Manifest, WrongDocumentsAreRefused) {
  const std::string sound = to_json(sample_manifest());
  ASSERT_EQ(signed_again(sound), sound);
  const auto changed = [&](const std::string& from, const std::string& to, ErrorKind kind = ErrorKind::request) {
    std::string text = sound;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return manifest_refusal(signed_again(text.replace(at, from.size(), to)), kind);
  };
  struct Case {
    std::string from, to, said;
  };
  const std::vector<Case> cases = {
      {"\"version\": 1", "\"version\": \"1\"", "version of the manifest is \"1\", not an integer"},
      {"\"step\": 40", "\"steps\": 40", "progress has no step"},
      {"\"step\": 40", "\"step\": 40.0", "step of progress is 40.0, not an integer"},
      {"\"step\": 40", "\"step\": 9223372036854775808", "step of progress is 9223372036854775808, not an integer"},
      {"\"step\": 40", "\"step\": -40", "its progress is not one of a run"},
      {"\"loss_scale\": 1024.5", "\"loss_scale\": null", "loss_scale of progress is null, not a number"},
      {"\"loss_scale\": 1024.5", "\"loss_scale\": 1e999", "it is no JSON"},
      {"\"losses\": 38", "\"losses\": 38.5", "losses of loss_trend is 38.5, not an integer"},
      {"\"variance\": 0.125", "\"variance\": -1", "its progress is not one of a run"},
      {"\"norms\": 37", "\"norms\": null", "norms of norm_trend is null, not an integer"},
      {"\"pipeline\": 2", "\"pipeline\": 0", "pipeline of mesh is 0"},
      {"\"pipeline\": 2", "\"pipeline\": 4294967298", "pipeline of mesh is 4294967298"},
      {"\"pipeline\": 2", "\"pipeline\": 2147483647", "its degrees form no mesh"},
      {"\"1234\"", "1234", "data of the manifest is"},
      {"\"data\": {", "\"data\": 5, \"x\": {", "data of the manifest is 5, not an object"},
      {"\"files\": [", "\"files\": 5, \"x\": [", "files of the manifest is 5, not a list"},
      {"\"files\": [", "\"files\": [[],", "a file is not an object"},
      {"\"shape\":[9,3]", "\"shape\":[9]", "is [9], not a pair"},
      {"\"shape\":[9,3]", "\"shape\":[9,3,1]", "is [9,3,1], not a pair"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"I64\"", "has the dtype I64, which Weft does not save"},
      {"\"dtype\":\"F32\"", "\"dtype\":32", "dtype of a tensor is 32, not a text"},
      {"\"rows\":[1,4]", "\"rows\":[4,1]", "has rows [4, 1]"},
      {"\"rows\":[1,4]", "\"rows\":[-1,4]", "has rows [-1, 4]"},
      {"\"file\":0", "\"file\":-1", "is in file -1"},
      {"\"file\":0", "\"file\":4294967296", "is in file 4294967296"},
      {"\"tensors\": [", "\"tensors\": [,", "it is no JSON"},
      {"\"1234\"", "\"\xff\"", "it is no JSON"},
  };
  for (const Case& one : cases) {
    const std::string said = changed(one.from, one.to);
    EXPECT_NE(said.find(one.said), std::string::npos) << one.to << "\n" << said;
  }
  // Of another program; no damage.
  const ErrorKind unreadable = ErrorKind::unreadable;
  EXPECT_EQ(changed("\"weft checkpoint\"", "\"other\"", unreadable),
            "NAME: its format is \"other\", not \"weft checkpoint\"");
  EXPECT_EQ(changed("\"version\": 1", "\"version\": 2", unreadable),
            "NAME: it is of version 2; this Weft reads version 1");
  EXPECT_NE(changed("\"1234\"", std::string("\"\0\"", 3)).find("a byte of 0"), std::string::npos);
  for (const char* sum : {"0x00000000000000", "00000000000000000", "00FF000000000000", "+000000000000000", ""}) {
    std::string text = sound;
    const std::size_t at = text.find("\"xxh64\": \"") + 10;
    EXPECT_NE(manifest_refusal(signed_again(text.replace(at, 16, sum))).find("not a checksum"), std::string::npos)
        << sum;
  }
}

TEST(Manifest, DamagedTextIsToldFromWrongText) {
  const std::string sound = to_json(sample_manifest());
  std::string text = sound;
  text[text.find("1234")] = '2';
  EXPECT_NE(manifest_refusal(text).find("the file was changed or damaged"), std::string::npos);
  EXPECT_NE(manifest_refusal(signed_again(text)), sound);
  EXPECT_EQ(manifest_refusal(signed_again(text)), "");
  EXPECT_NE(manifest_refusal(sound + " ").find("damaged"), std::string::npos);
  EXPECT_NE(manifest_refusal(sound.substr(0, sound.size() - 1)).find("damaged"), std::string::npos);
  EXPECT_NE(manifest_refusal(sound.substr(0, sound.size() / 2)).find("does not end with a checksum"),
            std::string::npos);
  EXPECT_NE(manifest_refusal("").find("does not end with a checksum"), std::string::npos);
}

TEST(Manifest, AbsurdDocumentsAreRefusedAtOnce) {
  const std::string end = ",\n\"checksum\": \"0\"\n}\n";
  const std::size_t large = 5'000'000;
  const std::string head = R"({"format":"weft checkpoint","version":)";
  for (const std::string& text :
       {std::string(large, '['), head + std::string(large, '{'), head + std::string(large, '9'),
        head + "\"" + std::string(large, 'x') + "\"", head + "[" + std::string(large, '1') + "]"}) {
    const std::string said = manifest_refusal(signed_again(text + end));
    EXPECT_NE(said, "");
    EXPECT_LT(said.size(), 6'000'000u);
  }
  EXPECT_NE(manifest_refusal(signed_again(std::string(large, '[') + end)).find("nested deeper"), std::string::npos);
  // A bracket in a text nests nothing, an escaped quote ends none.
  Manifest manifest = sample_manifest();
  manifest.data["nested"] = "[[[[[[[[ \" [[[[[[[[ \\";
  EXPECT_EQ(parse_manifest(to_json(manifest), "NAME"), manifest);
}

}  // namespace
}  // namespace weft
