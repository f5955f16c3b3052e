// The format against bytes made by hand from its description, and against a second judge written in another language.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "parallel/runtime/error.h"
#include "tests/trainer/safetensors_judge.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {
namespace {

using namespace std::string_literals;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + std::string(data_bytes, '\x5a');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors({reinterpret_cast<const std::uint8_t*>(file.data()), file.size()}, std::ssize(file), "FILE");
}

std::string safetensors_refusal(const std::string& file) {
  try {
    parse(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "";
}

SafetensorsTensor tensor(std::string name, std::string dtype, std::vector<std::int64_t> shape) {
  return {std::move(name), std::move(dtype), std::move(shape), 0, 0};
}

// 87 bytes of JSON, so one blank; 88 = 0x58.
TEST(Safetensors, PrefixByteByByte) {
  const auto header = arrange_safetensors({tensor("w", "F32", {2, 1})});
  const std::string golden =
      "\x58\0\0\0\0\0\0\0"s +
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})"
      " ";
  EXPECT_EQ(safetensors_prefix(header), golden);
  EXPECT_EQ(header.data_begin, 96);
  EXPECT_EQ(parse(golden + "12345678"), header);
  EXPECT_EQ(safetensors_prefix(arrange_safetensors({}, {})), "\x08\0\0\0\0\0\0\0{}      "s);
}

// The reference's order: dtypes as its enumeration has them, backwards, then names; a scalar takes one element, a
// tensor with an extent of 0 none. 274 bytes of JSON and six blanks: 280 = 0x0118.
TEST(Safetensors, OrderOffsetsAndEmptyTensors) {
  const auto header = arrange_safetensors({tensor("c", "U8", {1}), tensor("b", "F32", {0, 7}), tensor("z", "BF16", {3}),
                                           tensor("d", "F64", {1}), tensor("a", "F32", {})},
                                          {});
  const std::string golden = "\x18\x01\0\0\0\0\0\0"s + R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                                                       R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
                                                       R"("b":{"dtype":"F32","shape":[0,7],"data_offsets":[12,12]},)"
                                                       R"("z":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]},)"
                                                       R"("c":{"dtype":"U8","shape":[1],"data_offsets":[18,19]}})"
                                                       "      ";
  EXPECT_EQ(safetensors_prefix(header), golden);
  EXPECT_EQ(parse(golden + std::string(19, 'x')), header);
  EXPECT_EQ(header.data_bytes(), 19);
  EXPECT_EQ(header.tensors[3].name, "z");
  EXPECT_EQ(header.tensors[3].begin, 12);
}

TEST(Safetensors, BitsOfEveryDtype) {
  const std::map<std::string, int> bits = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [dtype, expected] : bits) {
    EXPECT_EQ(safetensors_bits(dtype), expected) << dtype;
    EXPECT_EQ(safetensors_bytes(tensor("t", dtype, {3, 8})), 3 * expected) << dtype;
  }
  EXPECT_EQ(safetensors_bits("F16x"), std::nullopt);
  EXPECT_EQ(safetensors_bits(""), std::nullopt);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32}) {
    EXPECT_EQ(dtype_of_safetensors(safetensors_dtype(dtype)), dtype);
    EXPECT_EQ(safetensors_bits(safetensors_dtype(dtype)), 8 * size_of(dtype));
  }
  EXPECT_EQ(dtype_of_safetensors("I64"), std::nullopt);
}

struct SafetensorsCase {
  std::string file;
  std::string refusal;  // part of it; empty for a file that is sound
};

