// Every format of tokens against files that the test writes number by number, and the choice of the format by the name.
#include <gtest/gtest.h>

#include "parallel/runtime/checksum.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/token_file.h"

namespace weft {
namespace {

class TokenFormats : public testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) const {
    write_file(folder_ / name, bytes);
    return folder_ / name;
  }
  std::string write_megatron(const std::string& prefix, const PlainFiles& files) const {
    write(prefix + ".idx", files.index);
    write(prefix + ".bin", files.data);
    return folder_ / prefix;
  }
  std::string refusal(const std::string& name, std::optional<std::int64_t> vocab_size = std::nullopt) const {
    return token_refusal([&] { TokenFile(name, vocab_size).check(); });
  }

  TemporaryFolder folder_;
};

std::vector<std::int64_t> read_all(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids);
  return {ids.begin(), ids.end()};
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

// Everything a TokenFile says about documents and sequences, by counting them off.
void expect_documents(const TokenFile& file, const std::vector<PlainDocument>& documents, bool sequences_known) {
  ASSERT_EQ(read_all(file), plain_tokens(documents));
  ASSERT_EQ(file.documents(), std::ssize(documents));
  std::int64_t token = 0, sequence = 0;
  std::vector<std::int32_t> lengths;
  for (std::int64_t d = 0; d < file.documents(); ++d) {
    EXPECT_EQ(file.document_begin(d), token);
    std::int64_t length = 0;
    for (const auto& ids : documents[static_cast<std::size_t>(d)]) {
      if (sequences_known) {
        EXPECT_EQ(file.sequence_begin(sequence++), token + length);
        lengths.push_back(static_cast<std::int32_t>(ids.size()));
      }
      length += std::ssize(ids);
    }
    if (!sequences_known) lengths.push_back(static_cast<std::int32_t>(length));
    for (const std::int64_t end = token + length; token < end; ++token) EXPECT_EQ(file.document_of(token), d);
  }
  EXPECT_EQ(file.document_begin(file.documents()), token);
  EXPECT_EQ(file.sequences(), std::ssize(lengths));
  EXPECT_EQ(file.index()->sequence_lengths(), lengths);
  EXPECT_EQ(file.sequence_begin(file.sequences()), token);
  const auto ids = plain_tokens(documents);
  EXPECT_EQ(file.check(), *std::ranges::max_element(ids));
}

TEST_F(TokenFormats, ReadsWhatMegatronsBuilderWrote) {
  const PlainFiles golden = golden_megatron(), plain = plain_megatron(golden_documents(), 8);
  ASSERT_EQ(plain.index, golden.index);
  ASSERT_EQ(plain.data, golden.data);
  const std::string prefix = write_megatron("corpus_text_document", golden);
  for (const char* ending : {"", ".idx", ".bin"}) {
    const TokenFile file(prefix + ending);
    EXPECT_EQ(file.format(), TokenFormat::megatron);
    EXPECT_EQ(file.type(), TokenType::uint16);
    EXPECT_EQ(file.name(), prefix + ending);
    expect_documents(file, golden_documents(), true);
  }
}

TEST_F(TokenFormats, ReadsEveryTypeOfMegatron) {
  std::mt19937 chance(3);
  const std::pair<int, std::int64_t> types[] = {{1, 256},      {2, 128},      {3, 32768},
                                                {4, 1L << 31}, {5, 1L << 31}, {8, 65536}};
  for (const auto& [code, end] : types) {
    for (int round = 0; round < 20; ++round) {
      std::vector<PlainDocument> documents = random_documents(chance, 6, end);
      documents.push_back({{end - 1}});  // the largest id
      const std::string prefix = fmt::format("{}_{}", code, round);
      expect_documents(TokenFile(write_megatron(prefix, plain_megatron(documents, code))), documents, true);
    }
  }
}

TEST_F(TokenFormats, ReadsPiecesFromAnywhere) {
  std::vector<std::int64_t> ids(200000);
  std::iota(ids.begin(), ids.end(), 0);
  const TokenFile file(write_megatron("x", plain_megatron({{ids}}, 4)));
  std::mt19937 chance(4);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t first = static_cast<std::int64_t>(chance() % ids.size());
    std::vector<std::int32_t> to(chance() % (ids.size() - static_cast<std::size_t>(first) + 1));
    file.read(first, to);
    for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], first + static_cast<std::int64_t>(i));
  }
}

