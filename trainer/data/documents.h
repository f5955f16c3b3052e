// Documents of files: of JSON lines, an object with a text a line, or of plain text. Files may be packed
// (unpacked_file.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/document_parser.h"
#include "trainer/data/unpacked_file.h"

namespace weft {

// What may become a document: a line that is not blank, or a plain text as a whole.
struct RawText {
  std::size_t file = 0;    // of DocumentReader::files()
  std::int64_t line = 1;   // from 1
  std::string_view text;   // a line, in RawBatch::pieces
  std::string whole = {};  // a plain text, in place of a line
};

// Movable, and only so: lines lie in the pieces.
struct RawBatch {
  RawBatch() = default;
  RawBatch(RawBatch&&) = default;
  RawBatch& operator=(RawBatch&&) = default;

  std::vector<RawText> texts = {};
  std::deque<std::string> pieces = {};
  std::int64_t position = 0;  // bytes of the files, packed, up to its end
};

// The documents of all files in their order. One thread reads; others may parse meanwhile.
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

  // In place of next(), to parse on several threads: lines of `most` bytes or a little more, in their order. A longer
  // line stands alone, and so does a plain text. Empty at the end. Depends on no clock and no thread. Throws as next()
  // for files.
  RawBatch read(std::int64_t most);
  // Passes over the first `texts` texts, of which `skipped` were skipped, without parsing them. Returns the batch
  // behind them. Throws Error (request) if there are fewer.
  RawBatch pass_over(std::int64_t texts, std::int64_t skipped, std::int64_t most);
  // Parsers of the threads that parse.
  DocumentParser parser() const { return DocumentParser(rules_); }
  // The document of a text, out of which it moves. None for a line to skip, with the reason in `fault`; skip() takes
  // note of it. Safe on several threads, each with its parser. Throws as next() for lines.
  std::optional<Document> parse(RawText& raw, DocumentParser& parser, std::string& fault) const;
  void skip(const std::string& fault);
  // The fault of a text that cannot be taken, with its place; `why` begins with a column or a blank. Throws it unless
  // such texts are skipped.
  std::string refused(const RawText& raw, std::string_view why) const;

  const std::vector<std::string>& files() const { return files_; }
  std::int64_t skipped() const { return skipped_; }
  bool skips() const { return rules_.bad_lines == BadLines::skip; }
  bool has_json() const { return std::ranges::find(json_, true) != json_.end(); }   // JSON lines, by a file's name
  bool has_text() const { return std::ranges::find(json_, false) != json_.end(); }  // plain text
  std::int64_t bytes() const { return bytes_; }                                     // of all files, packed
  std::int64_t position() const;                                                    // bytes read so far
  // Equal for equal documents: the rules (apart from that of bad lines), and the names, sizes and times of change of
  // the files.
  std::string identity() const;

 private:
  bool open_next();
  std::int64_t read_piece(std::int64_t most, RawBatch& batch);

  std::vector<std::string> files_;
  DocumentRules rules_;
  OnBadLine on_bad_line_;
  std::vector<bool> json_;  // by file
  std::size_t next_file_ = 0;
  std::unique_ptr<UnpackedFile> file_;                 // number next_file_ - 1
  std::int64_t skipped_ = 0, bytes_ = 0, before_ = 0;  // before_: bytes of the files that have been read
  // Of next().
  RawBatch batch_;
  std::size_t taken_ = 0;
  DocumentParser parser_;
};

}  // namespace weft
