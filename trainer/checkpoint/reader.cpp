#include "trainer/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {
namespace {

std::string read_text(const std::filesystem::path& path) {
  const MappedFile file(path.string());
  return {file.bytes().begin(), file.bytes().end()};
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path folder)
    : folder_(std::move(folder)),
      manifest_(parse_manifest(read_text(folder_ / manifest_name), (folder_ / manifest_name).string())),
      files_(manifest_.files.size()) {
  std::string faults;
  for (const SavedFile& file : manifest_.files) {
    const std::filesystem::path path = folder_ / file.name;
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (!error && static_cast<std::int64_t>(bytes) == file.bytes) continue;
    faults += faults.empty() ? "" : "\n";
    faults += error ? fmt::format("{}: {}", path.string(), error.message())
                    : fmt::format("{} has {} bytes where {} were written", path.string(), bytes, file.bytes);
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

const MappedFile& CheckpointReader::file(int index) const {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<MappedFile>& mapped = files_[static_cast<std::size_t>(index)];
  if (mapped != nullptr) return *mapped;
  const SavedFile& saved = manifest_.files[static_cast<std::size_t>(index)];
  auto opened = std::make_unique<MappedFile>((folder_ / saved.name).string());
  if (std::ssize(opened->bytes()) != saved.bytes) {
    fail_request("{} has {} bytes where {} were written", opened->name(), opened->bytes().size(), saved.bytes);
  }
  if (checksum(opened->bytes().first(static_cast<std::size_t>(saved.prefix_bytes))) != saved.checksum) {
    fail_request("{}: its first {} bytes are not those that were written (checksum {} was expected)", opened->name(),
                 saved.prefix_bytes, checksum_text(saved.checksum));
  }
  return *(mapped = std::move(opened));
}

std::span<const std::uint8_t> CheckpointReader::bytes_of(const SavedTensor& tensor, const SavedBox& box) const {
  const MappedFile& mapped = file(box.file);
  const auto bytes = mapped.bytes().subspan(static_cast<std::size_t>(box.offset), static_cast<std::size_t>(box.bytes));
  if (checksum(bytes) != box.checksum) {
    fail_request(
        "{}: rows {} to {} of {}{}{} (bytes {} to {}) are not those that were written: their checksum is not {}",
        mapped.name(), box.row_begin, box.row_begin + box.rows - 1, tensor.name, tensor.state.empty() ? "" : " ",
        tensor.state, box.offset, box.offset + box.bytes - 1, checksum_text(box.checksum));
  }
  return bytes;
}

void CheckpointReader::read_rows(const SavedTensor& tensor, std::int64_t row_begin, std::int64_t rows,
                                 std::span<std::uint8_t> to) const {
  const std::int64_t row_bytes = tensor.row_bytes();
  require(row_begin >= 0 && row_begin + rows <= tensor.rows && std::ssize(to) == rows * row_bytes,
          "rows of a tensor are read into as many bytes");
  // Boxes have every row once, in order.
  auto box = std::ranges::upper_bound(tensor.boxes, row_begin, {}, &SavedBox::row_begin);
  for (box = std::prev(box); box != tensor.boxes.end() && box->row_begin < row_begin + rows; ++box) {
    const auto bytes = bytes_of(tensor, *box);
    const std::int64_t first = std::max(row_begin, box->row_begin);
    const std::int64_t last = std::min(row_begin + rows, box->row_begin + box->rows);
    if (first >= last) continue;
    std::memcpy(to.data() + (first - row_begin) * row_bytes, bytes.data() + (first - box->row_begin) * row_bytes,
                static_cast<std::size_t>((last - first) * row_bytes));
  }
}

std::vector<std::string> CheckpointReader::find_faults() const {
  std::vector<std::string> faults;
  const auto look = [&](const auto& read) {
    try {
      read();
      return true;
    } catch (const Error& error) {
      faults.push_back(error.what());
      return false;
    }
  };
  std::vector<bool> sound;
  for (std::size_t f = 0; f < manifest_.files.size(); ++f) {
    sound.push_back(look([&] {
      const MappedFile& mapped = file(static_cast<int>(f));
      if (mapped.name().ends_with(".safetensors")) parse_safetensors(mapped.bytes(), mapped.name());
    }));
  }
  for (const SavedTensor& tensor : manifest_.tensors) {
    for (const SavedBox& box : tensor.boxes) {
      if (sound[static_cast<std::size_t>(box.file)]) look([&] { bytes_of(tensor, box); });
    }
  }
  return faults;
}

}  // namespace weft
