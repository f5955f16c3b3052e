#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::int64_t> id_in(const Tokenizer& tokenizer, const std::string& token) {
  return token.empty() ? std::nullopt : std::optional<std::int64_t>(tokenizer.token_id(token));
}

// The class of Llama reads a tokenizer.model. Unless told, it puts a begin in front of each text, which Weft does not.
// It also adds the tokens <s> and </s> where the model lacks them.
TokenizerSettings of_sentencepiece(const std::string& name, const Tokenizer* tokenizer) {
  Json json = {{"tokenizer_class", "LlamaTokenizer"},
               {"legacy", true},
               {"add_bos_token", false},
               {"add_eos_token", false},
               {"clean_up_tokenization_spaces", false}};
  if (tokenizer == nullptr) return {json.dump(2) + "\n"};
  json["add_prefix_space"] = tokenizer->decode(tokenizer->encode("a")).starts_with(' ');
  const SentencePieceMarks marks = sentencepiece_marks(name);
  for (const auto& [key, piece] : {std::pair{"unk_token", &marks.unknown}, std::pair{"bos_token", &marks.begin},
                                   std::pair{"eos_token", &marks.end}, std::pair{"pad_token", &marks.padding}}) {
    json[key] = piece->empty() ? Json() : Json(*piece);
  }
  // A ligature and two spaces, which the usual rules of SentencePiece make two letters and one space.
  const std::string read = tokenizer->decode(tokenizer->encode("a  \ufb01"));
  return {json.dump(2) + "\n",
          tokenizer->vocab_size() - 1,
          id_in(*tokenizer, marks.begin),
          id_in(*tokenizer, marks.end),
          id_in(*tokenizer, marks.padding),
          read.ends_with("fi") || read.find("a  ") == std::string::npos};
}

}  // namespace

TokenizerSettings settings_of(const std::string& name) {
  std::shared_ptr<const Tokenizer> tokenizer;
  // A part that only others compute is copied all the same.
  const auto unknown = refusal_of([&] { tokenizer = open_tokenizer(name); });
  if (name.ends_with(".model")) return of_sentencepiece(name, tokenizer.get());
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto end = unknown ? std::nullopt : tokenizer->end_of_text();
  if (end) json["eos_token"] = tokenizer->decode(std::array{*end});
  return {json.dump(2) + "\n", unknown ? std::nullopt : std::optional(tokenizer->vocab_size() - 1), std::nullopt, end};
}

}  // namespace weft
