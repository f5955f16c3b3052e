// Bytes with random access: a file, or memory that holds the same. Parsers of formats read from here, so that a fuzzer
// and the tests can hand them bytes without a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/input_file.h"

namespace weft {

// Copies share the file. Several threads may read at the same time.
struct ByteSource {
  std::string name;       // as messages quote it
  std::int64_t size = 0;  // bytes
  // Reads `to` from byte `offset` on; both lie inside `size`. Throws as InputFile::read for a file.
  std::function<void(std::int64_t offset, std::span<std::uint8_t> to)> read;
  std::int64_t modified = 0;  // InputFile::modified() of a file
};

ByteSource file_source(InputFile file);
// Opens the file. Throws Error (request), `"name": why`, as InputFile: also for an empty file.
ByteSource open_source(const std::string& name);
// `bytes` outlive the source, or belong to `owner`.
ByteSource memory_source(std::string name, std::span<const std::uint8_t> bytes,
                         std::shared_ptr<const void> owner = nullptr);

// Where the pieces of a sample of `size` things begin. Up to 64 pieces are all of them, and the last may be shorter.
// More give 64 pieces at equal distances, from the first thing to the last.
std::vector<std::int64_t> sampled_begins(std::int64_t size, std::int64_t piece);

// A description of the contents, independent of the name: "1115394 bytes, xxh64 41a2...". For more than 64 MiB the
// checksum covers 64 pieces of 1 MiB each, including the first and the last bytes. A change between the pieces that
// keeps the size goes unnoticed.
std::string sampled_content(const ByteSource& source);
// The same and, for more than 64 MiB, the time of the last change, which tells a change between the pieces too. A copy
// of a large file counts as another.
std::string dated_content(const ByteSource& source);

}  // namespace weft
