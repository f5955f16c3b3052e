// Matches that Oniguruma gives, which the Python package `tokenizers` uses.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/pattern.h"

namespace weft::tokenizer_test {
namespace {

std::vector<std::string> matches(const char* expression, std::string_view text) {
  const Pattern pattern = Pattern::regex(expression, "here");
  PatternScratch scratch;
  std::vector<std::string> found;
  pattern.each_range(text, scratch, [&](std::size_t begin, std::size_t end, bool is_match) {
    if (is_match) found.emplace_back(text.substr(begin, end - begin));
  });
  return found;
}
using Texts = std::vector<std::string>;

TEST(TokenizerPattern, TakesTheClassesOfOniguruma) {
  EXPECT_EQ(matches(R"(\s+)", "a \u180e\u00a0\u3000\x0b"), (Texts{" ", "\u00a0\u3000\x0b"}));
  EXPECT_EQ(matches(R"([^\s]+)", "a \u180e"), (Texts{"a", "\u180e"}));
  EXPECT_EQ(matches(R"([\S]+)", "a \u180e\u2028"), (Texts{"a", "\u180e"}));
  EXPECT_EQ(matches(R"(\w+)", "a\u0301\u00b2 \u2160_\u203f \u2074"), (Texts{"a\u0301\u00b2", "\u2160_\u203f"}));
  EXPECT_EQ(matches(R"([\w]+)", "a\u0301\u00b2\u0661"), (Texts{"a\u0301", "\u0661"}));
  EXPECT_EQ(matches(R"(\d)", "1\u0661\u00b2"), (Texts{"1", "\u0661"}));
  EXPECT_EQ(matches(R"(\v)", "\x0b\n"), (Texts{"\x0b"}));
  // U+30FC has the script Common, and Hiragana and Katakana as extensions.
  EXPECT_EQ(matches(R"(\p{Katakana}+)", "\u30ab\u30fc"), (Texts{"\u30ab"}));
  EXPECT_EQ(matches(R"(\p{^L}|\u0062)", "ab1"), (Texts{"b", "1"}));
}

// The pattern of BLOOM, and members by the definition of a class inside a class.
TEST(TokenizerPattern, AClassInsideAClassAddsItsMembers) {
  EXPECT_EQ(matches(R"( ?[^(\s|[.,!?\u2026])]+)", "ab, c(d)|e\u2026f g."), (Texts{"ab", " c", "d", "e", "f", " g"}));
  EXPECT_EQ(matches(R"([a[b-d]\-[xy]]+)", "ea-bcdx ye"), (Texts{"a-bcdx", "y"}));
}

TEST(TokenizerPattern, RepeatsAsRuby) {
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "1234567"), (Texts{"1234567"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3})", "1234567"), (Texts{"123", "456", "7"}));
  EXPECT_EQ(matches(R"((?:ab){2}?c)", "ababc c"), (Texts{"ababc", "c"}));
  EXPECT_EQ(matches(R"(xa{,2})", "xaaa x"), (Texts{"xaa", "x"}));
  EXPECT_EQ(matches(R"([ab]{2}+c)", "ababac"), (Texts{"babac"}));
  EXPECT_EQ(matches(R"([ab]{2}+abc)", "ababc"), (Texts{"ababc"}));
  EXPECT_EQ(matches(R"(a++a)", "aaa"), Texts{});
}

TEST(TokenizerPattern, AnchorsAtLinesAndSkipsRepeatedEmptyMatches) {
  EXPECT_EQ(matches(R"(^b|a$)", "a\nb"), (Texts{"a", "b"}));
  EXPECT_EQ(matches(R"(.)", "a\n\u00e9"), (Texts{"a", "\u00e9"}));
  EXPECT_EQ(matches(R"(x*)", "axb"), (Texts{"", "x", ""}));
  EXPECT_EQ(matches(R"((?=\u00e9))", "\u00e9\u00e9"), (Texts{"", ""}));
  EXPECT_EQ(matches(R"((?i:'s|k))", "'\u017f'S\u212a"), (Texts{"'\u017f", "'S", "\u212a"}));
}

TEST(TokenizerPattern, RefusesWhatPcre2WouldMatchOtherwise) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([a[^bc]])", "has [ at byte 2: this class inside a class"},
      {R"([a[b[c]]])", "has [ at byte 4: this class inside a class"},
      {R"([a[[:alpha:]]])", "has [ at byte 3: this class inside a class"},
      {R"([a-[bc]])", "has [ at byte 3: a hyphen"},
      {R"([a[-b]])", "has [ at byte 2: a hyphen"},
      {R"([[a-]b])", "has ] at byte 4: a hyphen"},
      {R"([[a]-b])", "has ] at byte 3: a hyphen"},
      {R"([\w&&[^a]])", "has && at byte 3: the intersection of classes"},
      {R"([]a])", "a class begins with ]"},
      {R"(\bword)", R"(has \b at byte 0: this escape)"},
      {R"(\h)", R"(has \h at byte 0)"},
      {R"(\R)", R"(has \R at byte 0)"},
      {R"((a)\1)", R"(has \1 at byte 3)"},
      {R"([\W])", R"(has \W at byte 1: it is not supported inside a class)"},
      {R"((?<name>a))", "has (?<n at byte 0: this kind of group"},
      {R"(a(?i)b)", "has (?i) at byte 1"},
      {R"((*UCP)a)", "this kind of group"},
      {R"((?i:fuss))", "has ss at byte 6: without regard to case"},
      {R"({2})", "it repeats nothing"},
      {R"(a{x})", "it repeats nothing"},
      {R"(a{1,2}+?)", "a third repetition"},
      {R"(\xe9)", "it is not the code of a character"},
      {R"(\pL)", "stands in braces"},
      {R"(\p{Lx})", "is not understood by PCRE2"},
      {R"(\p{L}]+ [\p{L)", "stands in braces"},
      {R"([a-)", "the class is not closed"},
      {R"((a)", "is not understood by PCRE2"},
      {R"(a))", "no group is open"},
      {R"(a\)", "nothing follows"},
      {R"(+)", "is not understood by PCRE2"},
  };
  for (const auto& [expression, part] : cases) {
    const std::string message = refusal_of([&, text = expression] { Pattern::regex(text, "here"); }).value_or("");
    EXPECT_NE(message.find(part), std::string::npos) << expression << "\n" << message;
    EXPECT_TRUE(message.starts_with("here: ")) << message;
  }
}