TEST_F(TokenFormats, RefusesFloatsAndImagesByName) {
  expect_contains(refusal(write_megatron("a", plain_megatron({{{1, 2}}}, 6))),
                  "its elements are float64 (type code 6)");
  expect_contains(refusal(write_megatron("b", plain_megatron({{{1, 2}}}, 7))),
                  "its elements are float32 (type code 7)");
  PlainFiles files = golden_megatron();
  files.index += std::string(3, '\0');
  expect_contains(refusal(write_megatron("c", files)), "a multimodal dataset, with a mode for each of its 3 sequences");
}

TEST_F(TokenFormats, NamesTheMissingHalfOfADataset) {
  const PlainFiles golden = golden_megatron();
  const std::string index = write("i.idx", golden.index), data = write("d.bin", golden.data);
  const std::string prefix = index.substr(0, index.size() - 4);
  for (const std::string& name : {index, prefix}) expect_contains(refusal(name), prefix + ".bin\": no such file");
  expect_contains(refusal(data.substr(0, data.size() - 4)), "d.idx\": no such file");
  expect_contains(refusal(data), "no header of llm.c, and no index");
  expect_contains(refusal(folder_ / "none.idx"), "none.idx\": no such file");
  expect_contains(refusal(folder_ / "none"), "none\": No such file or directory");
  write_megatron("both", golden);
  expect_contains(refusal(write("both", "a text")), "a file, and beside it the dataset");
}

TEST_F(TokenFormats, ReadsBothKindsOfLlmC) {
  const std::vector<std::int64_t> small = {0, 1, 50256, 65535}, large = {0, 128255, 2147483647};
  const TokenFile gpt2(write("gpt2.bin", plain_llm_c(20240520, 1, small, 2)));
  EXPECT_EQ(gpt2.format(), TokenFormat::llm_c);
  EXPECT_EQ(gpt2.type(), TokenType::uint16);
  EXPECT_EQ(read_all(gpt2), small);
  EXPECT_EQ(gpt2.documents(), 1);
  const TokenFile llama(write("llama", plain_llm_c(20240801, 7, large, 4)));
  EXPECT_EQ(llama.type(), TokenType::uint32);
  EXPECT_EQ(read_all(llama), large);
  EXPECT_EQ(llama.check(), 2147483647);

  expect_contains(refusal(write("version", plain_llm_c(20240520, 2, small, 2))), "version 2 of llm.c's tokens");
  expect_contains(refusal(write("seven", plain_llm_c(20240801, 1, small, 4))), "Weft reads version 7");
  expect_contains(refusal(write("eval.bin", plain_llm_c(20240522, 1, small, 2))), "examples of an evaluation of llm.c");
  expect_contains(refusal(write("none.bin", plain_llm_c(20240520, 1, {}, 2))), "0 tokens");
  const std::string whole = plain_llm_c(20240520, 1, small, 2);
  expect_contains(refusal(write("more", whole + "x")), "take 1032 bytes, but the file has 1033");
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(whole.data()), whole.size());
  for (std::size_t size = 12; size < whole.size(); ++size) {
    expect_contains(token_refusal([&] { parse_llm_c(memory_source("cut", bytes.first(size))); }), "the file has");
  }
  // Too short for a header, it is no file of llm.c; as text it has a NUL.
  EXPECT_FALSE(parse_llm_c(memory_source("cut", bytes.first(11))));
  expect_contains(refusal(write("cut", whole.substr(0, 11))), "not text");
}

TEST_F(TokenFormats, ReadsNumbersWithoutAHeaderOnlyByTheirType) {
  std::string bytes;
  for (const std::uint64_t id : {513, 7, 65535, 0}) put(bytes, id, 2);
  const std::string name = write("shard.bin", bytes);
  const TokenFile file(name + "#uint16");
  EXPECT_EQ(file.format(), TokenFormat::raw);
  EXPECT_EQ(read_all(file), (std::vector<std::int64_t>{513, 7, 65535, 0}));
  EXPECT_EQ(read_all(TokenFile(name + "#uint32")), (std::vector<std::int64_t>{7 * 65536 + 513, 65535}));
  EXPECT_EQ(read_all(TokenFile(name + "#uint8")).size(), 8u);
  EXPECT_EQ(file.documents(), 1);
  EXPECT_EQ(file.document_of(3), 0);

  expect_contains(refusal(name), "add their type");
  expect_contains(refusal(name + "#float32"), "\"float32\" is no type of tokens");
  expect_contains(refusal(name + "#uint61"), "types are uint8, int8, int16, uint16, int32, uint32, int64");
  expect_contains(refusal(name + "#int16"), "token 2 has the id -1, which is outside 0 to 2147483647");
  expect_contains(refusal(write("odd", bytes + "x") + "#uint16"), "9 bytes are no whole number of uint16 tokens");
  const std::vector<std::int64_t> ids(4, 1);
  expect_contains(refusal(write("llm", plain_llm_c(20240520, 1, ids, 2)) + "#uint16"), "has the header of llm.c");
  expect_contains(refusal(write("x.npy", "\x93NUMPY\x01\x00 data") + "#uint16"), "has the header of a NumPy array");
  // A "#" in the name of a file is one, unless a type follows.
  EXPECT_EQ(TokenFile(write("c#notes", "text")).format(), TokenFormat::text);
}

