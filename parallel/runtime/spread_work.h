// Work in numbered parts on several threads of the host.
#pragma once

#include <cstddef>
#include <functional>

namespace weft {

// Calls `work` once with each of 0 .. count - 1, on at most `threads` threads, including the calling thread. Returns
// when all calls have ended. If calls threw, rethrows the exception of the lowest number.
void spread_work(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work);

// Number of the host's cores; at least one.
std::size_t host_cores();

}  // namespace weft
