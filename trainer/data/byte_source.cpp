#include "trainer/data/byte_source.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::int64_t most_pieces = 64, piece_bytes = std::int64_t{1} << 20;

}  // namespace

ByteSource file_source(InputFile file) {
  const auto shared = std::make_shared<const InputFile>(std::move(file));
  return {shared->name(), shared->size(),
          [shared](std::int64_t offset, std::span<std::uint8_t> to) { shared->read(offset, to); }, shared->modified()};
}

ByteSource open_source(const std::string& name) {
  return file_source(InputFile(name));
}

ByteSource memory_source(std::string name, std::span<const std::uint8_t> bytes, std::shared_ptr<const void> owner) {
  return {std::move(name), std::ssize(bytes),
          [bytes, owner = std::move(owner)](std::int64_t offset, std::span<std::uint8_t> to) {
            require(offset >= 0 && std::ssize(to) <= std::ssize(bytes) - offset, "bytes are read from inside a source");
            std::copy_n(bytes.begin() + offset, to.size(), to.begin());
          }};
}

std::vector<std::int64_t> sampled_begins(std::int64_t size, std::int64_t piece) {
  const std::int64_t last = std::max<std::int64_t>(0, size - piece);
  const std::int64_t pieces = std::min(most_pieces, (size + piece - 1) / piece);
  std::vector<std::int64_t> begins;
  for (std::int64_t p = 0; p < pieces; ++p) {
    begins.push_back(pieces < most_pieces ? p * piece
                                          : last / (pieces - 1) * p + last % (pieces - 1) * p / (pieces - 1));
  }
  return begins;
}

std::string sampled_content(const ByteSource& source) {
  RunningChecksum sum;
  std::vector<std::uint8_t> bytes;
  for (const std::int64_t begin : sampled_begins(source.size, piece_bytes)) {
    bytes.resize(static_cast<std::size_t>(std::min(piece_bytes, source.size - begin)));
    source.read(begin, bytes);
    sum.add(bytes);
  }
  return fmt::format("{} bytes, xxh64 {:016x}", source.size, sum.value());
}

std::string dated_content(const ByteSource& source) {
  const bool whole = source.size <= most_pieces * piece_bytes;
  return sampled_content(source) + (whole ? "" : fmt::format(", modified {}", source.modified));
}

}  // namespace weft
