#include "trainer/tokenizer/added_tokens.h"

#include <algorithm>
#include <limits>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {

std::vector<AddedToken> read_added_tokens(const TokenizerJson& json, const std::string& place) {
  std::vector<AddedToken> tokens;
  for (std::size_t i = 0; i < json.size(); ++i) {
    JsonFields fields(json[i], fmt::format("{}: added_tokens[{}]", place, i));
    AddedToken token;
    const std::int64_t id = fields.integer("id");
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) fail_request("{} is {}", fields.place_of("id"), id);
    token.id = static_cast<std::int32_t>(id);
    token.content = fields.text("content");
    if (token.content.empty()) fail_request("{} is empty", fields.place_of("content"));
    token.special = fields.flag("special", false);
    token.single_word = fields.flag("single_word", false);
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    token.normalized = fields.flag("normalized", !token.special);
    fields.finish();
    tokens.push_back(std::move(token));
  }
  return tokens;
}

bool TextTrie::add(std::string_view text, std::int32_t value) {
  require(!text.empty(), "a searched text is not empty");
  first_[static_cast<unsigned char>(text.front())] = true;
  std::size_t node = 0;
  for (const char byte : text) {
    const auto& next = nodes_[node].next;
    const auto found = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == byte; });
    if (found != next.end()) {
      node = static_cast<std::size_t>(found->second);
    } else {
      nodes_[node].next.emplace_back(byte, static_cast<std::int32_t>(nodes_.size()));
      node = nodes_.size();
      nodes_.emplace_back();
    }
  }
  if (nodes_[node].value >= 0) return false;
  nodes_[node].value = value;
  return true;
}

std::optional<std::pair<std::int32_t, std::size_t>> TextTrie::longest_at(std::string_view text, std::size_t at) const {
  std::optional<std::pair<std::int32_t, std::size_t>> longest;
  std::size_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto& next = nodes_[node].next;
    const auto found = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == text[i]; });
    if (found == next.end()) break;
    node = static_cast<std::size_t>(found->second);
    if (nodes_[node].value >= 0) longest = {nodes_[node].value, i + 1 - at};
  }
  return longest;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const TextNormalizer& normalizer, const std::string& place)
    : tokens_(std::move(tokens)) {
  PatternScratch scratch;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    const std::optional<std::string> normal =
        token.normalized ? normalizer.normalized(token.content, scratch) : std::nullopt;
    forms_.push_back(normal ? *normal : token.content);
    if (forms_.back().empty())
      fail_request("{}: nothing is left of the added token {} in normal form", place, token.content);
    any_[token.normalized] = true;
    if (!tries_[token.normalized].add(forms_.back(), static_cast<std::int32_t>(i))) {
      fail_request("{}: two added tokens are searched as {}", place, forms_.back());
    }
    if (token.single_word && !word_) word_ = Pattern::regex(fmt::format("[{}]", rust_word_class), place);
  }
}

bool AddedTokens::beside_word(std::string_view text, std::size_t begin, std::size_t end,
                              PatternScratch& scratch) const {
  const auto is_word = [&](std::size_t at, std::size_t bytes) {
    return word_->find(text.substr(at, bytes), 0, scratch).has_value();
  };
  if (begin > 0) {
    const std::size_t bytes = code_point_before(text, begin).bytes;
    if (is_word(begin - bytes, bytes)) return true;
  }
  return end < text.size() && is_word(end, code_point_at(text, end).bytes);
}

// As AddedVocabulary::find_matches of `tokenizers`: the next token is searched behind the content of the last one, also
// if that one takes more white space.
void AddedTokens::cut(std::string_view text, bool normalized, bool special_is_plain, PatternScratch& scratch,
                      const PartSink& sink) const {
  const TextTrie& trie = tries_[normalized];
  std::size_t done = 0;
  for (std::size_t at = any_[normalized] ? 0 : text.size(); at < text.size();) {
    const auto found = trie.may_begin_with(text[at]) ? trie.longest_at(text, at) : std::nullopt;
    if (!found) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found->first)];
    std::size_t begin = at, end = at + found->second;
    at = end;
    if (special_is_plain && token.special) continue;
    if (token.single_word && beside_word(text, begin, end, scratch)) continue;
    // White space up to `done` was looked at before: without that a run of such tokens would take quadratic time.
    if (token.lstrip) {
      begin = done + without_trailing(text.substr(done, std::max(begin, done) - done), is_white_space).size();
    }
    if (token.rstrip) end = text.size() - without_leading(text.substr(std::max(end, done)), is_white_space).size();
    if (begin >= end) continue;  // the last token took all of this one
    if (done < begin) sink({-1, text.substr(done, begin - done), done});
    sink({token.id, {}, begin});
    done = end;
  }
  if (done < text.size()) sink({-1, text.substr(done), done});
}

}  // namespace weft
