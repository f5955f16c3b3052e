// Reads a complete checkpoint: rows of its tensors by global name. The checksum of each box is verified before its
// bytes are used. Several threads may read at once.
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

// Progress callback: `done` of `all` bytes have been checked.
using CheckedBytes = std::function<void(std::int64_t done, std::int64_t all)>;

class CheckpointReader {
 public:
  // Reads the manifest and checks the size of each file. Throws Error (request) with all missing or wrong files. Of
  // another kind is the Error of each function if the system refuses (InputFile): the checkpoint may be sound.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads rows [row_begin, row_begin + rows) of a tensor of the manifest into `to`, in the tensor's dtype. Reads only
  // files and boxes with some of these rows, and verifies the checksum of a box when it is first read. Throws Error
  // (request) naming file and rows if a checksum differs.
  void read_rows(const SavedTensor& tensor, std::int64_t row_begin, std::int64_t rows,
                 std::span<std::uint8_t> to) const;
  // Empty if the manifest has the step of the folder's name, or if the name has none.
  std::string step_fault() const;
  // Whether the manifest lists a file without tensors.
  bool lists(const std::string& name) const;
  // Verifies the checksum of a file without tensors. Throws Error (request) if it differs, or if the manifest does not
  // list the file.
  void require_unchanged(const std::string& name) const;
  // The same for all files without tensors: the configuration and the parts of a tokenizer.
  void require_texts_unchanged() const;
  // Reads and checks everything, including prefixes and headers of files. Returns all faults in the order of the files.
  std::vector<std::string> find_faults(const CheckedBytes& checked = {}) const;

 private:
  friend std::vector<std::string> find_checkpoint_faults(const std::filesystem::path&, const CheckedBytes&);
  // Does not check the files.
  CheckpointReader(std::filesystem::path folder, Manifest manifest);

  // Empty if the file exists and has the size in the manifest. Throws Error of kind_of_refusal().
  std::string size_fault(const SavedFile& file) const;
  // The opened file, with verified prefix.
  const InputFile& file(int index) const;
  // Reads bytes [first, first + to.size()) of a box. Verifies the checksum of the whole box if that has not been done.
  void read_box(const SavedTensor& tensor, const SavedBox& box, std::int64_t first, std::span<std::uint8_t> to) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<InputFile>> files_;    // opened at first use
  mutable std::set<std::pair<int, std::int64_t>> verified_;  // file and offset of the boxes with a verified checksum
};

// As find_faults(), for a folder with missing files or files of a wrong size: all other files are checked too. If the
// manifest cannot be read, this is the only fault.
std::vector<std::string> find_checkpoint_faults(const std::filesystem::path& folder, const CheckedBytes& checked = {});

}  // namespace weft
