#include "parallel/runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {

MappedFile::MappedFile(std::string name) : name_(std::move(name)) {
  const auto refuse = [this](const char* why) { fail_request("\"{}\": {}", name_, why); };
  const int descriptor = open(name_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) refuse(std::strerror(errno));
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  const bool regular = known && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(regular ? status.st_size : 0);
  void* data = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
  const int reason = errno;
  close(descriptor);  // the mapping does not need it
  if (known && !regular) refuse("it is not a regular file");
  if (known && size == 0) refuse("the file is empty");
  if (data == MAP_FAILED) refuse(std::strerror(reason));
  bytes_ = {static_cast<const std::uint8_t*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : name_(std::move(other.name_)), bytes_(std::exchange(other.bytes_, {})) {}

void MappedFile::prepare(std::int64_t offset, std::int64_t bytes) const {
  const std::int64_t page = sysconf(_SC_PAGESIZE), begin = offset / page * page;
  // Where the system does not know how, pages come as they are read.
  madvise(const_cast<std::uint8_t*>(bytes_.data()) + begin, static_cast<std::size_t>(offset + bytes - begin),
          MADV_POPULATE_READ);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace weft
