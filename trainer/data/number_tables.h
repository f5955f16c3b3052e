// Tables of whole numbers that an order of samples is made of, in memory or in a file that is read on demand.
//
// The file: the bytes of a header as u64, the header, and the numbers of each table, all little-endian. A header:
//
//   {"weft_tables": 1, "key": "...", "content": "3600 bytes, xxh64 ...", "tables": [["int32", 600], ["uint32", 300]]}
//
// "content" is that of the numbers (sampled_content).
#pragma once

#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/byte_source.h"
#include "trainer/data/partial_file.h"
#include "trainer/data/stored_numbers.h"
#include "trainer/data/token_type.h"

namespace weft {

// A table that was just made. `bytes` belong to `owner`.
struct NumberColumn {
  TokenType type = TokenType::int64;
  std::shared_ptr<const void> owner;
  std::span<const std::uint8_t> bytes;
};

// Takes the numbers over. T consists of one or more numbers of `type`.
template <typename T>
NumberColumn number_column(TokenType type, std::vector<T> numbers) {
  static_assert(std::endian::native == std::endian::little);
  const auto owner = std::make_shared<const std::vector<T>>(std::move(numbers));
  return {type, owner, {reinterpret_cast<const std::uint8_t*>(owner->data()), owner->size() * sizeof(T)}};
}

// In the order in which they were made.
using NumberTables = std::deque<StoredNumbers>;

// Shares the memory of the columns.
NumberTables tables_in_memory(const std::vector<NumberColumn>& columns);
// Writes a file of tables to the end.
void write_tables(PartialFile& file, const std::string& key, const std::vector<NumberColumn>& columns);
// The tables of a file. Nothing if it is no such file, or has another key, size or content than its header says. Of
// more than 64 MiB the content is a sample, so who reads numbers checks them.
std::optional<NumberTables> read_tables(const ByteSource& file, const std::string& key);

}  // namespace weft
