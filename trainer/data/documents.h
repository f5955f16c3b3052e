// Documents of files: of JSON lines, an object with a text a line, or of plain text. Files may be packed
// (unpacked_file.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/chat_template.h"
#include "trainer/data/unpacked_file.h"

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
  std::int64_t bytes() const;
};

// The documents of all files in their order. Used by one thread.
class DocumentReader {
 public:
  // Called with a line that is skipped, as file, line and reason.
  using OnBadLine = std::function<void(const std::string& why)>;

  // Throws Error (request) naming every file that cannot be read, and those that are neither text nor JSON lines
  // (find_format).
  DocumentReader(std::vector<std::string> files, DocumentRules rules, OnBadLine on_bad_line = {});

  // The next document; none at the end. A file is JSON lines if its name ends in .jsonl, .ndjson or .json, in
  // any case and perhaps before .gz or .zst. Throws Error (request), `"name":line:column: why`, for a line without the
  // texts, unless such lines are skipped. Plain text, where the rules ask for a prompt or messages, gives `"name":
  // why`.
  std::optional<Document> next();

  const std::vector<std::string>& files() const { return files_; }
  std::int64_t skipped() const { return skipped_; }
  std::int64_t bytes() const { return bytes_; }  // of all files, packed
  std::int64_t position() const;                 // bytes read so far
  // Equal for equal documents: the rules, and the names, sizes and times of change of the files.
  std::string identity() const;

 private:
  std::optional<Document> next_of_file();
  std::optional<Document> document_of(const std::string& line);
  // Puts the texts of an object into `document`, or returns the reason for which it has none.
  std::string take(const nlohmann::ordered_json& object, Document& document) const;

  std::vector<std::string> files_;
  DocumentRules rules_;
  OnBadLine on_bad_line_;
  std::size_t next_file_ = 0;
  std::unique_ptr<UnpackedFile> file_;
  bool json_ = false;
  std::int64_t skipped_ = 0, bytes_ = 0, before_ = 0;  // before_: bytes of the files that have been read
};

}  // namespace weft
