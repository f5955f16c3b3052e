#include "trainer/data/text_windows.h"

#include <algorithm>

#include "parallel/runtime/error.h"
#include "trainer/data/text_file.h"

namespace weft {

TextWindows::TextWindows(const std::vector<std::string>& files, std::int64_t window_tokens, std::int64_t vocab_size)
    : first_window_{0}, window_tokens_(window_tokens), vocab_size_(vocab_size) {
  require(window_tokens >= 1 && vocab_size >= 1, "text has windows and a vocabulary");
  if (files.empty()) fail_request("no text to evaluate: give at least one file with --data");
  std::string faults;
  for (const std::string& name : files) {
    try {
      const std::int64_t predicted = files_.emplace_back(open_text(name)).size() - 1;
      if (predicted < 1) {
        fail_request("\"{}\": a single byte leaves nothing to predict: only what follows another is", name);
      }
      tokens_ += predicted;
      first_window_.push_back(first_window_.back() + (predicted + window_tokens - 1) / window_tokens);
    } catch (const Error& error) {
      faults += faults.empty() ? "" : "\n";
      faults += fmt::format("--data: {}", error.what());
    }
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
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
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min(window_tokens_ + 1, files_[file].size() - offset)));
  files_[file].read(offset, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] >= vocab_size_) {
      fail_request("--data: \"{}\": the byte {} at offset {} is outside the vocabulary of {} tokens",
                   files_[file].name(), bytes[i], offset + static_cast<std::int64_t>(i), vocab_size_);
    }
  }
  std::copy_n(bytes.begin(), bytes.size() - 1, tokens.begin());
  std::copy_n(bytes.begin() + 1, bytes.size() - 1, targets.begin());
}

}  // namespace weft
