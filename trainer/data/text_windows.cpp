#include "trainer/data/text_windows.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {

TextWindows::TextWindows(const std::vector<std::string>& files, std::int64_t window_tokens,
                         const TextVocabulary& vocabulary, Documents documents, std::string_view asked)
    : first_window_{0}, window_tokens_(window_tokens), documents_(documents) {
  require(window_tokens >= 1 && vocabulary.size >= 1, "text has windows and a vocabulary");
  if (files.empty()) fail_request("no text to evaluate: give at least one file with {}", asked);
  std::string faults;
  for (const std::string& name : files) {
    const std::string fault = token_file_fault(name, vocabulary, 1, documents != Documents::join);
    if (fault.empty()) files_.emplace_back(name, vocabulary.size);
    if (!fault.empty()) faults += fmt::format("{}{}: {}", faults.empty() ? "" : "\n", asked, fault);
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
  for (const TokenFile& file : files_) add_range({0, file.tokens()});
  require_target(asked);
}

TextWindows::TextWindows(const DataConfig& data, std::int64_t window_tokens, const TextVocabulary& vocabulary)
    : first_window_{0}, window_tokens_(window_tokens), documents_(data.documents) {
  for (const DataSource& source : data.train) {
    const std::string fault = token_file_fault(source.path, vocabulary, 1, /*boundaries_count=*/true);
    if (!fault.empty()) fail_request("data.train: {}", fault);
    files_.emplace_back(source.path, vocabulary.size);
  }
  for (const Range& range : split_files(files_, data.split, 1, /*sequence_length=*/1)) add_range(range);
  require_target("validation.split");
}

void TextWindows::add_range(Range range) {
  ranges_.push_back(range);
  first_window_.push_back(first_window_.back() + (range.count - 1 + window_tokens_ - 1) / window_tokens_);
}

void TextWindows::keep(std::int64_t windows) {
  const std::int64_t all = count();
  if (windows <= 0 || windows >= all) return;
  // By rounded bounds, so that the parts add up. No part is larger than its file.
  for (std::int64_t& first : first_window_) {
    first = static_cast<std::int64_t>(static_cast<__int128>(first) * windows / all);
  }
  if (has_target()) return;
  fail_request("none of the {} windows of \"{}\"{} that are read has a token that counts: more batches would read more",
               windows, files_.front().name(), others());
}

TokenPiece TextWindows::piece(std::int64_t window) const {
  const auto file = std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1;
  const Range& range = ranges_[static_cast<std::size_t>(file)];
  const std::int64_t offset = (window - first_window_[static_cast<std::size_t>(file)]) * window_tokens_;
  return {file, range.begin + offset, std::min(window_tokens_ + 1, range.count - offset)};
}

std::int64_t TextWindows::counted(std::int64_t window) const {
  const TokenPiece here = piece(window);
  return counted_targets(files_[static_cast<std::size_t>(here.file)], here.first, here.count,
                         documents_ != Documents::join);
}

// Most files show a target in the first window.
bool TextWindows::has_target() const {
  for (std::int64_t window = 0; window < count(); ++window) {
    if (counted(window) > 0) return true;
  }
  return false;
}

std::string TextWindows::others() const {
  return files_.size() == 1 ? "" : fmt::format(" and {} other files", files_.size() - 1);
}

void TextWindows::require_target(std::string_view asked) const {
  if (has_target()) return;
  fail_request("{}: nothing to predict: no token of \"{}\"{} counts", asked, files_.front().name(), others());
}

std::int64_t TextWindows::tokens() const {
  std::int64_t tokens = 0;
  for (std::int64_t window = 0; window < count(); ++window) tokens += counted(window);
  return tokens;
}

std::string TextWindows::contents() const {
  std::string all;
  for (const TokenFile& file : files_) all += file.content() + "\n";
  return all;
}

void TextWindows::read(std::int64_t window, const SequenceText& to) const {
  require(window >= 0 && std::ssize(to.tokens) == window_tokens_, "a window is read as one sequence");
  std::vector<TokenPiece> pieces;
  if (window < count()) pieces.push_back(piece(window));
  read_sequence(files_, pieces, to);
}

}  // namespace weft
