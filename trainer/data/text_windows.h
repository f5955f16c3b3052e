// Held-out data as consecutive windows in the order of the files. Every token except a file's first
// is predicted once, from the tokens before it in its window. No window crosses from one file into the next. Missing
// tokens of a file's last window and missing windows of a batch are padding, which does not count.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/data.h"

namespace weft {

class TextWindows {
 public:
  // Throws Error (request), each line beginning with `asked` (the option or key that names the files). Every file with
  // a fault (token_file_fault) has a line. It also throws if no target of any window counts.
  TextWindows(const std::vector<std::string>& files, std::int64_t window_tokens, const TextVocabulary& vocabulary,
              Documents documents, std::string_view asked = "--data");
  // The part for validation of the files of data.train. Throws Error (request) for a file with a fault, and as
  // split_files.
  TextWindows(const DataConfig& data, std::int64_t window_tokens, const TextVocabulary& vocabulary);

  // Keeps `windows` windows, 0 for all: of each file its part by the number of its windows, to within one, from the
  // file's first on. Throws Error (request) if no target of these counts.
  void keep(std::int64_t windows);
  std::int64_t count() const { return first_window_.back(); }
  // The number of predicted tokens in all windows that count: those with a loss, and if documents are masked, not the
  // first of each. One pass over losses and documents. Throws as document_begins.
  std::int64_t tokens() const;

  // The contents of the files, independent of their names (TokenFile::content).
  std::string contents() const;

  // Reads window 0, 1, 2, ...; windows from count() on are padding. The target of a file's last token is padding too.
  // Throws Error (request) naming file and position if a token lies outside the vocabulary.
  void read(std::int64_t window, const SequenceText& to) const;

 private:
  // The tokens of a window and the target of the last, all in one file.
  TokenPiece piece(std::int64_t window) const;
  void add_range(Range range);
  std::int64_t counted(std::int64_t window) const;
  bool has_target() const;
  std::string others() const;  // of the files besides the first, in words
  void require_target(std::string_view asked) const;

  std::vector<TokenFile> files_;
  std::vector<Range> ranges_;               // by file
  std::vector<std::int64_t> first_window_;  // first window of each file, then the number of all kept windows
  std::int64_t window_tokens_;
  Documents documents_;
};

}  // namespace weft
