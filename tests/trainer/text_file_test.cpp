// The files that are read as text and those that are not, and the models that text is for.
#include "trainer/data/text_file.h"
#include "tests/trainer/byte_vocabulary.h"

#include <gtest/gtest.h>

#include <functional>
#include <string_view>

#include "parallel/runtime/error.h"
#include "tests/trainer/evaluate_files.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/data/data.h"
#include "trainer/data/text_windows.h"
#include "trainer/inference/generation.h"

namespace weft {
namespace {

using std::string_view_literals::operator""sv;

std::string text_file_refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request) << error.what();
    return error.what();
  }
  return "accepted";
}

class TextFile : public testing::Test {
 protected:
  std::string file(const std::string& name, std::string_view bytes) const {
    write_file(folder_ / name, bytes);
    return (folder_ / name).string();
  }
  std::string refusal_of(std::string_view bytes) const {
    const std::string name = file("file", bytes);
    const std::string why = text_file_refusal([&] { open_text(name); });
    // Training and evaluation say the same, each of its own key.
    const auto expect_same = [&](const char* key, const std::function<void()>& read) {
      EXPECT_EQ(text_file_refusal(read), why == "accepted" ? why : key + why);
    };
    expect_same("data.train: ", [&] { TokenDataset(files_of({name}, 2, 1), byte_vocabulary(256)); });
    expect_same("--data: ", [&] { TextWindows({name}, 2, byte_vocabulary(256), Documents::join); });
    return why;
  }

  TemporaryFolder folder_;
};

// First bytes from the formats' specifications.
TEST_F(TextFile, WhatIsNoTextIsRefusedByItsFirstBytes) {
  const std::pair<std::string_view, const char*> cases[] = {
      {"MMIDIDX\0\0\1\0\0\0\0\0\0\0"sv, "the index of a dataset of Megatron"},
      {"\x1f\x8b\x08\x00\x00"sv, "compressed with gzip"},
      {"\x28\xb5\x2f\xfd\x24"sv, "compressed with zstd"},
      {"BZh91AY&SY"sv, "compressed with bzip2"},
      {"\xfd\x37\x7a\x58\x5a\x00"sv, "compressed with xz"},
      {"PK\x03\x04\x14"sv, "a zip archive"},
      {"PAR1\x15\x04"sv, "a table in Parquet"},
      {"ARROW1\0\0"sv, "a table in Arrow"},
      {"\x93NUMPY\x01\x00"sv, "an array of NumPy"},
      {"\xff\xfe"
       "a\0b\0"sv,
       "text in UTF-16"},
      {"{\"text\": \"one\"}\n{\"text\": \"two\"}\n"sv, "JSON lines"},
      {"{ \"text\": \"one\" }\r\n"sv, "JSON lines"},
      {"{\"text\": \"no end of line\"}"sv, "JSON lines"},
      {"\x01\x00\x02\x00\x03\x00"sv, "not text: byte 1 is NUL"},
  };
  for (const auto& [bytes, part] : cases) {
    const std::string why = refusal_of(bytes);
    EXPECT_NE(why.find(part), std::string::npos) << why;
    EXPECT_NE(why.find("Weft reads plain text"), std::string::npos) << why;
  }
  // The ids of Megatron's dataset, and its index beside them.
  file("corpus.idx", "MMIDIDX\0\0"sv);
  const std::string ids = file("corpus.bin", "\x35\x1a\x00\x00\x07\x00\x00\x00"sv);
  const std::string why = text_file_refusal([&] { open_text(ids); });
  EXPECT_NE(why.find("the token ids of a dataset of Megatron"), std::string::npos) << why;
}

TEST_F(TextFile, TextIsReadInAnyLanguageAndEncodingOfBytes) {
  const std::string late = std::string(8000, 'x') + std::string(1, '\0');
  for (const std::string_view bytes :
       {"plain"sv, "\xef\xbb\xbfwith a mark"sv, "W\xf6rter in Latin-1"sv, "{\n  \"name\": \"one object\"\n}\n"sv,
        "{\"it\" goes on"sv, "{x}\n"sv, "BZh, PK, PAR1"sv, "[1, 2]\n"sv, "\n{\"text\": 1}\n"sv,
        std::string_view(late)}) {
    EXPECT_EQ(refusal_of(bytes), "accepted") << bytes.substr(0, 40);
  }
}

