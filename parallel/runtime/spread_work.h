// Work in numbered parts on several threads of the host.
#pragma once

#include <cstddef>
#include <functional>

namespace weft {

// Calls `work` with 0 .. count - 1, each once, on at most so many threads, the calling one among them. Returns when all
// have ended; throws what the first of them that failed threw, by number.
void spread_work(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work);

// Of the host; at least one.
std::size_t host_cores();

}  // namespace weft
