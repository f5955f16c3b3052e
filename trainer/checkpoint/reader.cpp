#include "trainer/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {
namespace {

// Size of the pieces that are read and added to a checksum; a piece fits into the cache of a core.
constexpr std::int64_t checked_piece_bytes = std::int64_t{1} << 18;

// Passes `bytes` bytes of a file from `offset` on to `take`, in order, each piece with its place after `offset`.
void read_in_pieces(const InputFile& file, std::int64_t offset, std::int64_t bytes,
                    const std::function<void(std::int64_t, std::span<const std::uint8_t>)>& take) {
  std::vector<std::uint8_t> buffer(static_cast<std::size_t>(std::min(bytes, checked_piece_bytes)));
  for (std::int64_t at = 0; at < bytes; at += checked_piece_bytes) {
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(std::min(checked_piece_bytes, bytes - at)));
    file.read(offset + at, piece);
    take(at, piece);
  }
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::string name = (folder / manifest_name).string();
  return parse_manifest(InputFile(name).text(), name);
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path folder, Manifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), files_(manifest_.files.size()) {}

CheckpointReader::CheckpointReader(std::filesystem::path folder) : CheckpointReader(folder, read_manifest(folder)) {
  std::string faults;
  for (const SavedFile& file : manifest_.files) {
    const std::string fault = size_fault(file);
    if (!fault.empty()) faults += (faults.empty() ? "" : "\n") + fault;
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

std::string CheckpointReader::size_fault(const SavedFile& file) const {
  const std::filesystem::path path = folder_ / file.name;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  const ErrorKind kind = error ? kind_of_refusal(error.value()) : ErrorKind::request;
  if (kind != ErrorKind::request)
    throw Error(kind, fmt::format("{} cannot be read: {}", path.string(), error.message()));
  if (error) return fmt::format("{}: {}", path.string(), error.message());
  if (bytes == static_cast<std::uintmax_t>(file.bytes)) return "";
  return fmt::format("{} has {} bytes where {} were written", path.string(), bytes, file.bytes);
}

const InputFile& CheckpointReader::file(int index) const {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<InputFile>& known = files_[static_cast<std::size_t>(index)];
  if (known != nullptr) return *known;
  const SavedFile& saved = manifest_.files[static_cast<std::size_t>(index)];
  auto opened = std::make_unique<InputFile>((folder_ / saved.name).string(), /*may_be_empty=*/true);
  if (opened->size() != saved.bytes) {
    fail_request("{} has {} bytes where {} were written", opened->name(), opened->size(), saved.bytes);
  }
  RunningChecksum sum;
  read_in_pieces(*opened, 0, saved.prefix_bytes, [&](std::int64_t, const auto piece) { sum.add(piece); });
  if (sum.value() != saved.checksum) {
    fail_request("{}: its first {} bytes are not those that were written (checksum {} was expected)", opened->name(),
                 saved.prefix_bytes, checksum_text(saved.checksum));
  }
  return *(known = std::move(opened));
}

void CheckpointReader::read_box(const SavedTensor& tensor, const SavedBox& box, std::int64_t first,
                                std::span<std::uint8_t> to) const {
  const InputFile& from = file(box.file);
  const std::pair place(box.file, box.offset);
  {
    const std::scoped_lock lock(mutex_);
    if (verified_.contains(place)) return from.read(box.offset + first, to);
  }
  RunningChecksum sum;
  read_in_pieces(from, box.offset, box.bytes, [&](std::int64_t at, std::span<const std::uint8_t> piece) {
    sum.add(piece);
    const std::int64_t begin = std::max(at, first), end = std::min(at + std::ssize(piece), first + std::ssize(to));
    if (begin >= end) return;
    std::memcpy(to.data() + (begin - first), piece.data() + (begin - at), static_cast<std::size_t>(end - begin));
  });
  if (sum.value() != box.checksum) {
    fail_request(
        "{}: rows {} to {} of {}{}{} (bytes {} to {}) are not those that were written: their checksum is not {}",
        from.name(), box.row_begin, box.row_begin + box.rows - 1, tensor.name, tensor.state.empty() ? "" : " ",
        tensor.state, box.offset, box.offset + box.bytes - 1, checksum_text(box.checksum));
  }
  const std::scoped_lock lock(mutex_);
  verified_.insert(place);
}

void CheckpointReader::read_rows(const SavedTensor& tensor, std::int64_t row_begin, std::int64_t rows,
                                 std::span<std::uint8_t> to) const {
  const std::int64_t row_bytes = tensor.row_bytes();
  require(row_begin >= 0 && rows >= 0 && row_begin <= tensor.rows && rows <= tensor.rows - row_begin &&
              std::ssize(to) == rows * row_bytes,
          "rows of a tensor are read into as many bytes");
  if (rows == 0) return;
  // The boxes cover every row exactly once, in order.
  auto box = std::ranges::upper_bound(tensor.boxes, row_begin, {}, &SavedBox::row_begin);
  for (box = std::prev(box); box != tensor.boxes.end() && box->row_begin < row_begin + rows; ++box) {
    const std::int64_t first = std::max(row_begin, box->row_begin);
    const std::int64_t last = std::min(row_begin + rows, box->row_begin + box->rows);
    read_box(tensor, *box, (first - box->row_begin) * row_bytes,
             to.subspan(static_cast<std::size_t>((first - row_begin) * row_bytes),
                        static_cast<std::size_t>((last - first) * row_bytes)));
  }
}

std::string CheckpointReader::step_fault() const {
  const auto named = named_step(folder_.filename().string());
  if (named.value_or(manifest_.progress.step) == manifest_.progress.step) return "";
  return fmt::format("its name is that of step {}, and it was saved as {}: give it that name again", *named,
                     checkpoint_name(manifest_.progress.step));
}

bool CheckpointReader::lists(const std::string& name) const {
  return std::ranges::find(manifest_.files, name, &SavedFile::name) != manifest_.files.end();
}

void CheckpointReader::require_unchanged(const std::string& name) const {
  const auto saved = std::ranges::find(manifest_.files, name, &SavedFile::name);
  if (saved == manifest_.files.end()) fail_request("{} does not tell of {}", (folder_ / manifest_name).string(), name);
  file(static_cast<int>(saved - manifest_.files.begin()));
}

void CheckpointReader::require_texts_unchanged() const {
  for (const SavedFile& file : manifest_.files) {
    if (file.prefix_bytes == file.bytes) require_unchanged(file.name);
  }
}

std::vector<std::string> CheckpointReader::find_faults(const CheckedBytes& checked) const {
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
  if (const std::string fault = step_fault(); !fault.empty()) {
    faults.push_back(fmt::format("{}: {}", folder_.string(), fault));
  }
  // Boxes by file; they are read in the order of their offsets, which is fastest.
  std::vector<std::vector<std::pair<const SavedBox*, const SavedTensor*>>> boxes(manifest_.files.size());
  for (const SavedTensor& tensor : manifest_.tensors) {
    for (const SavedBox& box : tensor.boxes) boxes[static_cast<std::size_t>(box.file)].emplace_back(&box, &tensor);
  }
  std::int64_t done = 0, all = 0;
  for (const SavedFile& saved : manifest_.files) all += saved.bytes;
  const auto add = [&](std::int64_t bytes) {
    done += bytes;
    if (checked) checked(done, all);
  };
  for (std::size_t f = 0; f < boxes.size(); ++f) {
    const SavedFile& saved = manifest_.files[f];
    const std::int64_t next = done + saved.bytes;
    const bool opened = look([&] {
      const std::string fault = size_fault(saved);
      if (!fault.empty()) throw Error(ErrorKind::request, fault);
      const InputFile& known = file(static_cast<int>(f));
      if (known.name().ends_with(".safetensors")) read_safetensors(known);
    });
    if (opened) {
      std::ranges::sort(boxes[f], {}, [](const auto& place) { return place.first->offset; });
      add(saved.prefix_bytes);
      for (const auto& [box, tensor] : boxes[f]) {
        look([&] { read_box(*tensor, *box, 0, {}); });
        add(box->bytes);
      }
    }
    add(next - done);
  }
  return faults;
}

std::vector<std::string> find_checkpoint_faults(const std::filesystem::path& folder, const CheckedBytes& checked) {
  try {
    return CheckpointReader(folder, read_manifest(folder)).find_faults(checked);
  } catch (const Error& error) {
    return {error.what()};
  }
}

}  // namespace weft
