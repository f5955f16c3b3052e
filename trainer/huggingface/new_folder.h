// A folder that appears complete or not at all: filled under a temporary name beside its place, flushed and renamed.
#pragma once

#include <filesystem>

namespace weft {

class NewFolder {
 public:
  // Throws Error (request) if the name or the temporary name is taken: another program may be at work there. Throws
  // Error (failure) if the folder cannot be created.
  explicit NewFolder(const std::filesystem::path& place);
  // Removes the folder unless it was published.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // The temporary folder for files before publish().
  const std::filesystem::path& path() const { return partial_; }
  // Its files must be on disk already. Throws Error (request) if the name was taken meanwhile.
  void publish();

 private:
  std::filesystem::path place_, partial_;
  bool published_ = false;
};

}  // namespace weft
