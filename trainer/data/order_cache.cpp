#include "trainer/data/order_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Waits until no other process writes into the folder. The kernel releases the lock of a process that was killed.
class CacheLock {
 public:
  explicit CacheLock(const std::string& folder) : name_(folder + "/lock") {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail_request("data.index_cache: \"{}\" cannot be created: {}", folder, error.message());
    // Opened for writing: over NFS an exclusive flock is a byte-range lock, which requires write access.
    descriptor_ = open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) refuse("opened", "Name a folder that this user may write to");
    // Whoever may write into the folder may wait for it, whatever the umask of its first user.
    struct stat status = {};
    if (stat(folder.c_str(), &status) == 0) fchmod(descriptor_, status.st_mode & 0666);
    while (flock(descriptor_, LOCK_EX) != 0) {
      if (errno != EINTR) refuse("locked", "Name a folder of a file system with locks");
    }
  }
  ~CacheLock() { close(descriptor_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  [[noreturn]] void refuse(const char* what, const char* remedy) {
    const int reason = errno;
    if (descriptor_ >= 0) close(descriptor_);
    fail_request("data.index_cache: \"{}\" cannot be {}: {}. {}, or leave the key out and have the tables in memory",
                 name_, what, std::strerror(reason), remedy);
  }

  std::string name_;
  int descriptor_ = -1;
};

std::optional<NumberTables> find_tables(const std::string& name, const std::string& key) {
  std::error_code error;
  const auto size = std::filesystem::file_size(name, error);
  if (error || size == 0) return std::nullopt;
  return read_tables(open_source(name), key);
}

}  // namespace

NumberTables OrderCache::tables(const std::string& key, const std::function<std::vector<NumberColumn>()>& make) const {
  if (folder_.empty()) return tables_in_memory(make());
  const std::string name = fmt::format("{}/{:016x}.tables", folder_, checksum(key));
  if (auto found = find_tables(name, key)) return std::move(*found);
  const CacheLock lock(folder_);
  // Another process may have made them meanwhile.
  if (auto found = find_tables(name, key)) return std::move(*found);
  const std::vector<NumberColumn> columns = make();
  try {
    PartialFile file(name);
    write_tables(file, key, columns);
    file.sync();
    file.put_in_place();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("data.index_cache: {}", error.what()));
  }
  auto made = find_tables(name, key);
  if (!made) fail("\"{}\" has other tables than were written to it", name);
  return std::move(*made);
}

}  // namespace weft