std::vector<SafetensorsCase> cases() {
  const auto entry = [](const std::string& text, std::size_t data, const std::string& refusal) {
    return SafetensorsCase{file_of(R"({"t":)" + text + "}", data), refusal};
  };
  const auto whole = [](const std::string& header, std::size_t data, const std::string& refusal) {
    return SafetensorsCase{file_of(header, data), refusal};
  };
  return {
      // Sound, however unusual.
      whole("{}", 0, ""),
      whole("{ \t\r\n} \n\t ", 0, ""),
      whole(R"({"__metadata__":{}})", 0, ""),
      whole(
          R"({"b":{"data_offsets":[1,4],"dtype":"I8","shape":[3]},"a":{"shape":[1],"data_offsets":[0,1],"dtype":"BOOL"}})",
          4, ""),
      whole(R"({"b":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"__metadata__":{"x":"\u00e9\n"}})", 1, ""),
      whole(R"({"":{"dtype":"U64","shape":[],"data_offsets":[0,8]}})", 8, ""),
      whole(R"({"\ud83d\ude00":{"dtype":"C64","shape":[1,1,1,1,1,1],"data_offsets":[0,8]}})", 8, ""),
      entry(R"({"dtype":"F32","shape":[0,4611686018427387904],"data_offsets":[0,0]})", 0, ""),
      entry(R"({"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]})", 3, ""),
      // Length.
      {"", "too few for a header"},
      {"\2\0\0\0\0\0\0"s, "too few for a header"},
      {"\0\0\0\0\0\0\0\0"s, "does not begin with {"},
      {"\3\0\0\0\0\0\0\0{}"s, "goes beyond the end"},
      {"\1\0\0\0\0\0\0\0{}"s, "no JSON"},
      {"\0\0\0\0\0\0\0\x10{}"s, "larger than the format allows"},
      {"\xff\xff\xff\xff\xff\xff\xff\xff{}"s, "larger than the format allows"},
      {"\x01\xe1\xf5\x05\0\0\0\0{}"s, "larger than the format allows (100000000)"},
      {"\x00\xe1\xf5\x05\0\0\0\0{}"s, "goes beyond the end"},
      // JSON.
      whole(" {}", 0, "does not begin with {"),
      whole("\xef\xbb\xbf{}", 0, "does not begin with {"),
      whole("[]", 0, "does not begin with {"),
      whole("{}{}", 0, "no JSON"),
      whole("{} x", 0, "no JSON"),
      whole("{}\0"s, 0, "no JSON"),
      whole("{\"a\xff\":1}", 0, "no JSON"),
      whole(R"({"__metadata__":{"x":"\ud83d"}})", 0, "no JSON"),
      whole("{/**/}", 0, "no JSON"),
      whole(R"({"__metadata__":{},})", 0, "no JSON"),
      // Keys.
      whole(R"({"__metadata__":null})", 0, "__metadata__ is null"),
      whole(R"({"__metadata__":{"x":1}})", 0, "__metadata__.x is 1, not a text"),
      whole(R"({"__metadata__":{"x":{}}})", 0, "__metadata__.x is an object, not a text"),
      whole(R"({"__metadata__":[]})", 0, "is a list"),
      whole(R"({"__metadata__":{"x":"1","x":"1"}})", 0, "the key x stands twice"),
      whole(R"({"__metadata__":{},"__metadata__":{}})", 0, "the key __metadata__ stands twice"),
      whole(
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2, "the key t stands twice"),
      whole(
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2, "the key t stands twice"),
      entry(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1,
            "the key dtype stands twice in tensor t"),
      entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]})", 1, "unknown key strides"),
      entry(R"({"shape":[1],"data_offsets":[0,1]})", 1, "needs a dtype"),
      entry(R"({"dtype":"U8","data_offsets":[0,1]})", 1, "needs a dtype"),
      entry(R"({"dtype":"U8","shape":[1]})", 1, "needs a dtype"),
      entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 1, "two data_offsets"),
      entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", 1, "two data_offsets"),
      // Kinds.
      entry("7", 0, "tensor t is 7, not an object"),
      entry("[]", 0, "tensor t is a list, not an object"),
      entry("false", 0, "tensor t is false, not an object"),
      entry(R"({"dtype":5,"shape":[1],"data_offsets":[0,1]})", 1, "dtype is 5, not a text"),
      entry(R"({"dtype":["U8"],"shape":[1],"data_offsets":[0,1]})", 1, "dtype is a list, not a text"),
      entry(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", 1, "shape is 1, not a list"),
      entry(R"({"dtype":"U8","shape":{},"data_offsets":[0,1]})", 1, "shape is an object, not a list"),
      entry(R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})", 1, "shape has a list, not a size"),
      entry(R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", 1, "shape has a text, not a size"),
      entry(R"({"dtype":"U8","shape":[true],"data_offsets":[0,1]})", 1, "shape has true, not a size"),
      entry(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", 1, "shape has 1.0, not a size"),
      entry(R"({"dtype":"U8","shape":[1e0],"data_offsets":[0,1]})", 1, "shape has 1e0, not a size"),
      entry(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1, "shape has -1, not a size"),
      entry(R"({"dtype":"U8","shape":[-0],"data_offsets":[0,0]})", 0, "shape has 0, not a size"),
      entry(R"({"dtype":"U8","shape":[NaN],"data_offsets":[0,1]})", 1, "no JSON"),
      entry(R"({"dtype":"U9","shape":[1],"data_offsets":[0,1]})", 1, "no dtype U9"),
      entry(R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", 4, "no dtype f32"),
      // Sizes.
      entry(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]})", 1, "not a size"),
      entry(R"({"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,1]})", 1, "not a size"),
      entry(R"({"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]})", 0, "its size overflows"),
      entry(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0, "its size overflows"),
      entry(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1, "ends within a byte"),
      entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4, "do not hold its 8 bytes"),
      entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4, "do not hold its 4 bytes"),
      entry(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})", 5, "begins at byte 1"),
      entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 3, "take 4 bytes, but 3"),
      entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 5, "take 4 bytes, but 5"),
      whole("{}", 1, "take 0 bytes, but 1"),
      whole(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3, "tensor b begins at byte 1 of the data, but what is before it ends at 2"),
      whole(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
          5, "tensor b begins at byte 3 of the data, but what is before it ends at 2"),
      whole(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
          2, "begins at byte 0 of the data, but what is before it ends at 2"),
  };
}

