#include <algorithm>
#include <tuple>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/tiktoken.h"

namespace weft {
namespace {

TokenizerJson merges_json(const TokenIds& ranks) {
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> all;  // ranks: of the whole, left and right
  std::vector<std::string> spelled(ranks.size());
  for (const auto& [token, rank] : ranks) {
    if (static_cast<std::size_t>(rank) >= spelled.size()) spelled.resize(static_cast<std::size_t>(rank) + 1);
    spelled[static_cast<std::size_t>(rank)] = to_byte_characters(token);
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(std::string_view(token).substr(0, cut));
      const auto right = left == ranks.end() ? left : ranks.find(std::string_view(token).substr(cut));
      if (right != ranks.end()) all.emplace_back(rank, left->second, right->second);
    }
  }
  std::sort(all.begin(), all.end());
  TokenizerJson merges = TokenizerJson::array();
  for (const auto& [whole, left, right] : all) {
    merges.push_back(spelled[static_cast<std::size_t>(left)] + " " + spelled[static_cast<std::size_t>(right)]);
  }
  return merges;
}

}  // namespace

std::string tiktoken_as_json(std::string_view text, const std::string& file, const TiktokenRules& rules) {
  const TokenIds ranks = read_ranks(text, file);
  TokenizerJson vocabulary = TokenizerJson::object(), added = TokenizerJson::array();
  for (const auto& [token, rank] : ranks) vocabulary[to_byte_characters(token)] = rank;
  for (const SpecialId& token : rules.special) {
    // Published ids leave gaps. `tokenizers` keeps the id of an added token only if the vocabulary has the token too.
    if (!vocabulary.emplace(token.text, token.id).second) {
      fail_request("\"{}\": the special token {} is spelled as a token of bytes is in tokenizer.json", file,
                   shown_value(token.text));
    }
    added.push_back({{"id", token.id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const TokenizerJson bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const TokenizerJson words = {
      {"type", "Split"}, {"pattern", {{"Regex", rules.expression}}}, {"behavior", "Isolated"}, {"invert", false}};
  return TokenizerJson{{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {words, bytes}}}},
                       {"post_processor", nullptr},
                       {"decoder", bytes},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", true},
                         {"vocab", vocabulary},
                         {"merges", merges_json(ranks)}}}}
             .dump(1) +
         "\n";
}

}  // namespace weft
