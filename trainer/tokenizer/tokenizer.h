// Text as the ids of tokens, and back: byte-level and other byte-pair encodings of the library `tokenizers`
// (tokenizer.json), of tiktoken (rank files), and plain bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The reading by encode() of a special token, such as <|endoftext|>, that stands in a text.
enum class SpecialTokens {
  recognised,  // the token, as `tokenizers` does unless told otherwise
  plain_text,  // characters like any others: for text from a source that is not trusted
};

// Ids that a model expects around one text, by the post-processor of the file. encode() does not add them.
struct TextFrame {
  std::vector<std::int32_t> before, after;
  bool operator==(const TextFrame&) const = default;
};

// Immutable after construction. Several threads may call every function at the same time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are 0 .. vocab_size() - 1, added tokens included. A file may leave out some of them.
  virtual std::int64_t vocab_size() const = 0;

  // The ids of `text`, without those of frame(). Each maximal malformed part of UTF-8 counts as U+FFFD, as for a text
  // that Python decodes with errors="replace". The byte tokenizer takes every byte as it is. With
  // SpecialTokens::plain_text, tokens that were added without being special are still recognised (encode_special_tokens
  // of `tokenizers`). Throws Error (request) for a character that the vocabulary can not express, which `tokenizers`
  // would leave out.
  std::vector<std::int32_t> encode(std::string_view text, SpecialTokens special = SpecialTokens::recognised) const {
    std::vector<std::int32_t> ids;
    append(text, special, ids);
    return ids;
  }
  // encode() onto the end of `ids`.
  virtual void append(std::string_view text, SpecialTokens special, std::vector<std::int32_t>& ids) const = 0;

  // The bytes of all tokens, special ones included. They need not be UTF-8, for example after a part of a character.
  // Throws Error (request) for an id without a token.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // Kind, sizes and file, for people.
  virtual std::string description() const = 0;
  // 16 hexadecimal digits: xxh64 of the vocabulary, the merges and the rules. Spelling, order and defaults of a file
  // have no influence. Equal hashes mean equal encodings.
  virtual std::string content_hash() const = 0;

  // The token that ends a document: eos_token of tokenizer_config.json beside the file, otherwise the first of the
  // usual names (</s>, <|endoftext|>, ...) that is a special token.
  virtual std::optional<std::int32_t> end_of_text() const = 0;
  // The id of a token, spelled as in the file.
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;
  virtual TextFrame frame() const { return {}; }
};

// `name` is one of
//   byte                 256 tokens, one for each byte;
//   FILE or FOLDER       a tokenizer.json, or a folder that has one;
//   FILE.model or FOLDER a model of SentencePiece, or a folder that has a tokenizer.model and no tokenizer.json;
//   FILE#PATTERN         a rank file of tiktoken, with gpt2, cl100k_base, o200k_base or llama3 as pattern;
//   FILE                 a rank file that is named after its pattern (cl100k_base.tiktoken), or has a FILE.json beside
//   it:
//                        {"pattern": a regular expression, "special_tokens": {text: id}}.
// Throws Error (request), `"name": why`, for a file that cannot be read, is faulty, or needs anything that Weft does
// not compute.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);
// The same where texts need one: throws Error (request) for "none", which open_tokenizer answers with null.
std::shared_ptr<const Tokenizer> open_text_tokenizer(const std::string& name);

// The pieces of a model of SentencePiece that stand for no text; empty where the model has none. Throws as
// open_tokenizer.
struct SentencePieceMarks {
  std::string unknown, begin, end, padding;
};
SentencePieceMarks sentencepiece_marks(const std::string& file);

// A rank file of tiktoken as a tokenizer.json with the same encodings; nothing for other kinds. Throws as
// open_tokenizer, and for a special token that such a file cannot tell from another.
std::optional<std::string> tiktoken_as_json(const std::string& name);

// The files that such a tokenizer consists of, and the names under which a copy of them is found again by
// kept_tokenizer. Without files for "byte" and "none".
struct TokenizerPart {
  std::string path, kept_name;
};
std::vector<TokenizerPart> tokenizer_parts(const std::string& name);
// The name of the copy of the tokenizer `name` in a folder; none if the folder has no copy.
std::optional<std::string> kept_tokenizer(const std::string& folder, const std::string& name);

}  // namespace weft
