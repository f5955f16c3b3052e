// A safetensors file written front to back: first what the header says of all tensors, then their bytes.
#pragma once

#include "parallel/runtime/checksum.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {

class TensorFile {
 public:
  // Writes the prefix. `calls` outlives the file. Errors as OutputFile.
  TensorFile(const std::filesystem::path& path, SafetensorsHeader header, const FileCalls& calls);

  // The bytes of all tensors in the order of the header, in pieces of any size.
  void write(std::span<const std::uint8_t> bytes);
  // Everything has been written and is on disk.
  void finish();

  const SafetensorsHeader& header() const { return header_; }
  // After finish(): the file, and a box for tensor i of the header, whose bytes are rows from `row_begin` of a tensor.
  SavedFile saved() const;
  SavedBox box(std::size_t tensor, std::int64_t row_begin, std::int64_t rows, int file) const;

 private:
  void end_tensors();

  std::filesystem::path path_;
  SafetensorsHeader header_;
  OutputFile file_;
  std::uint64_t prefix_checksum_ = 0;
  std::vector<std::uint64_t> checksums_;  // of the tensors that are complete
  std::size_t tensor_ = 0;                // being written
  std::int64_t written_ = 0;              // of it
  RunningChecksum checksum_;              // of it
};

}  // namespace weft
