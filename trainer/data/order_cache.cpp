#include "trainer/data/order_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/file_descriptor.h"
#include "trainer/data/partial_file.h"

namespace weft {
namespace {

constexpr int tables_version = 1;
constexpr std::int64_t most_header_bytes = std::int64_t{1} << 20;

using HeaderBytes = std::array<std::uint8_t, sizeof(std::uint64_t)>;

// The bytes of all columns, one behind the other. They outlive the source.
ByteSource joined(const std::vector<NumberColumn>& columns) {
  ByteSource source{"tables in memory", 0, [&columns](std::int64_t offset, std::span<std::uint8_t> to) {
                      for (const NumberColumn& column : columns) {
                        const std::int64_t size = std::ssize(column.bytes);
                        const auto count = std::min(std::ssize(to), std::max<std::int64_t>(0, size - offset));
                        std::copy_n(column.bytes.begin() + std::min(offset, size), count, to.begin());
                        to = to.subspan(static_cast<std::size_t>(count));
                        offset = std::max<std::int64_t>(0, offset - size);
                      }
                    }};
  for (const NumberColumn& column : columns) source.size += std::ssize(column.bytes);
  return source;
}

// The bytes of a file from `begin` on.
ByteSource behind(const ByteSource& file, std::int64_t begin) {
  return {file.name, file.size - begin,
          [read = file.read, begin](std::int64_t offset, std::span<std::uint8_t> to) { read(begin + offset, to); }};
}

// Shares the memory of the columns.
NumberTables tables_in_memory(const std::vector<NumberColumn>& columns) {
  NumberTables tables;
  for (const NumberColumn& column : columns) {
    const std::int64_t count = std::ssize(column.bytes) / bytes_of(column.type);
    tables.emplace_back(memory_source("tables in memory", column.bytes, column.owner), 0, count, column.type);
  }
  return tables;
}

// Writes a file of tables to the end.
void write_tables(PartialFile& file, const std::string& key, const std::vector<NumberColumn>& columns) {
  const ByteSource numbers = joined(columns);
  nlohmann::ordered_json header = {{"weft_tables", tables_version},
                                   {"key", key},
                                   {"content", sampled_content(numbers)},
                                   {"tables", nlohmann::json::array()}};
  for (const NumberColumn& column : columns) {
    header["tables"].push_back({name_of(column.type), std::ssize(column.bytes) / bytes_of(column.type)});
  }
  const std::string text = header.dump();
  const auto size = std::bit_cast<HeaderBytes>(static_cast<std::uint64_t>(text.size()));
  file.write(size);
  file.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  file.write_all(numbers);
}

// Waits until no other process writes into the folder. The lock ends with the descriptor; the kernel releases that of a
// process that was killed.
FileDescriptor lock_folder(const std::string& folder) {
  const std::string name = folder + "/lock";
  const auto refuse = [&](const char* what, const char* remedy) {
    fail_request("data.index_cache: \"{}\" cannot be {}: {}. {}, or leave the key out and have the tables in memory",
                 name, what, std::strerror(errno), remedy);
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_request("data.index_cache: \"{}\" cannot be created: {}", folder, error.message());
  // Opened for writing: over NFS an exclusive flock is a byte-range lock, which requires write access.
  FileDescriptor lock(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock) refuse("opened", "Name a folder that this user may write to");
  // Whoever may write into the folder may wait for it, whatever the umask of its first user.
  struct stat status = {};
  if (stat(folder.c_str(), &status) == 0) fchmod(lock.get(), status.st_mode & 0666);
  while (flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) refuse("locked", "Name a folder of a file system with locks");
  }
  return lock;
}

std::optional<NumberTables> find_tables(const std::string& name, const std::string& key) {
  std::error_code error;
  const auto size = std::filesystem::file_size(name, error);
  if (error || size == 0) return std::nullopt;
  return read_tables(open_source(name), key);
}

}  // namespace

std::optional<NumberTables> read_tables(const ByteSource& file, const std::string& key) {
  HeaderBytes size_bytes{};
  if (file.size < std::ssize(size_bytes)) return std::nullopt;
  file.read(0, size_bytes);
  const auto size = std::bit_cast<std::uint64_t>(size_bytes);
  if (size > static_cast<std::uint64_t>(std::min(most_header_bytes, file.size - std::ssize(size_bytes)))) {
    return std::nullopt;
  }
  std::vector<std::uint8_t> text(size);
  file.read(std::ssize(size_bytes), text);
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || header.value("weft_tables", nlohmann::json()) != tables_version ||
      header.value("key", nlohmann::json()) != key || !header.contains("tables")) {
    return std::nullopt;
  }
  NumberTables tables;
  const std::int64_t begin = std::ssize(size_bytes) + std::ssize(text);
  std::int64_t offset = begin;
  for (const nlohmann::json& table : header["tables"]) {
    if (!table.is_array() || table.size() != 2 || !table[0].is_string() || !table[1].is_number_unsigned()) {
      return std::nullopt;
    }
    const auto type = value_named<TokenType>(table[0].get<std::string>());
    if (!type) return std::nullopt;
    const auto count = table[1].get<std::uint64_t>();
    if (count > static_cast<std::uint64_t>((file.size - offset) / bytes_of(*type))) return std::nullopt;
    tables.emplace_back(file, offset, static_cast<std::int64_t>(count), *type);
    offset += static_cast<std::int64_t>(count) * bytes_of(*type);
  }
  if (offset != file.size || header.value("content", nlohmann::json()) != sampled_content(behind(file, begin))) {
    return std::nullopt;
  }
  return tables;
}

NumberTables OrderCache::tables(const std::string& key, const std::function<std::vector<NumberColumn>()>& make) const {
  if (folder_.empty()) return tables_in_memory(make());
  const std::string name = fmt::format("{}/{:016x}.tables", folder_, checksum(key));
  if (auto found = find_tables(name, key)) return std::move(*found);
  const FileDescriptor lock = lock_folder(folder_);
  // Another process may have made them meanwhile.
  if (auto found = find_tables(name, key)) return std::move(*found);
  const std::vector<NumberColumn> columns = make();
  try {
    PartialFile file(name);
    write_tables(file, key, columns);
    file.sync();
    file.put_in_place();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("data.index_cache: {}", error.what()));
  }
  auto made = find_tables(name, key);
  if (!made) fail("\"{}\" has other tables than were written to it", name);
  return std::move(*made);
}

}  // namespace weft
