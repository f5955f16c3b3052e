// Files of held-out text for a test, gone with it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "parallel/runtime/random.h"

namespace weft {

class HeldOutText {
 public:
  explicit HeldOutText(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  HeldOutText(const HeldOutText&) = delete;
  HeldOutText& operator=(const HeldOutText&) = delete;
  ~HeldOutText() { std::filesystem::remove_all(folder_); }

  void add(const std::string& bytes) {
    files_.push_back((folder_ / std::to_string(files_.size())).string());
    std::ofstream(files_.back(), std::ios::binary) << bytes;
    texts_.push_back(bytes);
  }
  void add_random(std::size_t length) {
    const RandomStream random(17, "held out " + std::to_string(files_.size()));
    std::string bytes;
    // A NUL byte would make it no text (text_file.h).
    for (std::size_t i = 0; i < length; ++i) bytes += static_cast<char>(1 + random.bits(i) % 255);
    add(bytes);
  }

  const std::vector<std::string>& files() const { return files_; }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> files_, texts_;
};

}  // namespace weft
