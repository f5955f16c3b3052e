#include "trainer/data/text_windows.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {

TextWindows::TextWindows(const std::vector<std::string>& files, std::int64_t window_tokens,
                         const TextVocabulary& vocabulary, std::string_view asked)
    : first_window_{0}, window_tokens_(window_tokens) {
  require(window_tokens >= 1 && vocabulary.size >= 1, "text has windows and a vocabulary");
  if (files.empty()) fail_request("no text to evaluate: give at least one file with {}", asked);
  std::string faults;
  for (const std::string& name : files) {
    std::string fault = token_file_fault(name, vocabulary, 0);
    const std::int64_t predicted =
        fault.empty() ? files_.emplace_back(name, vocabulary.size).tokens() - 1 : std::int64_t{1};
    if (predicted < 1) {
      fault = fmt::format("\"{}\": a single token leaves nothing to predict: only what follows another is", name);
    }
    if (!fault.empty()) {
      faults += fmt::format("{}{}: {}", faults.empty() ? "" : "\n", asked, fault);
      continue;
    }
    first_window_.push_back(first_window_.back() + (predicted + window_tokens - 1) / window_tokens);
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

void TextWindows::keep(std::int64_t windows) {
  for (std::int64_t& first : first_window_) first = std::min(first, windows);
}

std::int64_t TextWindows::tokens() const {
  std::int64_t tokens = 0;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    tokens += std::min((first_window_[file + 1] - first_window_[file]) * window_tokens_, files_[file].tokens() - 1);
  }
  return tokens;
}

void TextWindows::read(std::int64_t window, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(window_tokens_);
  require(window >= 0 && tokens.size() == length && targets.size() == length, "a window is read as one sequence");
  std::ranges::fill(tokens, 0);
  std::ranges::fill(targets, -1);
  if (window >= count()) return;
  const auto file = static_cast<std::size_t>(std::upper_bound(first_window_.begin(), first_window_.end(), window) -
                                             first_window_.begin() - 1);
  const std::int64_t offset = (window - first_window_[file]) * window_tokens_;
  std::vector<std::int32_t> found(
      static_cast<std::size_t>(std::min(window_tokens_ + 1, files_[file].tokens() - offset)));
  files_[file].read(offset, found);
  std::copy_n(found.begin(), found.size() - 1, tokens.begin());
  std::copy_n(found.begin() + 1, found.size() - 1, targets.begin());
}

}  // namespace weft