TEST(Safetensors, ReadsWhatTheFormatAllowsAndSaysWhatItDoesNot) {
  for (const SafetensorsCase& one : cases()) {
    const std::string said = safetensors_refusal(one.file);
    if (one.refusal.empty()) {
      EXPECT_EQ(said, "") << one.file;
    } else {
      EXPECT_TRUE(said.starts_with("FILE: ")) << one.file << "\n" << said;
      EXPECT_NE(said.find(one.refusal), std::string::npos) << one.file << "\n" << said;
    }
  }
}

TEST(Safetensors, AnotherJudgeAgrees) {
  if (!python_is_here()) GTEST_SKIP() << "there is no python3";
  const TemporaryFolder folder;
  const auto all = cases();
  std::vector<std::filesystem::path> files;
  for (const SafetensorsCase& one : all) {
    files.push_back(folder.path() / fmt::format("{:03}", files.size()));
    write_file(files.back(), one.file);
  }
  const auto opinions = judge_safetensors(files);
  ASSERT_EQ(opinions.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string& opinion = opinions.at(files[i].string());
    EXPECT_EQ(opinion.starts_with("OK ("), all[i].refusal.empty()) << all[i].file << "\n" << opinion;
  }
}

// What is written can be read, by both; no two names or texts that JSON has to escape are mixed up.
TEST(Safetensors, RandomHeadersThereAndBack) {
  const TemporaryFolder folder;
  std::mt19937 engine(7);
  const auto below = [&](int count) { return static_cast<int>(engine() % static_cast<unsigned>(count)); };
  const std::vector<std::string> pieces = {"a", "\"",      "\\", "\n",   "\x01", "/", "é",
                                           "😀", "blocks.", "0",  "\x7f", "{",    " "};
  const std::vector<std::string> dtypes = {"F32", "BF16", "F16", "F64", "I32", "U8", "BOOL", "I64", "F8_E4M3"};
  const auto text = [&] {
    std::string result;
    for (int count = below(6); count >= 0; --count)
      result += pieces[static_cast<std::size_t>(below(std::ssize(pieces)))];
    return result;
  };
  std::vector<std::filesystem::path> files;
  for (int round = 0; round < 40; ++round) {
    std::map<std::string, SafetensorsTensor> tensors;
    for (int count = below(12); count > 0; --count) {
      std::vector<std::int64_t> shape;
      for (int axes = below(4); axes > 0; --axes) shape.push_back(below(4));
      const std::string name = text();
      tensors[name] = tensor(name, dtypes[static_cast<std::size_t>(below(std::ssize(dtypes)))], shape);
    }
    std::vector<SafetensorsTensor> list;
    for (const auto& [name, one] : tensors) list.push_back(one);
    std::shuffle(list.begin(), list.end(), engine);
    std::map<std::string, std::string> metadata;
    for (int count = below(3); count > 0; --count) metadata[text()] = text();
    const auto header = arrange_safetensors(list, metadata);
    const std::string prefix = safetensors_prefix(header);
    EXPECT_EQ(prefix.size() % 8, 0u);
    const std::string file = prefix + std::string(static_cast<std::size_t>(header.data_bytes()), 'x');
    EXPECT_EQ(parse(file), header) << prefix;
    EXPECT_EQ(header.tensors.size(), list.size());
    files.push_back(folder.path() / fmt::format("{}", round));
    write_file(files.back(), file);
  }
  if (!python_is_here()) GTEST_SKIP() << "there is no python3 to read them as well";
  const auto opinions = judge_safetensors(files);
  EXPECT_EQ(opinions.size(), files.size());
  for (const auto& [file, opinion] : opinions) EXPECT_TRUE(opinion.starts_with("OK (")) << opinion;
}

