// A whole file, mapped read-only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace weft {

// Movable; the mapping ends with the owner.
class MappedFile {
 public:
  // `name` is relative to the current directory. Throws Error (request): `"name": why`.
  explicit MappedFile(std::string name);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& name() const { return name_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }
  // Has the system map these bytes at once, which is faster than page by page as they are read. Changes nothing else.
  void prepare(std::int64_t offset, std::int64_t bytes) const;

 private:
  std::string name_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace weft