// Of a large file and two small ones.
TEST_F(TextFile, FewerWindowsAreSpreadOverTheFiles) {
  const std::vector<std::string> files = {file("a", std::string(81, 'a')), file("b", std::string(31, 'b')),
                                          file("c", std::string(11, 'c'))};
  TextWindows windows(files, 2, byte_vocabulary(256), Documents::join);
  ASSERT_EQ(windows.count(), 40 + 15 + 5);
  windows.keep(100);
  EXPECT_EQ(windows.count(), 60);
  windows.keep(12);
  ASSERT_EQ(windows.count(), 12);
  EXPECT_EQ(windows.tokens(), 24);
  std::string read;
  std::vector<std::int32_t> tokens(2), targets(2);
  for (std::int64_t window = 0; window < 12; ++window) {
    windows.read(window, {tokens, targets, {}});
    read += static_cast<char>(tokens.front());
  }
  EXPECT_EQ(read, "aaaaaaaabbbc");
}

TEST_F(TextFile, MaskedDocumentsOfFilesWithoutThemAreTold) {
  DataConfig data;
  for (const std::string& name : {file("a", "some text"), file("ids", "abcd") + "#uint16", file("b", "a\0b"sv)}) {
    data.train.emplace_back(name);
  }
  EXPECT_EQ(unmarked_documents(data), "");
  data.documents = Documents::mask;
  const std::string told = unmarked_documents(data);
  EXPECT_NE(told.find("\"mask\""), std::string::npos) << told;
  EXPECT_NE(told.find("a\" (text), "), std::string::npos) << told;
  EXPECT_NE(told.find("#uint16\" (raw) have no ends of documents"), std::string::npos) << told;
}

TEST_F(TextFile, TokensOfAnUnknownTokenizerAreTold) {
  DataConfig data;
  data.train.emplace_back(file("a", "some text"));
  EXPECT_EQ(untold_tokenizer(data), "");
  const std::string ids = file("ids", "abcd") + "#uint16";
  data.train.emplace_back(ids);
  EXPECT_EQ(untold_tokenizer(data), "\"" + ids +
                                        "\" does not say which tokenizer made its tokens; data.tokenizer is "
                                        "taken to be the one");
  data.tokenizer = "none";
  EXPECT_EQ(untold_tokenizer(data), "");
}

// One sentence, whoever is asked: a model of 1,000 tokens of another tokenizer, and one of bytes with padding.
TEST_F(TextFile, AModelWhoseTokensAreNotBytesIsRefusedByAllThatReadText) {
  Config config = tiny_config("d e");
  config.model.vocab_size = 1000;
  config.data.padded_vocab = false;
  const std::string text = file("text", "warp and weft and warp");
  config.data.train = {text};
  const std::string why = text_file_refusal([&] { require_fit(config, open_vocabulary(config)); });
  for (const char* part :
       {"model.vocab_size 1000", "has 256 tokens", "the 744 tokens above", "data.padded_vocab = true"}) {
    EXPECT_NE(why.find(part), std::string::npos) << part << "\n" << why;
  }
  EXPECT_EQ(text_file_refusal([&] { evaluate(config, {text}); }), why);
  EXPECT_EQ(text_file_refusal([&] { generate(config, {.prompt = "a"}); }), why);
  config.data.padded_vocab = true;
  EXPECT_EQ(text_file_refusal([&] { require_fit(config, open_vocabulary(config)); }), "accepted");
  config.data.padded_vocab = false;
  config.model.vocab_size = 256;
  EXPECT_EQ(text_file_refusal([&] { require_fit(config, open_vocabulary(config)); }), "accepted");
}

}  // namespace
}  // namespace weft