TEST_F(TokenFormats, ReadsDatatroveWithItsDocuments) {
  std::mt19937 chance(5);
  for (const int width : {2, 4}) {
    for (int round = 0; round < 20; ++round) {
      const std::vector<PlainDocument> documents = random_documents(chance, 7, width == 2 ? 65536 : 200000);
      const PlainFiles files = plain_datatrove(documents, width);
      const std::string name = write(fmt::format("{}_{}.ds", width, round), files.data);
      write(fmt::format("{}_{}.ds.index", width, round), files.index);
      const TokenFile file(name);
      EXPECT_EQ(file.format(), TokenFormat::datatrove);
      EXPECT_EQ(file.type(), width == 2 ? TokenType::uint16 : TokenType::uint32);
      expect_documents(file, documents, false);
      EXPECT_EQ(read_all(TokenFile(name + (width == 2 ? "#uint16" : "#uint32"))), plain_tokens(documents));
      expect_contains(refusal(name + (width == 2 ? "#uint32" : "#uint16")), "was asked for, but by its index");
    }
  }
  expect_contains(refusal(write("alone.ds", "1234")), "alone.ds.index\" is missing");
  expect_contains(refusal(folder_ / "alone.ds#uint16"), "alone.ds.index\" is missing");
}

TEST_F(TokenFormats, ReadsTextAByteAToken) {
  const std::string text = "It was \xc3\xa9t\xc3\xa9.";
  const TokenFile file(write("text", text), 256);
  EXPECT_EQ(file.format(), TokenFormat::text);
  std::vector<std::int64_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<std::uint8_t>(c));
  EXPECT_EQ(read_all(file), bytes);
  // As TokenDataset::contents says it, on which checkpoints rely.
  EXPECT_EQ(file.content(), fmt::format("13 bytes, xxh64 {:016x}", checksum(text)));
  expect_contains(refusal(write("json", "{\"text\": \"x\"}\n")), "JSON lines");
  expect_contains(refusal(write("empty", "")), "the file is empty");
}

TEST_F(TokenFormats, NamesTheFirstIdOutsideTheVocabulary) {
  const std::string prefix = write_megatron("x", plain_megatron({{{5, 6}}, {{7, 99, 100, 101}}}, 8));
  EXPECT_EQ(refusal(prefix, 102), "accepted");
  EXPECT_EQ(refusal(prefix, 101),
            "\"" + prefix +
                ".bin\": token 5 has the id 101, which is outside the vocabulary of 101 tokens; the data are of "
                "another tokenizer or damaged");
  expect_contains(refusal(prefix, 100), "token 4 has the id 100");
  const std::string wide = write_megatron("wide", plain_megatron({{{1, 1L << 31}}}, 5));
  expect_contains(refusal(wide), "token 1 has the id 2147483648, which is outside 0 to 2147483647");
  const std::string negative = write_megatron("negative", plain_megatron({{{1, -1}}}, 4));
  expect_contains(refusal(negative), "token 1 has the id -1");
  // Only ids that are read are judged.
  std::vector<std::int32_t> one(1);
  TokenFile(negative).read(0, one);
  EXPECT_EQ(one[0], 1);
}

TEST_F(TokenFormats, ContentChangesWithEveryByteAndNotWithTheName) {
  const PlainFiles golden = golden_megatron();
  const std::string content = TokenFile(write_megatron("a", golden)).content();
  EXPECT_TRUE(content.starts_with("Megatron, 13 uint16 tokens, 26 bytes, xxh64 ")) << content;
  expect_contains(content, ", index 102 bytes, xxh64 ");
  EXPECT_EQ(TokenFile(write_megatron("b", golden)).content(), content);
  PlainFiles other = golden;
  other.data[3] ^= 1;
  EXPECT_NE(TokenFile(write_megatron("c", other)).content(), content);
  // The same tokens in other documents.
  EXPECT_NE(TokenFile(write_megatron("d", plain_megatron({{{1, 2, 3, 0}, {4, 5, 0, 6, 7, 8, 9, 10, 0}}}, 8))).content(),
            content);
}

}  // namespace
}  // namespace weft
