// The integer types in which files store tokens and positions: names, sizes, and little-endian bytes to numbers and
// back. And arrays of such integers inside a file.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/data/byte_source.h"

namespace weft {

enum class TokenType : std::uint8_t { uint8, int8, int16, uint16, int32, uint32, int64 };

// As NumPy spells them.
constexpr auto enum_names(TokenType) {
  return name_list("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64");
}

// Bytes of one number.
std::int64_t bytes_of(TokenType type);

// The numbers stored in `bytes`, which has exactly bytes_of(type) for each. A value of uint64 above 2^63 - 1 that is
// read as int64 is negative.
void decode(TokenType type, std::span<const std::uint8_t> bytes, std::span<std::int64_t> to);
// Appends the numbers. Requires that each fits the type.
void encode(TokenType type, std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& to);
void encode(TokenType type, std::span<const std::int32_t> numbers, std::vector<std::uint8_t>& to);
// The largest number that the type stores.
std::int64_t largest_of(TokenType type);

// An array that is read on demand: an index of 10 GB is opened without reading it. Single numbers come through a small
// cache of pages, in which the first steps of a binary search stay. Several threads may read at the same time. Memory:
// at most 1 MiB of pages.
class StoredNumbers {
 public:
  // `count` numbers from byte `offset` of `source` on. Requires that they lie inside it.
  StoredNumbers(ByteSource source, std::int64_t offset, std::int64_t count, TokenType type);

  std::int64_t count() const { return count_; }
  // Number `index`, 0 .. count() - 1. Throws as ByteSource::read. The value is as old as its page. A file that changes
  // meanwhile may yield numbers of two states, so callers check each number before they use it.
  std::int64_t at(std::int64_t index) const;
  // Reads `to` from number `first` on, past the cache.
  void read(std::int64_t first, std::span<std::int64_t> to) const;
  // All numbers in order, in pieces of at most 64 Ki, past the cache.
  void visit(const std::function<void(std::int64_t first, std::span<const std::int64_t> numbers)>& use) const;

 private:
  struct Page {
    std::int64_t number = -1;
    std::vector<std::int64_t> numbers;
  };

  ByteSource source_;
  std::int64_t offset_, count_;
  TokenType type_;
  mutable std::mutex mutex_;  // guards pages_
  mutable std::vector<Page> pages_;
};

}  // namespace weft
