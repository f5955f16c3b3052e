// Against the definition: search all pairs for the lowest rank, merge the first of these, and begin again.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "parallel/runtime/random.h"
#include "trainer/tokenizer/bpe_model.h"

namespace weft::tokenizer_test {
namespace {

using Merges = std::map<std::pair<std::int32_t, std::int32_t>, PairMerge>;

std::vector<std::int32_t> merged_by_definition(std::vector<std::int32_t> ids, const Merges& merges) {
  while (true) {
    std::size_t best = ids.size();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found == merges.end()) continue;
      if (best == ids.size() || found->second.rank < merges.at({ids[best], ids[best + 1]}).rank) best = i;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Tokens are strings over four letters, so that many pairs give the same token.
TEST(TokenizerMerge, FollowsTheDefinition) {
  const RandomStream random(11, "tokenizer merges");
  std::uint64_t draw = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::map<std::string, std::int32_t> ids = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
    Merges merges;
    for (std::uint32_t rank = 0; rank < 60; ++rank) {
      const auto left = static_cast<std::int32_t>(random.bits(draw++) % tokens.size());
      const auto right = static_cast<std::int32_t>(random.bits(draw++) % tokens.size());
      const std::string token = tokens[left] + tokens[right];
      const auto [place, is_new] = ids.emplace(token, static_cast<std::int32_t>(tokens.size()));
      if (is_new) tokens.push_back(token);
      merges[{left, right}] = {rank ^ 5u, place->second};  // halves may have a higher rank than the whole
    }
    MergeTable table(merges.size());
    for (const auto& [pair, merge] : merges) table.add(pair.first, pair.second, merge);
    MergeScratch scratch;
    for (const std::size_t length : {0, 1, 2, 3, 17, 48, 49, 300}) {
      std::vector<std::int32_t> word;
      for (std::size_t i = 0; i < length; ++i) word.push_back(static_cast<std::int32_t>(random.bits(draw++) % 4));
      const std::vector<std::int32_t> expected = merged_by_definition(word, merges);
      merge_tokens(word, table, scratch);
      ASSERT_EQ(word, expected) << "round " << round << ", length " << length;
    }
  }
}

TEST(TokenizerMerge, FindsPairsAndReplacesThem) {
  MergeTable table(1000);
  for (std::int32_t i = 0; i < 1000; ++i) table.add(i, 7 * i, {static_cast<std::uint32_t>(i), i + 1});
  table.add(5, 35, {99, 100});
  EXPECT_EQ(table.size(), 1000u);
  EXPECT_EQ(table.find(5, 35)->id, 100);
  for (std::int32_t i = 6; i < 1000; ++i) ASSERT_EQ(table.find(i, 7 * i)->rank, static_cast<std::uint32_t>(i));
  EXPECT_EQ(table.find(35, 5), nullptr);
  EXPECT_EQ(MergeTable().find(0, 0), nullptr);
}

// 10^12 steps for an algorithm that searches or moves the whole word after each merge.
TEST(TokenizerMerge, MergesLongWords) {
  MergeTable table(20);
  for (std::int32_t level = 0; level < 20; ++level)
    table.add(level, level, {static_cast<std::uint32_t>(level), level + 1});
  std::vector<std::int32_t> word(1 << 20, 0);
  MergeScratch scratch;
  merge_tokens(word, table, scratch);
  EXPECT_EQ(word, std::vector<std::int32_t>{20});
}

TEST(TokenizerMerge, KeepsWordsApart) {
  WordCache cache;
  const std::vector<std::int32_t> ids = {1, 2, 3};
  const std::string longest(WordCache::longest_word, 'x');
  EXPECT_TRUE(cache.find("word").empty());
  cache.add("word", ids);
  cache.add(longest, ids);
  cache.add(longest + "x", ids);
  EXPECT_EQ(cache.find("word").size(), 3u);
  EXPECT_EQ(cache.find(longest)[2], 3);
  EXPECT_TRUE(cache.find(longest + "x").empty());
  for (const char* other : {"wor", "words", "Word"}) EXPECT_TRUE(cache.find(other).empty());
  // More words than places: each is found with its own ids or not at all.
  for (std::int32_t i = 0; i < 200'000; ++i) cache.add("w" + std::to_string(i), std::vector{i});
  int found = 0;
  for (std::int32_t i = 0; i < 200'000; ++i) {
    const auto cached = cache.find("w" + std::to_string(i));
    if (cached.empty()) continue;
    ++found;
    ASSERT_EQ(cached[0], i);
  }
  EXPECT_GT(found, 30'000);
  // Some of these pairs share a place: the beginning of a word is another word.
  for (std::int32_t i = 0; i < 400'000; ++i) {
    const std::string word = "v" + std::to_string(i);
    cache.add(word + "x", ids);
    ASSERT_TRUE(cache.find(word).empty());
  }
}

}  // namespace
}  // namespace weft::tokenizer_test
