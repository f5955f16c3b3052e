// Against merges that BpeTrainer of the Python package `tokenizers` 0.23.3 learned, with the alphabet of ByteLevel.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/trainer/tokenizer_sample.h"
#include "trainer/tokenizer/bpe_training.h"
#include "trainer/tokenizer/pattern.h"

namespace weft::tokenizer_test {
namespace {

// Repeated letters, pairs that are equally frequent, and tokens that arise from two different pairs.
constexpr std::string_view training_texts[] = {"aaaaaa aaaa aaa baab abab abba  cab",
                                               "abc bca cab; abc bca\n\n\ncab aab aabb",
                                               "\u65e5\u672c\u8a9e \u65e5\u672c <|end|> \ufffd 1234 12"};
const std::vector<std::string> specials = {"<|end|>", "<|pad|>"};

constexpr std::string_view golden_merges[] = {
    "a a",
    "a b",
    "\304\240 aa",
    "c ab",
    "\304\240 b",
    "\304\240 ab",
    "1 2",
    "c a",
    "\302\245 \303\246",
    "\303\246 \304\271",
    "\304\212 \304\212",
    "\304\240 cab",
    "\304\276 \302\254",
    "aa aa",
    "\304\240aa b",
    "\304\240b ca",
    "\302\245\303\246 \304\276\302\254",
    "\303\246\304\271 \302\245\303\246\304\276\302\254",
    "< |",
    "b a",
    "e n",
    "| >",
    "\302\252 \305\200",
    "\302\277 \302\275",
    "\303\250 \302\252\305\200",
    "\303\257 \302\277\302\275",
    "\304\240 \303\246\304\271\302\245\303\246\304\276\302\254",
    "\304\240 <|",
    "\304\240 \303\257\302\277\302\275",
    "aa b",
    "ab c",
    "\304\240aa a",
    "\304\240aa aa",
    "\304\240b aab",
    "\304\240ab c",
    "\304\240ab ab",
    "\304\240ab ba",
    "12 3",
    "\304\212\304\212 \304\212",
    "aaaa aa",
    "\304\240aab b",
    "\303\246\304\271\302\245\303\246\304\276\302\254 \303\250\302\252\305\200",
    "en d"};

std::string train_bpe(std::span<const std::string_view> texts, std::int64_t vocab_size, const std::string& pattern,
                      std::span<const std::string> special_tokens) {
  BpeTraining training(pattern);
  for (const std::string_view text : texts) training.add(text);
  return training.train(vocab_size, special_tokens);
}

Json trained(std::int64_t vocab_size) {
  return Json::parse(train_bpe(training_texts, vocab_size, std::string(llama3_word_pattern), specials));
}

TEST(TokenizerTraining, LearnsTheMergesOfThePackage) {
  const Json model = trained(400)["model"];
  ASSERT_EQ(model["merges"].size(), std::size(golden_merges));
  for (std::size_t i = 0; i < std::size(golden_merges); ++i) EXPECT_EQ(model["merges"][i], golden_merges[i]) << i;
  EXPECT_EQ(model["vocab"].size(), 301u);
  EXPECT_EQ(model["vocab"]["<|pad|>"], 1);
  EXPECT_EQ(model["vocab"]["!"], 2);
  EXPECT_EQ(model["vocab"]["aa"], 258);
  // Stops at the asked size, with the same first merges.
  const Json small = trained(270)["model"];
  EXPECT_EQ(small["vocab"].size(), 270u);
  EXPECT_TRUE(std::equal(small["merges"].begin(), small["merges"].end(), model["merges"].begin()));
}

// A special token that stands in the texts keeps its id and its merge takes no room.
TEST(TokenizerTraining, MergesTheCharactersOfASpecialTokenIntoIt) {
  const std::string_view text = "<x> <x> <x>y";
  const Json model = Json::parse(train_bpe({&text, 1}, 300, "\\S+|\\s+", {{"<x>"}}))["model"];
  EXPECT_EQ(model["merges"], Json({"< x", "<x >", "<x> y"}));
  EXPECT_EQ(model["vocab"].size(), 259u);
  EXPECT_EQ(model["vocab"]["<x>"], 0);
}

TEST(TokenizerTraining, DoesNotDependOnTheOrderOfTexts) {
  std::vector<std::string_view> reversed(std::rbegin(training_texts), std::rend(training_texts));
  const std::string pattern(llama3_word_pattern);
  EXPECT_EQ(train_bpe(reversed, 300, pattern, specials), train_bpe(training_texts, 300, pattern, specials));
}

TEST(TokenizerTraining, WritesATokenizer) {
  const auto tokenizer = parse_tokenizer_json(
      train_bpe(training_texts, 300, std::string(llama3_word_pattern), {{"<|endoftext|>"}}), "trained");
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  for (const std::string_view text : training_texts) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->encode(" aab<|endoftext|> cab"), (std::vector<std::int32_t>{271, 0, 268}));
}

TEST(TokenizerTraining, RefusesRequestsWithoutAnswer) {
  const auto message = [](std::int64_t size, std::vector<std::string> special, std::string_view text = "aa aa") {
    return refusal_of([&] { train_bpe({&text, 1}, size, std::string(llama3_word_pattern), special); }).value_or("");
  };
  EXPECT_TRUE(has(message(257, {"<x>"}), "no room for 1 special tokens, 256 bytes and a merge; give at least 258"));
  EXPECT_EQ(message(258, {"<x>"}), "");
  EXPECT_TRUE(has(message(300, {""}), "special token 0 is empty"));
  EXPECT_TRUE(has(message(300, {"<x>\xff"}), "special token 0 is empty or no UTF-8"));
  EXPECT_TRUE(has(message(300, {"a"}), "is one character"));
  EXPECT_TRUE(has(message(300, {"<x>", "<x>"}), "given twice"));
  EXPECT_TRUE(has(message(300, {}, ""), "nothing to learn"));
  EXPECT_TRUE(
      has(refusal_of([] { BpeTraining("[a&&b]"); }).value_or(""), "training of a tokenizer: the pattern [a&&b]"));
}

// Each merge of a word of n letters that moves or counts all of it again would take 10^10 steps.
TEST(TokenizerTraining, LearnsFromLongWords) {
  std::string text;
  for (std::int64_t i = 0; i < 100'000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
  const std::string_view view = text;
  const auto tokenizer =
      parse_tokenizer_json(train_bpe({&view, 1}, 2000, std::string(llama3_word_pattern), {}), "trained");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(tokenizer->encode(text).size(), 40'000u);
}

}  // namespace
}  // namespace weft::tokenizer_test
