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
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/byte_source.h"
#include "trainer/data/stored_numbers.h"

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

// The tables of a file. Nothing if it is no such file, or has another key, size or content than its header says. Of
// more than 64 MiB the content is a sample, so who reads numbers checks them.
std::optional<NumberTables> read_tables(const ByteSource& file, const std::string& key);

// A folder of tables, made once and shared by processes and later runs. A file is named by the checksum of its key,
// which tells the contents that the tables were made from. Nothing deletes a file; a user may delete any that no
// process is making.
class OrderCache {
 public:
  // Without a folder each call of tables() makes them in memory.
  explicit OrderCache(std::string folder = {}) : folder_(std::move(folder)) {}

  // The tables of `key`: from the file that has them, or made, written to it and read from there. Of several processes
  // one makes them and the others wait for it (flock). A file of another size or content than its header says is made
  // anew. Throws Error (request) if the folder cannot be created or its file system has no locks, and Error (failure)
  // if a file cannot be written.
  NumberTables tables(const std::string& key, const std::function<std::vector<NumberColumn>()>& make) const;

 private:
  std::string folder_;
};

// What an order of samples is made for.
struct OrderRequest {
  std::int64_t sequence_length = 0;  // tokens; a sample has one more
  std::int64_t samples = 0;          // of the whole run; an order may have more
  std::uint64_t seed = 0;            // of Megatron's order below 2^32
  OrderCache cache = OrderCache();   // of the tables of packed documents and of Megatron's order
};

}  // namespace weft
