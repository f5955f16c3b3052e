#include "trainer/tokenizer/bpe_tokenizer.h"

#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"

namespace weft {

BpeTokenizer::Loan BpeTokenizer::borrowed() const {
  const auto give_back = [this](Workspace* used) {
    const std::lock_guard lock(mutex_);
    idle_.emplace_back(used);
  };
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) idle_.push_back(std::make_unique<Workspace>());
  Loan workspace(idle_.back().release(), give_back);
  idle_.pop_back();
  return workspace;
}

BpeTokenizer::BpeTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  if (parts_.pre_tokenizer.asks_for_beginning() && !parts_.normalizer.empty()) {
    fail_request("\"{}\": pre_tokenizer: a Metaspace with prepend_scheme first behind a normalizer is not supported",
                 parts_.file);
  }
  const std::vector<AddedToken>& added = parts_.added.all();
  for (const auto& [token, id] : parts_.model.vocabulary()) set_token(id, token, token);
  for (std::size_t i = 0; i < added.size(); ++i) {
    const auto [place, is_new] = added_ids_.emplace(added[i].content, added[i].id);
    if (!is_new) fail_request("\"{}\": two added tokens are {}", parts_.file, added[i].content);
    const std::string& form = parts_.added.searched_form(i);
    set_token(added[i].id, added[i].content, parts_.added_are_plain ? to_byte_characters(form) : form);
  }
  for (const std::vector<std::int32_t>& ids : {parts_.frame.before, parts_.frame.after}) {
    for (const std::int32_t id : ids) {
      if (!has_token(id)) {
        fail_request("\"{}\": post_processor: no token has the id {}", parts_.file, id);
      }
    }
  }
  end_of_text_ = find_end_of_text();
}

void BpeTokenizer::set_token(std::int32_t id, const std::string& spelling, const std::string& decoded) {
  if (id < 0 || id >= most_token_ids) {
    fail_request("\"{}\": the token {} has the id {}; ids lie in 0 .. {}", parts_.file, spelling, id,
                 most_token_ids - 1);
  }
  if (id >= vocab_size()) place_of_id_.resize(static_cast<std::size_t>(id) + 1, -1);
  std::int32_t& place = place_of_id_[static_cast<std::size_t>(id)];
  if (place < 0) {
    place = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(decoded);
    return;
  }
  std::string& token = tokens_[static_cast<std::size_t>(place)];
  if (token != spelling) {
    fail_request("\"{}\": the tokens {} and {} both have the id {}", parts_.file, token, spelling, id);
  }
  token = decoded;
}

std::optional<std::int32_t> BpeTokenizer::find_end_of_text() const {
  const std::optional<std::int32_t> named = parts_.end_of_text ? token_id(*parts_.end_of_text) : std::nullopt;
  if (named) return named;
  for (const std::string_view name : usual_ends) {
    for (const AddedToken& token : parts_.added.all()) {
      if (token.special && token.content == name) return token.id;
    }
  }
  return std::nullopt;
}

std::optional<std::int32_t> BpeTokenizer::token_id(std::string_view token) const {
  for (const TokenIds* ids : {&added_ids_, &parts_.model.vocabulary()}) {
    const auto found = ids->find(token);
    if (found != ids->end()) return found->second;
  }
  return std::nullopt;
}

void BpeTokenizer::append(std::string_view text, SpecialTokens special, std::vector<std::int32_t>& ids) const {
  const std::optional<std::string> replaced = replace_malformed(text);
  const bool plain = special == SpecialTokens::plain_text;
  const Loan workspace = borrowed();
  PatternScratch& scratch = workspace->pattern;
  const PreTokenizer::WordSink add_word = [&](std::string_view word) {
    parts_.model.encode(word, workspace->word, ids);
  };
  parts_.added.cut(replaced ? *replaced : text, false, plain, scratch, [&](const AddedTokens::Part& part) {
    if (part.id >= 0) return ids.push_back(part.id);
    const std::optional<std::string> normal = parts_.normalizer.normalized(part.text, scratch);
    parts_.added.cut(normal ? *normal : part.text, true, plain, scratch, [&](const AddedTokens::Part& inner) {
      if (inner.id >= 0) return ids.push_back(inner.id);
      parts_.pre_tokenizer.each_word(inner.text, part.begin + inner.begin == 0, scratch, add_word);
    });
  });
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (!has_token(id)) {
      fail_request("the tokenizer \"{}\" has no token with the id {}; it has {} ids", parts_.file, id, vocab_size());
    }
    tokens.push_back(tokens_[static_cast<std::size_t>(place_of_id_[static_cast<std::size_t>(id)])]);
  }
  return parts_.decoder.decode(std::move(tokens));
}

std::string BpeTokenizer::description() const {
  return fmt::format("{}, {} tokens, {} merges, {} added tokens (\"{}\")", parts_.kind, vocab_size(),
                     parts_.model.merges(), parts_.added.all().size(), parts_.file);
}

}  // namespace weft
