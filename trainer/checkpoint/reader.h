// A complete checkpoint, mapped: rows of its tensors by global name, each box held against its checksum before its
// bytes are used. Safe to read from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/mapped_file.h"
#include "trainer/checkpoint/manifest.h"

namespace weft {

class CheckpointReader {
 public:
  // Reads the manifest and looks at each file's size. Throws Error (request) naming what is missing or wrong.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // Rows [row_begin, row_begin + rows) of a tensor of the manifest, in its dtype, one after another. Touches only the
  // files and boxes that have some of them. Throws Error (request) naming file and box where a checksum differs.
  void read_rows(const SavedTensor& tensor, std::int64_t row_begin, std::int64_t rows,
                 std::span<std::uint8_t> to) const;
  // Everything, prefixes of files and their headers included: the first difference, or nothing. Slow: reads all.
  std::vector<std::string> find_faults() const;

 private:
  const MappedFile& file(int index) const;
  // Of a file whose prefix has been verified.
  std::span<const std::uint8_t> bytes_of(const SavedTensor& tensor, const SavedBox& box) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<MappedFile>> files_;  // opened when first asked for
};

}  // namespace weft
