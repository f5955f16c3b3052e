// Documents as a dataset of token ids (indexed_writer.h), with what is known of it beside (token_facts.h).
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "trainer/data/documents.h"
#include "trainer/data/token_facts.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {

struct TokenizeRequest {
  std::string tokenizer = {};  // as open_tokenizer takes it
  std::string prefix = {};     // of the dataset
  bool prompts = false;        // the documents have prompts
  bool end_documents = true;   // append the token that ends a text, if the tokenizer has one
  std::size_t threads = 1;
};

struct TokenizeProgress {
  std::int64_t position = 0, bytes = 0;  // of the files, packed
  std::int64_t text_bytes = 0, documents = 0, tokens = 0;
};

// Writes "prefix.bin", "prefix.idx" and "prefix.json", and of documents with a prompt "prefix.loss" (token_source.h):
// prompt and text are encoded each by itself, and the loss counts the text and the end. The bytes do not depend on the
// number of threads. Documents without a token are left out. Nothing stands under the final names until all is written.
// Throws Error (request) for a dataset that exists, for files without a document, and as the reader and the tokenizer.
TokenFacts tokenize(DocumentReader& documents, const TokenizeRequest& request,
                    const std::function<void(const TokenizeProgress&)>& on_progress = {});

}  // namespace weft
