#include "trainer/data/order_cache.h"

#include <fcntl.h>
#include <sys/file.h>
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
    int reason = descriptor_ < 0 ? errno : 0;
    while (descriptor_ >= 0 && flock(descriptor_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      reason = errno;
      break;
    }
    if (reason == 0) return;
    if (descriptor_ >= 0) close(descriptor_);
    fail_request("data.index_cache: \"{}\" cannot be locked: {}. Name a folder of a file system with locks", name_,
                 std::strerror(reason));
  }
  ~CacheLock() { close(descriptor_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
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
  {
    PartialFile file(name);
    write_tables(file, key, make());
    file.sync();
    file.put_in_place();
  }
  auto made = find_tables(name, key);
  if (!made) fail("\"{}\" has other tables than were written to it", name);
  return std::move(*made);
}

}  // namespace weft
