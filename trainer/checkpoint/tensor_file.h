// A safetensors file written from front to back: first the header, then the bytes of all tensors.
#pragma once

#include "parallel/runtime/checksum.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {

class TensorFile {
 public:
  // Writes the prefix. `calls` outlives the file. Throws as OutputFile.
  TensorFile(const std::filesystem::path& path, SafetensorsHeader header, const FileCalls& calls);

  // Writes the bytes of all tensors in the order of the header, in pieces of any size.
  void write(std::span<const std::uint8_t> bytes);
  // Called after the last write; returns when everything is on disk.
  void finish();

  const SafetensorsHeader& header() const { return header_; }
  // After finish(): the file, and the box of a tensor of the header that holds `rows` rows from `row_begin` on.
  SavedFile saved() const;
  SavedBox box(std::size_t tensor, std::int64_t row_begin, std::int64_t rows, int file) const;

 private:
  void end_tensors();

  std::filesystem::path path_;
  SafetensorsHeader header_;
  OutputFile file_;
  std::uint64_t prefix_checksum_ = 0;
  std::vector<std::uint64_t> checksums_;  // of the completed tensors
  std::size_t tensor_ = 0;                // index of the tensor being written
  std::int64_t written_ = 0;              // bytes of this tensor
  RunningChecksum checksum_;              // of this tensor
};

}  // namespace weft
