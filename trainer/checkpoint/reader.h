// A complete checkpoint: rows of its tensors by global name, each box held against its checksum before its
// bytes are used. Safe to read from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/manifest.h"

namespace weft {

// How many bytes of how many have been looked at.
using CheckedBytes = std::function<void(std::int64_t done, std::int64_t all)>;

class CheckpointReader {
 public:
  // Reads the manifest and looks at each file's size. Throws Error (request) naming what is missing or wrong.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // Rows [row_begin, row_begin + rows) of a tensor of the manifest, in its dtype, one after another. Touches only the
  // files and boxes that have some of them, and holds a box against its checksum when it is first touched. Throws Error
  // (request) naming file and rows where one differs.
  void read_rows(const SavedTensor& tensor, std::int64_t row_begin, std::int64_t rows,
                 std::span<std::uint8_t> to) const;
  // Holds a file without tensors against its checksum. Throws Error (request), also where the manifest does not name
  // it.
  void require_unchanged(const std::string& name) const;
  // Everything, prefixes of files and their headers included: every difference, in the order of the files. Reads all.
  std::vector<std::string> find_faults(const CheckedBytes& checked = {}) const;

 private:
  friend std::vector<std::string> find_checkpoint_faults(const std::filesystem::path&, const CheckedBytes&);
  // Without a look at the files.
  CheckpointReader(std::filesystem::path folder, Manifest manifest);

  // Empty where it is there, with as many bytes as were written.
  std::string size_fault(const SavedFile& file) const;
  // Its prefix has been verified.
  const InputFile& file(int index) const;
  // Bytes [first, first + to.size()) of a box, all of which is held against its checksum where it was not yet.
  void read_box(const SavedTensor& tensor, const SavedBox& box, std::int64_t first, std::span<std::uint8_t> to) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<InputFile>> files_;    // opened when first asked for
  mutable std::set<std::pair<int, std::int64_t>> verified_;  // boxes whose checksum was right: file and offset
};

// As find_faults(), of a folder whose files may be missing or of another size: the others are looked at all the same.
// Where the manifest cannot be read, that is all there is to say.
std::vector<std::string> find_checkpoint_faults(const std::filesystem::path& folder, const CheckedBytes& checked = {});

}  // namespace weft
