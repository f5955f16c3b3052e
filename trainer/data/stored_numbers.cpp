#include "trainer/data/stored_numbers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in files are copied, not swapped");

// Calls `use` with a value of the C++ type that stores a token.
template <typename Use>
auto with_stored_type(TokenType type, Use&& use) {
  switch (type) {
    case TokenType::uint8:
      return use(std::uint8_t{});
    case TokenType::int8:
      return use(std::int8_t{});
    case TokenType::int16:
      return use(std::int16_t{});
    case TokenType::uint16:
      return use(std::uint16_t{});
    case TokenType::int32:
      return use(std::int32_t{});
    case TokenType::uint32:
      return use(std::uint32_t{});
    case TokenType::int64:
      break;
  }
  return use(std::int64_t{});
}

template <typename Number>
void encode_numbers(TokenType type, std::span<const Number> numbers, std::vector<std::uint8_t>& to) {
  with_stored_type(type, [&]<typename Stored>(Stored stored) {
    const std::size_t at = to.size();
    to.resize(at + numbers.size() * sizeof(Stored));
    std::uint8_t* next = to.data() + at;
    bool fit = true;
    for (const Number number : numbers) {
      stored = static_cast<Stored>(number);
      fit &= static_cast<std::int64_t>(stored) == number;
      std::memcpy(next, &stored, sizeof(Stored));
      next += sizeof(Stored);
    }
    require(fit, "numbers fit the type that they are stored in");
  });
}

constexpr std::int64_t page_numbers = 512, page_slots = 256;

// Multiplying by the golden ratio spreads pages at distances of powers of two, which a binary search visits.
std::size_t slot_of_page(std::int64_t page) {
  static_assert(page_slots == 256);
  return static_cast<std::size_t>(static_cast<std::uint64_t>(page) * 0x9E3779B97F4A7C15u >> 56);
}

}  // namespace

std::int64_t bytes_of(TokenType type) {
  return with_stored_type(type, [](auto stored) { return static_cast<std::int64_t>(sizeof(stored)); });
}

std::int64_t largest_of(TokenType type) {
  return with_stored_type(
      type, [](auto stored) { return static_cast<std::int64_t>(std::numeric_limits<decltype(stored)>::max()); });
}

void decode(TokenType type, std::span<const std::uint8_t> bytes, std::span<std::int64_t> to) {
  with_stored_type(type, [&]<typename Stored>(Stored stored) {
    require(bytes.size() == to.size() * sizeof(Stored), "each number has its bytes");
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
      to[i] = static_cast<std::int64_t>(stored);
    }
  });
}

void encode(TokenType type, std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& to) {
  encode_numbers(type, numbers, to);
}

void encode(TokenType type, std::span<const std::int32_t> numbers, std::vector<std::uint8_t>& to) {
  encode_numbers(type, numbers, to);
}

StoredNumbers::StoredNumbers(ByteSource source, std::int64_t offset, std::int64_t count, TokenType type)
    : source_(std::move(source)), offset_(offset), count_(count), type_(type) {
  require(offset >= 0 && offset <= source_.size && count >= 0 && count <= (source_.size - offset) / bytes_of(type),
          "stored numbers lie inside their file");
}

void StoredNumbers::read(std::int64_t first, std::span<std::int64_t> to) const {
  require(first >= 0 && std::ssize(to) <= count_ - first, "stored numbers are read from inside their array");
  std::vector<std::uint8_t> bytes(to.size() * static_cast<std::size_t>(bytes_of(type_)));
  source_.read(offset_ + first * bytes_of(type_), bytes);
  decode(type_, bytes, to);
}

std::int64_t StoredNumbers::at(std::int64_t index) const {
  require(index >= 0 && index < count_, "a stored number lies inside its array");
  const std::int64_t number = index / page_numbers;
  const auto within = static_cast<std::size_t>(index % page_numbers);
  {
    const std::lock_guard lock(mutex_);
    if (pages_.empty()) pages_.resize(page_slots);
    const Page& page = pages_[slot_of_page(number)];
    if (page.number == number) return page.numbers[within];
  }
  // Reads without the lock: a slow disk delays only those that need this page.
  const std::int64_t first = number * page_numbers;
  Page page{number, std::vector<std::int64_t>(static_cast<std::size_t>(std::min(page_numbers, count_ - first)))};
  read(first, page.numbers);
  const std::int64_t value = page.numbers[within];
  const std::lock_guard lock(mutex_);
  pages_[slot_of_page(number)] = std::move(page);
  return value;
}

void StoredNumbers::visit(
    const std::function<void(std::int64_t first, std::span<const std::int64_t> numbers)>& use) const {
  constexpr std::int64_t piece = std::int64_t{1} << 16;
  std::vector<std::int64_t> numbers;
  for (std::int64_t first = 0; first < count_; first += piece) {
    numbers.resize(static_cast<std::size_t>(std::min(piece, count_ - first)));
    read(first, numbers);
    use(first, numbers);
  }
}

}  // namespace weft
