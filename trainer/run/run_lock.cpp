#include "trainer/run/run_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <system_error>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Creates all folders of `path`, or none: if one is refused, the folders created before it are removed.
std::error_code create_folders(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> missing;  // deepest first
  std::error_code error, ignored;
  for (auto folder = std::filesystem::absolute(path);
       !std::filesystem::exists(folder, ignored) && folder.has_relative_path(); folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  std::filesystem::create_directories(path, error);
  if (error) {
    for (const auto& folder : missing) std::filesystem::remove(folder, ignored);
  }
  return error;
}

// "process 4711 on node3 since 2026-01-31 12:00:00 UTC"
std::string own_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return fmt::format("process {} on {} since {:%F %T} UTC", getpid(), host.data(), fmt::gmtime(std::time(nullptr)));
}

std::string content_of(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t count = pread(descriptor, text.data(), text.size(), 0);
  // The file is empty between a holder's lock and the write of its name.
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : "another process";
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory, const char* key) {
  if (const std::error_code error = create_folders(directory)) {
    fail_request("{} {} cannot be created: {}", key, directory.string(), error.message());
  }
  const std::string file = (directory / run_lock_name).string();
  // Opened for writing: over NFS an exclusive flock is a byte-range lock, which requires write access.
  descriptor_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_request("{} {}: {}: {}", key, directory.string(), file, std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    held_ = true;
    const std::string name = own_name();
    // If the name cannot be written the lock is still valid; only messages lack the name.
    [[maybe_unused]] const bool named =
        ftruncate(descriptor_, 0) == 0 && pwrite(descriptor_, name.data(), name.size(), 0) > 0;
  } else if (errno == EWOULDBLOCK) {
    const std::string holder = content_of(descriptor_);
    close(descriptor_);
    fail_request("{} {} is in use by {}, which holds {}: end that run first, or give this one a directory of its own",
                 key, directory.string(), holder, file);
  }
}

RunLock::~RunLock() {
  close(descriptor_);
}

}  // namespace weft
