#include "trainer/checkpoint/tensor_file.h"

#include <algorithm>
#include <iterator>

#include "parallel/runtime/error.h"

namespace weft {
TensorFile::TensorFile(const std::filesystem::path& path, SafetensorsHeader header, const FileCalls& calls)
    : path_(path), header_(std::move(header)), file_(path, calls) {
  const std::string prefix = safetensors_prefix(header_);
  header_.data_begin = std::ssize(prefix);
  prefix_checksum_ = checksum(prefix);
  file_.write(prefix);
}

void TensorFile::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    if (tensor_ == header_.tensors.size()) fail("{}: more bytes than its header has tensors for", path_.string());
    const auto left = static_cast<std::size_t>(header_.tensors[tensor_].bytes() - written_);
    const auto piece = bytes.first(std::min(left, bytes.size()));
    checksum_.add(piece);
    file_.write(piece);
    written_ += std::ssize(piece);
    bytes = bytes.subspan(piece.size());
    end_tensors();
  }
}

// Completes the current tensor if all its bytes are written; a tensor without bytes is complete at once.
void TensorFile::end_tensors() {
  while (tensor_ < header_.tensors.size() && written_ == header_.tensors[tensor_].bytes()) {
    checksums_.push_back(checksum_.value());
    checksum_.reset();
    written_ = 0;
    ++tensor_;
  }
}

void TensorFile::finish() {
  end_tensors();
  if (tensor_ < header_.tensors.size()) {
    fail("{}: {} bytes of {} are missing", path_.string(), header_.tensors[tensor_].bytes() - written_,
         header_.tensors[tensor_].name);
  }
  file_.finish();
}

SavedFile TensorFile::saved() const {
  return {path_.filename().string(), file_.bytes(), header_.data_begin, prefix_checksum_};
}

SavedBox TensorFile::box(std::size_t tensor, std::int64_t row_begin, std::int64_t rows, int file) const {
  const SafetensorsTensor& written = header_.tensors.at(tensor);
  return {row_begin, rows, file, header_.data_begin + written.begin, written.bytes(), checksums_.at(tensor)};
}

}  // namespace weft
