#include "trainer/data/text_vocabulary.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {

std::int64_t TextVocabulary::text_tokens() const {
  return tokenizer == nullptr ? size : std::min(size, tokenizer->vocab_size());
}

std::string TextVocabulary::identity() const {
  return name == "byte" || tokenizer == nullptr ? name : tokenizer->content_hash();
}

TextVocabulary open_vocabulary(const Config& config) {
  const std::string& name = config.data.tokenizer;
  return {open_tokenizer(name), name, config.model.vocab_size};
}

void require_fit(const Config& config, const TextVocabulary& vocabulary) {
  if (vocabulary.tokenizer == nullptr) return;
  const std::int64_t model = config.model.vocab_size, text = vocabulary.tokenizer->vocab_size();
  if (model > text && !config.data.padded_vocab) {
    fail_request(
        "model.vocab_size {} does not match data.tokenizer \"{}\", which has {} tokens: to this model they are other "
        "tokens. If it was made for this tokenizer and the {} tokens above are padding, set data.padded_vocab = true. "
        "If it was made for another, name that in data.tokenizer; \"none\" is for ids without a text",
        model, vocabulary.name, text, model - text);
  }
  if (model < text && vocabulary.name != "byte") {
    fail_request("model.vocab_size {} is less than the {} tokens of data.tokenizer \"{}\"; set it to {} or more", model,
                 text, vocabulary.name, text);
  }
}

}  // namespace weft