TEST(Safetensors, NothingIsWrittenThatCouldNotBeRead) {
  const auto said = [](std::vector<SafetensorsTensor> tensors, std::map<std::string, std::string> metadata = {}) {
    try {
      arrange_safetensors(std::move(tensors), std::move(metadata));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(said({tensor("t", "U8", {1}), tensor("t", "F32", {1})}), "no second tensor can be named t");
  EXPECT_EQ(said({tensor("__metadata__", "U8", {1})}), "no second tensor can be named __metadata__");
  EXPECT_NE(said({tensor("\xff", "U8", {1})}).find("a name is no text"), std::string::npos);
  EXPECT_NE(said({}, {{"k", "\xc3"}}).find("a name is no text"), std::string::npos);
  EXPECT_EQ(said({tensor("t", "U7", {1})}), "tensor t: the format has no dtype U7");
  EXPECT_EQ(said({tensor("t", "U8", {-1})}), "tensor t: an extent is -1");
  EXPECT_EQ(said({tensor("t", "F4", {3})}), "tensor t ends within a byte");
  EXPECT_EQ(said({tensor("t", "U8", {INT64_MAX, 2})}), "tensor t: its size overflows");
  const std::int64_t large = INT64_MAX / 8;
  std::vector<SafetensorsTensor> many;
  for (int i = 0; i < 9; ++i) many.push_back(tensor(fmt::format("t{}", i), "U8", {large}));
  EXPECT_EQ(said(many), "tensor t8: the size of all tensors overflows");
  EXPECT_NE(said({tensor(std::string(100'000'001, 'n'), "U8", {1})}).find("larger than the format allows"),
            std::string::npos);
}

// Each takes time and memory in proportion to its size; what is said of it can be read.
TEST(Safetensors, AbsurdHeadersAreRefusedAtOnce) {
  const std::size_t large = 4'000'000;
  for (const std::string& header :
       {"{" + std::string(large, ' '), "{\"t\":" + std::string(large, '['),
        R"({"t":{"dtype":"F32","data_offsets":[0,4],"shape":)" + std::string(large, '['),
        R"({"t":{"dtype":")" + std::string(large, 'F') + R"(","data_offsets":[0,4],"shape":[]}})",
        "{\"" + std::string(large, 'n') + "\":1}", "{\"t\":" + std::string(large, '9') + "}",
        R"({"__metadata__":{"x":")" + std::string(large, '\\')}) {
    const std::string said = safetensors_refusal(file_of(header, 4));
    EXPECT_NE(said, "") << header.substr(0, 60);
    EXPECT_LT(said.size(), 1100u) << header.substr(0, 60);
  }
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i) {  // a quadratic search for a name would take a minute
    text +=
        fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i > 0 ? "," : "", i, i, i + 1);
  }
  const auto header = parse(file_of(text + "}", 50'000));
  ASSERT_EQ(header.tensors.size(), 50'000u);
  EXPECT_EQ(header.tensors[49'999].name, "t49999");
  EXPECT_EQ(safetensors_prefix(header).size() % 8, 0u);
}

}  // namespace
}  // namespace weft
