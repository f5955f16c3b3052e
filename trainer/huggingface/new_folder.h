// A folder that appears whole or not at all: filled under another name beside its place, flushed and renamed.
#pragma once

#include <filesystem>

namespace weft {

class NewFolder {
 public:
  // Throws Error (request) where something has the name already, or the one it is filled under: another program may be
  // at work there. Throws Error (failure) where it cannot be made.
  explicit NewFolder(const std::filesystem::path& place);
  // Removes what has not been published.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // Where files go until then.
  const std::filesystem::path& path() const { return partial_; }
  // Its files are on disk already. Throws Error (request) where somebody else has taken the name meanwhile.
  void publish();

 private:
  std::filesystem::path place_, partial_;
  bool published_ = false;
};

}  // namespace weft
