// Words of pre-tokenizers, against pre_tokenize_str of the Python package `tokenizers`.
#include <gtest/gtest.h>

#include "tests/trainer/tokenizer_sample.h"
#include "trainer/tokenizer/pre_tokenizer.h"

namespace weft::tokenizer_test {
namespace {

using Words = std::vector<std::string>;

Words words_of(const Json& json, std::string_view text) {
  const PreTokenizer pre_tokenizer(&json, "pre_tokenizer");
  PatternScratch scratch;
  Words words;
  pre_tokenizer.each_word(text, true, scratch, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Json split_at(const char* text, const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"String", text}}}, {"behavior", behavior}, {"invert", invert}};
}
Json sequence_of(const Json& first, const Json& second) {
  return {{"type", "Sequence"}, {"pretokenizers", {first, second}}};
}
Json metaspace(const char* scheme, bool split = true) {
  return {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
}

TEST(TokenizerWords, BehaveAsThePackage) {
  struct Case {
    const char* behavior;
    Words words, inverted;
  };
  const Words isolated = {"the", "-", "final", "-", "-", "countdown"},
              joined = {"the", "-", "final", "--", "countdown"};
  const Words before = {"the-", "final-", "-", "countdown"}, behind = {"the", "-final", "-", "-countdown"};
  const Case cases[] = {{"Isolated", isolated, isolated},
                        {"Removed", {"the", "final", "countdown"}, {"-", "-", "-"}},
                        {"MergedWithPrevious", before, behind},
                        {"MergedWithNext", behind, before},
                        {"Contiguous", joined, joined}};
  for (const Case& each : cases) {
    EXPECT_EQ(words_of(split_at("-", each.behavior), "the-final--countdown"), each.words) << each.behavior;
    EXPECT_EQ(words_of(split_at("-", each.behavior, true), "the-final--countdown"), each.inverted) << each.behavior;
  }
}

TEST(TokenizerWords, AreCutByEachKind) {
  const Json white = {{"type", "WhitespaceSplit"}}, whitespace = {{"type", "Whitespace"}};
  const Json numbers = {{"type", "Digits"}, {"individual_digits", false}},
             digits = {{"type", "Digits"}, {"individual_digits", true}};
  const Json marks = {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
  EXPECT_EQ(words_of(white, "a \u180e\u2003b"), (Words{"a", "\u180e", "b"}));
  EXPECT_EQ(words_of(whitespace, "it's a\u200db \u00b2 x\u0301!?"),
            (Words{"it", "'", "s", "a\u200db", "\u00b2", "x\u0301", "!?"}));
  EXPECT_EQ(words_of(numbers, "a12\u0663b\u2165"), (Words{"a", "12\u0663", "b", "\u2165"}));
  EXPECT_EQ(words_of(digits, "a12"), (Words{"a", "1", "2"}));
  // U+061D became punctuation in Unicode 14.
  EXPECT_EQ(words_of(marks, "a!?b$c\u061d"), (Words{"a", "!?", "b", "$", "c\u061d"}));
}

TEST(TokenizerWords, BeginWithAPrefixWhereTheSchemeSaysSo) {
  EXPECT_EQ(words_of(metaspace("always"), " a  b"), (Words{"\u2581a", "\u2581", "\u2581b"}));
  EXPECT_EQ(words_of(metaspace("never"), "a  b "), (Words{"a", "\u2581", "\u2581b", "\u2581"}));
  EXPECT_EQ(words_of(sequence_of(split_at("-", "Isolated"), metaspace("first")), "a b-c d"),
            (Words{"\u2581a", "\u2581b", "-", "c", "\u2581d"}));
  EXPECT_EQ(words_of(sequence_of(split_at("-", "Removed"), metaspace("first", false)), "-a b"), (Words{"a\u2581b"}));
}

// Bytes as such if ByteLevel is the last step, otherwise as characters.
TEST(TokenizerWords, AreBytesBehindByteLevel) {
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json plain = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}};
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(words_of(sequence_of(digits, plain), "a1 2"), (Words{" a", " 1", " ", " 2"}));
  EXPECT_EQ(words_of(sequence_of(bytes, split_at("\u0120", "MergedWithPrevious")), "a b  c"),
            (Words{"a", "\u0120", "b", "\u0120", "\u0120", "c"}));
}

TEST(TokenizerWords, BehindASpecialTokenDoNotBeginTheText) {
  const Json model = {
      {"type", "BPE"}, {"vocab", {{"\u2581", 0}, {"a", 1}, {"\u2581a", 2}, {"<s>", 3}}}, {"merges", {"\u2581 a"}}};
  const Json special = {{"id", 3}, {"content", "<s>"}, {"special", true}};
  const auto tokenizer = sample({{"model", model}, {"pre_tokenizer", metaspace("first")}, {"added_tokens", {special}}});
  EXPECT_EQ(tokenizer->encode("a<s>a a"), (std::vector<std::int32_t>{2, 3, 1, 2}));
  EXPECT_EQ(tokenizer->encode("<s>a"), (std::vector<std::int32_t>{3, 1}));
}

}  // namespace
}  // namespace weft::tokenizer_test
