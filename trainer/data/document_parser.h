// A line of JSON as a document: one or two texts, or a conversation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/chat_template.h"

namespace weft {

enum class BadLines { refuse, skip };
enum class TextDocuments { file, line };  // in plain text a document is the whole file, or a line that is not blank

struct DocumentRules {
  std::string key = "text";  // of the text in an object; "a.b" is key b of the object in a
  BadLines bad_lines = BadLines::refuse;
  TextDocuments text = TextDocuments::file;
  std::string prompt = {};             // key of a text in front of it that nothing learns to write; empty: none
  const ChatTemplate* chat = nullptr;  // the key holds a conversation: a list of objects with role and content

  // Whether some tokens of documents are not learned.
  bool has_losses() const { return !prompt.empty() || chat != nullptr; }
};

struct Document {
  std::vector<TextPart> parts;
  bool joined = false;  // the parts are encoded as one text, otherwise each by itself
  // Whether the token behind it is learned, with all that stands between the last learned part and that token.
  bool ends_learned = true;
  std::int64_t bytes() const;
};

// Used by one thread. Lines share its memory.
class DocumentParser {
 public:
  explicit DocumentParser(const DocumentRules& rules);
  ~DocumentParser();
  DocumentParser(DocumentParser&&) noexcept;

  // The document of a line; none if `fault` says why, as "column: why" with characters counted from 1.
  // UnpackedFile::padding bytes behind the line may be read.
  std::optional<Document> parse(std::string_view line, std::string& fault);

 private:
  struct QuickJson;
  // The texts at paths_, in a line read by simdjson at some 2 GB/s. False where the line is no JSON (RFC 8259, in
  // UTF-8, nested at most 256 deep) or a path leads to no text. The last of equal keys counts. False also where this
  // reader cannot tell, or the build has none. The slower reader then decides.
  bool find_quickly(std::string_view line, std::vector<std::string>& texts);
  Document plain_document(std::vector<std::string> texts) const;
  // Fills `document`, or tells why that cannot be, with the path of the value at fault.
  struct ValueFault {
    std::vector<std::string> path;
    std::string why;
  };
  std::optional<ValueFault> take(const nlohmann::ordered_json& object, Document& document) const;
  std::optional<ValueFault> take_conversation(const nlohmann::ordered_json& object, Document& document) const;

  const ChatTemplate* chat_;
  std::vector<std::string> keys_;                // of the prompt, if there is one, and of the text
  std::vector<std::vector<std::string>> paths_;  // the same, by object
  std::unique_ptr<QuickJson> quick_;
};

}  // namespace weft
