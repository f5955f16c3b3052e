// One attention on a rank: its heads, and the keys that each query sees. All code that computes attention reads this
// description: rotary embedding, CPU blocks, GPU tiles, the graph for cuDNN, cached keys, dry runs.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>

#include "parallel/runtime/range.h"

namespace weft {

// The first key that a query sees, by its position; the last one is its own. The first key never falls from one
// position to the next, so that the queries that see a key are neighbours. Compiled for devices too.
struct FirstKey {
  std::int64_t window = 0;  // keys that a query sees, its own among them; 0: all up to its own

  constexpr std::int64_t operator()(std::int64_t position) const {
    return window > 0 && position >= window ? position + 1 - window : 0;
  }
  // Whether the window is the whole rule. Code that does not call this object, but builds its rule from its numbers,
  // refuses all others.
  constexpr bool is_window() const { return *this == FirstKey{.window = window}; }
  // Keys that the queries at these positions see, summed.
  double keys_seen(const Range& positions) const {
    const std::int64_t end = positions.begin + positions.count;
    const std::int64_t full = window > 0 ? std::clamp(window, positions.begin, end) : end;
    const auto before = [](std::int64_t position) {
      return static_cast<double>(position) * static_cast<double>(position + 1) / 2;
    };
    return before(full) - before(positions.begin) + static_cast<double>(end - full) * static_cast<double>(window);
  }
  auto operator<=>(const FirstKey&) const = default;
};

// The heads of a row of qkv stand side by side: queries, then keys, then values.
struct HeadShape {
  std::int64_t query_heads = 0;
  std::int64_t key_value_heads = 0;  // query_heads is a multiple of it
  std::int64_t head_dim = 0;         // columns of a query and of a key; even
  std::int64_t sequence_length = 0;
  std::int64_t value_dim = head_dim;  // columns of a value, and of a head of the output
  FirstKey first_key = {};

  std::int64_t columns() const { return value_column() + key_value_heads * value_dim; }
  // First columns of the heads of k and v in a row of qkv. The columns in front of v are those that are rotated.
  std::int64_t key_column() const { return query_heads * head_dim; }
  std::int64_t value_column() const { return (query_heads + key_value_heads) * head_dim; }
  // Keys and values in a matrix of their own: its columns, and the first one of the values.
  std::int64_t key_value_columns() const { return columns() - key_column(); }
  std::int64_t own_value_column() const { return value_column() - key_column(); }
  std::int64_t output_columns() const { return query_heads * value_dim; }
  // Factor of q k^T in front of the softmax.
  double score_scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }
  auto operator<=>(const HeadShape&) const = default;
};

}  // namespace weft
