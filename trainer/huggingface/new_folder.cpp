#include "trainer/huggingface/model_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/output_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

bool something_at(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

fs::path folder_above(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

NewFolder::NewFolder(const fs::path& place)
    : place_(place.has_filename() ? place : place.parent_path()), partial_(place_.string() + ".partial") {
  if (place_.empty()) fail_request("the new folder has no name");
  if (something_at(place_)) fail_request("{} exists already; name a folder that does not", place_.string());
  if (something_at(partial_)) {
    fail_request("{} exists already: something is writing there, or was ended while it did; remove it then",
                 partial_.string());
  }
  std::error_code error;
  fs::create_directories(folder_above(place_), error);
  if (!error) fs::create_directory(partial_, error);
  if (error) fail("the folder {} cannot be made: {}", partial_.string(), error.message());
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(partial_, ignored);
}

void NewFolder::publish() {
  flush_folder(partial_);
  int failed = renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, place_.c_str(), RENAME_NOREPLACE);
  // Some file systems cannot refuse a taken name themselves.
  if (failed != 0 && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)) {
    if (something_at(place_)) fail_request("{} exists meanwhile", place_.string());
    failed = rename(partial_.c_str(), place_.c_str());
  }
  if (failed != 0 && errno == EEXIST) fail_request("{} exists meanwhile", place_.string());
  if (failed != 0) fail("{} cannot be renamed to {}: {}", partial_.string(), place_.string(), std::strerror(errno));
  published_ = true;
  flush_folder(folder_above(place_));
}

}  // namespace weft
