#include "trainer/tokenizer/bpe_model.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

[[noreturn]] void refuse_character(std::string_view character, std::string_view kind) {
  fail_request("the text has the {} {}, for which the vocabulary has neither a token nor an unknown token", kind,
               character);
}

}  // namespace

void append_vocabulary(const TokenIds& vocabulary, std::string& meaning) {
  std::vector<std::pair<std::int32_t, std::string_view>> sorted;
  for (const auto& [token, id] : vocabulary) sorted.emplace_back(id, token);
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [id, token] : sorted) meaning += fmt::format("{} {} {}\n", id, token.size(), token);
}

BpeModel::BpeModel(TokenIds vocabulary, MergeTable merges, BpeRules rules)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), rules_(std::move(rules)) {
  if (rules_.unk_token) unk_ = find(*rules_.unk_token);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    append_code_point(character, byte_alphabet[byte]);
    byte_ids_[byte] = find(character).value_or(-1);
    fallback_ids_[byte] = find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

std::optional<std::int32_t> BpeModel::find(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) return std::nullopt;
  return found->second;
}

// As BPE::merge_word of `tokenizers`. An unknown token is written when the next known one comes; the tokens of
// byte_fallback do not count as known there.
void BpeModel::begin_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  bool unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = rules_.words_are_bytes ? 1 : code_point_at(word, at).bytes;
    const std::string_view character = word.substr(at, bytes);
    at += bytes;
    const auto known = rules_.words_are_bytes ? byte_ids_[static_cast<unsigned char>(character.front())]
                                              : find(character).value_or(-1);
    if (known >= 0) {
      if (std::exchange(unknown, false)) ids.push_back(*unk_);
      ids.push_back(known);
      continue;
    }
    const std::string spelled = rules_.words_are_bytes ? to_byte_characters(character) : std::string(character);
    const auto fallback = [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)]; };
    if (rules_.byte_fallback &&
        std::all_of(spelled.begin(), spelled.end(), [&](char byte) { return fallback(byte) >= 0; })) {
      std::transform(spelled.begin(), spelled.end(), std::back_inserter(ids), fallback);
      continue;
    }
    if (!unk_) refuse_character(spelled, rules_.words_are_bytes ? "byte of the character" : "character");
    if (unknown && !rules_.fuse_unk) ids.push_back(*unk_);
    unknown = true;
  }
  if (unknown) ids.push_back(*unk_);
}

void BpeModel::encode(std::string_view word, WordScratch& scratch, std::vector<std::int32_t>& ids) const {
  const std::span<const std::int32_t> cached = scratch.cache.find(word);
  if (!cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return;
  }
  scratch.ids.clear();
  const std::optional<std::int32_t> whole =
      !rules_.ignore_merges ? std::nullopt
                            : find(rules_.words_are_bytes ? to_byte_characters(word) : std::string(word));
  if (whole) {
    scratch.ids.push_back(*whole);
  } else {
    begin_word(word, scratch.ids);
    merge_tokens(scratch.ids, merges_, scratch.merge);
  }
  scratch.cache.add(word, scratch.ids);
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

}  // namespace weft
