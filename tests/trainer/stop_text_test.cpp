#include "trainer/inference/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "parallel/runtime/random.h"

namespace weft {
namespace {

// The definition on a whole text: it ends before the stop that is complete first, the longest of those that are.
std::pair<std::string, bool> cut(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// Texts of two letters, in which stops overlap themselves and one another, fed in pieces of any length.
TEST(StopText, GivesWhatStandsBeforeTheFirstStop) {
  const RandomStream random(3, "stop text");
  std::uint64_t next = 0;
  const auto below = [&](std::uint64_t n) { return random.bits(next++) % n; };
  const auto letters = [&](std::uint64_t length) {
    std::string text;
    for (std::uint64_t i = 0; i < length; ++i) text += below(2) == 0 ? 'a' : 'b';
    return text;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (std::uint64_t count = below(4); count > 0; --count) stops.push_back(letters(1 + below(7)));
    const std::string text = letters(below(40));
    const auto [expected, ends] = cut(text, stops);
    StopText stream(stops);
    std::string given;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t count = std::min<std::size_t>(1 + below(3), text.size() - at);
      given += stream.feed(text.substr(at, count));
      at += count;
      // What was given stays right whatever comes.
      ASSERT_TRUE(expected.starts_with(given)) << round;
    }
    given += stream.finish();
    ASSERT_EQ(given, expected) << round;
    ASSERT_EQ(stream.stopped(), ends) << round;
    stopped += ends ? 1 : 0;
  }
  EXPECT_GT(stopped, 500);
  EXPECT_LT(stopped, 2900);
}

TEST(StopText, HoldsBackNoMoreThanTheBeginningOfAStop) {
  StopText stream({"\n\n", "END"});
  EXPECT_EQ(stream.feed("ab"), "ab");
  EXPECT_EQ(stream.feed("\n"), "");
  EXPECT_EQ(stream.feed("E"), "\n");
  EXPECT_EQ(stream.feed("N"), "");
  EXPECT_EQ(stream.feed("x"), "ENx");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.feed("\n\nmore"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.feed("more"), "");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace weft