// Exponential for a matcher that goes back.
TEST(TokenizerPattern, GivesUpOnPatternsThatTakeForever) {
  const Pattern pattern = Pattern::regex("(?:a+)+[bc]", "here");
  PatternScratch scratch;
  const auto message = refusal_of([&] { pattern.find(std::string(5000, 'a'), 0, scratch); });
  EXPECT_TRUE(message && message->find("the pattern (?:a+)+[bc] cannot be matched") != std::string::npos);
}

// The limit holds for each beginning of a match. This one takes 2^18 steps from each, without any hope.
TEST(TokenizerPattern, GivesUpSoonWhereEveryBeginningTakesLong) {
  const Pattern pattern = Pattern::regex("(?:a?){18}[xy]", "here");
  PatternScratch scratch;
  const auto message = refusal_of([&] { pattern.find(std::string(2000, 'a'), 0, scratch); });
  EXPECT_TRUE(message && message->find("cannot be matched") != std::string::npos);
}

TEST(TokenizerPattern, MatchesLongRuns) {
  const Pattern pattern = Pattern::regex(R"(\p{L}+|\s+(?!\S)|\s+)", "here");
  PatternScratch scratch;
  const std::string text = std::string(1'000'000, 'a') + std::string(1'000'000, ' ') + "b";
  std::vector<std::size_t> sizes;
  pattern.each_range(text, scratch, [&](std::size_t begin, std::size_t end, bool) { sizes.push_back(end - begin); });
  EXPECT_EQ(sizes, (std::vector<std::size_t>{1'000'000, 999'999, 1, 1}));
}

}  // namespace
}  // namespace weft::tokenizer_test
