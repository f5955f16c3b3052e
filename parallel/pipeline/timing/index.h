// Elements of flat arrays by the signed indices that timing tables hold (-1 stands for none), unchecked.
#pragma once

#include <cstddef>

namespace weft {

template <typename Values>
constexpr decltype(auto) at(Values& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

}  // namespace weft
