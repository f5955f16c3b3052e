// The tokens of a run: those of its tokenizer, within the vocabulary of its model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/config/config.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {

struct TextVocabulary {
  std::shared_ptr<const Tokenizer> tokenizer;  // null for data.tokenizer = "none": ids without a text
  std::string name;                            // data.tokenizer
  std::int64_t size = 0;                       // ids of data lie below: model.vocab_size

  // Ids that stand for a text: the model may have more, which pad its vocabulary.
  std::int64_t text_tokens() const;
  // "byte", "none", or the hash of the tokenizer: equal for equal ids.
  std::string identity() const;
};

// Opens the tokenizer of data.tokenizer. Throws Error (request) if it cannot be opened (tokenizer.h).
TextVocabulary open_vocabulary(const Config& config);

// Throws Error (request) for a model that has other tokens than `vocabulary`: its losses and its generated text would
// mean nothing. train, eval, generate and check call this. Benchmarks do not, since seconds and bytes do not depend on
// the meaning of tokens. A vocabulary larger than the tokenizer's passes if data.padded_vocab says that the rest is
// padding. A smaller one passes for bytes, of which a text may lack some.
void require_fit(const Config& config, const TextVocabulary& vocabulary);

}  // namespace weft
