// Documents as a dataset of token ids (indexed_writer.h), with what is known of it beside (token_facts.h).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/documents.h"
#include "trainer/data/token_facts.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {

struct TokenizeRequest {
  std::string tokenizer = {};                         // as open_tokenizer takes it
  std::string prefix = {};                            // of the dataset
  bool losses = false;                                // the rules of the documents have losses
  std::vector<std::string> marks = {};                // tokens that the tokenizer must have
  SpecialTokens special = SpecialTokens::recognised;  // in texts
  bool begin_documents = true;                        // put in front what the tokenizer puts there (TextFrame::before)
  bool end_documents = true;                          // append the token that ends a text, if the tokenizer has one
  std::size_t threads = 1;
  std::int64_t kept_bytes = std::int64_t{512} << 20;  // text between two places to go on from
  std::function<bool()> stop = {};                    // asked after each batch: whether to stop there
};

struct TokenizeProgress {
  std::int64_t position = 0, bytes = 0;  // of the files, packed
  std::int64_t text_bytes = 0, documents = 0, tokens = 0;
  std::int64_t empty = 0;    // documents without a token, which are left out
  std::int64_t resumed = 0;  // documents that an earlier call had written
};

// Writes "prefix.bin", "prefix.idx" and "prefix.json", and of documents with losses "prefix.loss" (token_file.h): the
// loss counts the learned parts of a document and its end (Document::ends_learned). The bytes do not depend on the
// number of threads. Documents without a token are left out. Nothing stands under the final names until all is written.
//
// A call that ends before leaves "prefix.*.partial", with "prefix.resume.json" for the last place to go on from. The
// same call goes on there; it reads the documents before once more, and encodes none. With other files, rules or
// tokenizer it begins anew. A call that was asked to stop keeps the place behind its last batch and returns nothing.
//
// Throws Error (request) for a dataset that exists or that another process writes, and for files without a document. So
// it does for losses that count nowhere, and as the reader and the tokenizer.
std::optional<TokenFacts> tokenize(DocumentReader& documents, const TokenizeRequest& request,
                                   const std::function<void(const TokenizeProgress&)>& on_progress = {});

}  // namespace weft
