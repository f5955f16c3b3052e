// An index that may be absent, in the size of an int. Lists have millions of actions with five indices each, and a
// std::optional<int> is twice as large.
#pragma once

#include <compare>
#include <limits>
#include <optional>

namespace weft {

// Used like a std::optional<int>, and convertible to one. The smallest int stands for absence.
class OptionalIndex {
 public:
  constexpr OptionalIndex() = default;
  constexpr OptionalIndex(std::nullopt_t) {}
  constexpr OptionalIndex(int index) : index_(index) {}
  constexpr OptionalIndex(const std::optional<int>& index) : index_(index.value_or(absent)) {}
  constexpr operator std::optional<int>() const { return has_value() ? std::optional(index_) : std::nullopt; }

  constexpr bool has_value() const { return index_ != absent; }
  constexpr explicit operator bool() const { return has_value(); }
  constexpr int operator*() const { return index_; }
  // Throws std::bad_optional_access if the index is absent.
  constexpr int value() const { return std::optional<int>(*this).value(); }
  constexpr int value_or(int other) const { return has_value() ? index_ : other; }
  constexpr void reset() { index_ = absent; }

  constexpr bool operator==(const OptionalIndex&) const = default;
  constexpr auto operator<=>(const OptionalIndex&) const = default;
  friend constexpr bool operator==(OptionalIndex one, int other) { return one.index_ == other; }
  friend constexpr bool operator==(OptionalIndex one, const std::optional<int>& other) {
    return one == OptionalIndex(other);
  }

 private:
  static constexpr int absent = std::numeric_limits<int>::min();
  int index_ = absent;
};

}  // namespace weft
