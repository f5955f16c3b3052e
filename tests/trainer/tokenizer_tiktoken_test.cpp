// Rank files of tiktoken, against its algorithm written down plainly.
#include <gtest/gtest.h>

#include <map>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tokenizer_sample.h"

namespace weft::tokenizer_test {
namespace {

std::string to_base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) {
      return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u;
    };
    const unsigned bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (int shift = 18; shift >= 0; shift -= 6) text += digits[bits >> shift & 63];
    for (std::size_t k = bytes.size() - i; k < 3; ++k) text[text.size() - (3 - k)] = '=';
  }
  return text;
}

// Ranks in no order of bytes, as in the published files.
std::map<std::string, std::int32_t> ranks() {
  std::map<std::string, std::int32_t> all;
  for (int i = 0; i < 256; ++i) all[std::string(1, static_cast<char>(i * 7 + 3))] = i;
  for (const char* token :
       {"th", "he", " t", "the", " th", " the", "ab", "bc", "abcd", "cd", "aa", "aaa", "vwxyz", "\xc3\xa9", "  "}) {
    all.emplace(token, static_cast<std::int32_t>(all.size()));
  }
  return all;
}

std::string rank_file() {
  std::vector<std::string> lines(ranks().size());
  for (const auto& [token, rank] : ranks()) lines[rank] = to_base64(token) + " " + std::to_string(rank) + "\n";
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

// byte_pair_merge of tiktoken: neighbours whose joined bytes have the lowest rank, the first of several.
std::vector<std::int32_t> encoded_word(const std::string& word) {
  const auto all = ranks();
  if (all.contains(word)) return {all.at(word)};
  std::vector<std::string> parts;
  for (const char byte : word) parts.emplace_back(1, byte);
  while (true) {
    std::size_t best = parts.size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = all.find(parts[i] + parts[i + 1]);
      if (found != all.end() && (best == parts.size() || found->second < all.at(parts[best] + parts[best + 1])))
        best = i;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& part : parts) ids.push_back(all.at(part));
  return ids;
}

std::shared_ptr<const Tokenizer> with_pattern(const std::string& text, const std::string& pattern) {
  return parse_tiktoken(text, "ranks", rules_of_pattern(text, "ranks", pattern));
}

TEST(TokenizerTiktoken, MergesByRank) {
  const auto tokenizer = with_pattern(rank_file(), "gpt2");
  for (const char* word :
       {"the", " the", "thethe", "abcd", "abc", "bcd", "aaaaaaa", "xabcdcd", "caf\u00e9", "    ", "vwxyz", "vwxyzv"}) {
    EXPECT_EQ(tokenizer->encode(word), encoded_word(word)) << word;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
  }
  EXPECT_EQ(tokenizer->vocab_size(), 271);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
}

// Words by the description of each pattern.
TEST(TokenizerTiktoken, SplitsByTheNamedPattern) {
  const auto pieces = [](const char* pattern, std::string_view text, const std::vector<std::string>& words) {
    std::vector<std::int32_t> expected;
    for (const std::string& word : words) {
      const auto ids = encoded_word(word);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(with_pattern(rank_file(), pattern)->encode(text), expected) << pattern;
  };
  pieces("gpt2", "aa(aa)   the", {"aa", "(", "aa", ")", "  ", " the"});
  pieces("cl100k_base", "(aaa  aa", {"(aaa", " ", " aa"});
  pieces("o200k_base", "aaBaa", {"aa", "Baa"});
  pieces("llama3", "aa\n\nthe", {"aa", "\n\n", "the"});
}

TEST(TokenizerTiktoken, IsOpenedByNameOrSidecar) {
  const TemporaryFolder folder;
  const std::string file = (folder / "my.tiktoken").string();
  write_file(file, rank_file());
  EXPECT_TRUE(
      has(refusal_of([&] { open_tokenizer(file); }).value_or(""), "name its pattern: \"" + file + "#PATTERN\""));
  EXPECT_TRUE(has(refusal_of([&] { open_tokenizer(file + "#gpt9"); }).value_or(""),
                  "\"gpt9\" is no pattern of tiktoken; known are gpt2, cl100k_base, o200k_base, llama3"));
  const auto named = open_tokenizer(file + "#gpt2");
  EXPECT_EQ(named->token_id("the"), 259);
  write_file(file + ".json", R"({"pattern": "\\s|\\S+", "special_tokens": {"<|endoftext|>": 300}})");
  const auto tokenizer = open_tokenizer(file);
  EXPECT_EQ(tokenizer->encode("the<|endoftext|>"), (std::vector<std::int32_t>{259, 300}));
  EXPECT_EQ(tokenizer->end_of_text(), 300);
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_NE(tokenizer->content_hash(), named->content_hash());
  write_file(folder / "gpt2.tiktoken", rank_file());
  EXPECT_EQ(open_tokenizer((folder / "gpt2.tiktoken").string())->content_hash(), named->content_hash());
}

// The reader of tokenizer.json, which is held against `tokenizers`, finds the ids of tiktoken's own algorithm.
TEST(TokenizerTiktoken, AsATokenizerJsonHasTheSameIds) {
  const TemporaryFolder folder;
  const std::string file = (folder / "gpt2.tiktoken").string();
  write_file(file, rank_file());
  const auto same = parse_tokenizer_json(tiktoken_as_json(file).value(), "made");
  std::string word;
  for (std::uint32_t state = 1, i = 0; i < 4000; ++i) {
    state = state * 1664525 + 1013904223;
    // One word of letters, by GPT-2's pattern.
    word += "abcdethwxyz"[(state >> 16) % 11];
    if (state >> 29 != 0) continue;
    EXPECT_EQ(same->encode(word), encoded_word(word)) << word;
    word.clear();
  }
  EXPECT_EQ(same->encode(" the  caf\u00e9\xff"), open_tokenizer(file)->encode(" the  caf\u00e9\xff"));
  // The ids of special tokens leave a gap, as those of cl100k_base do.
  write_file(file + ".json", R"({"pattern": "\\s|\\S+", "special_tokens": {"<|endoftext|>": 300}})");
  const auto marked = parse_tokenizer_json(tiktoken_as_json(file).value(), "made");
  EXPECT_EQ(marked->encode("the<|endoftext|> abcd"), open_tokenizer(file)->encode("the<|endoftext|> abcd"));
  EXPECT_EQ(marked->end_of_text(), 300);
  EXPECT_EQ(marked->vocab_size(), 301);
  write_file(file + ".json", "{\"pattern\": \".\", \"special_tokens\": {\"\u0120\": 301}}");
  EXPECT_TRUE(has(refusal_of([&] { tiktoken_as_json(file); }).value_or(""), "is spelled as a token of bytes"));
  write_file(file + ".json", R"({"pattern": ".", "special_tokens": {"<x>": 259}})");
  EXPECT_TRUE(has(refusal_of([&] { tiktoken_as_json(file); }).value_or(""), "the and <x> both have the id 259"));
  EXPECT_EQ(tiktoken_as_json("byte"), std::nullopt);
}

// The characters of this special token are also spellings of bytes.
TEST(TokenizerTiktoken, DecodesSpecialTokensToThemselves) {
  const auto tokenizer = parse_tiktoken(
      rank_file(), "ranks",
      rules_of_sidecar("ranks",
                       "{\"pattern\": \".\", \"special_tokens\": {\"<|d\u00e9but|>\": 300, \"\u0120\": 301}}"));
  for (const char* text : {"a<|d\u00e9but|>b", "\u0120", "d\u00e9but"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  EXPECT_EQ(tokenizer->encode("<|d\u00e9but|>\u0120"), (std::vector<std::int32_t>{300, 301}));
}

TEST(TokenizerTiktoken, RefusesFaultyFiles) {
  const auto message = [](const std::string& text) {
    return refusal_of([&] { with_pattern(text, "gpt2"); }).value_or("");
  };
  const std::string text = rank_file();
  for (const char* line :
       {"YQ 300", "YQ== x", "YQ==", "YQ==  300", "YQ== -1", "YQ== 99999999999", "Y=== 300", "YQ== 300 1", "=== 300"}) {
    EXPECT_TRUE(has(message(text + line + "\n"), "line 272 is not a token in base64")) << line;
  }
  EXPECT_TRUE(has(message(text + "dGhl 300\n"), "line 272 repeats a token"));
  EXPECT_TRUE(has(message(text + "dGhlIA== 5\n"), "both have the id 5"));
  EXPECT_TRUE(has(message(text.substr(text.find('\n') + 1)), "has no token for the byte 0x03"));
  EXPECT_EQ(message(text.substr(0, text.size() - 1)), "");
  // Its pairs would be searched in quadratic time.
  EXPECT_TRUE(has(message(text + std::string(4'000'000, 'Y') + " 300\n"), "line 272 has a token of 3000000 bytes"));
}

}  // namespace
}  // namespace weft::tokenizer_test
