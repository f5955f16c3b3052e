#include "trainer/config.h"

#include <charconv>

#include "parallel/runtime/error.h"

namespace weft {

int ShardPolicy::reduce_every() const {
  if (reduction == "last_microbatch") return 0;
  if (reduction == "each_microbatch") return 1;
  constexpr std::string_view prefix = "every ";
  int period = 0;
  if (reduction.starts_with(prefix)) {
    const char* end = reduction.data() + reduction.size();
    const auto [stop, error] = std::from_chars(reduction.data() + prefix.size(), end, period);
    if (error == std::errc() && stop == end && period >= 1) return period;
  }
  fail_request("reduction \"{}\" is not each_microbatch, last_microbatch or \"every N\"", reduction);
}

}  // namespace weft
