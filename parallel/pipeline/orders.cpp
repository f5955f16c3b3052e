#include "parallel/pipeline/orders.h"

#include <array>

#include "parallel/pipeline/order_input.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::array table = {
    Schedule{.name = "gpipe",
             .summary = "all forwards, then all backwards; keeps the activations of every microbatch",
             .order = gpipe_order,
             .supports_chunks = false},
    Schedule{.name = "1f1b",
             .summary = "one forward, one backward in turn; keeps min(ranks - rank, microbatches) activations",
             .order = one_f_one_b_order,
             .supports_chunks = false},
};

}  // namespace

std::span<const Schedule> schedules() {
  return table;
}

const Schedule& find_schedule(std::string_view name) {
  std::string known;
  for (const Schedule& schedule : table) {
    if (schedule.name == name) return schedule;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", schedule.name);
  }
  fail_request("schedule \"{}\" is unknown; the schedules are {}", name, known);
}

void require_counts(std::string_view schedule, const OrderInput& input) {
  if (input.ranks < 1 || input.chunks < 1 || input.microbatches < 1) {
    fail_request("schedule {} needs at least one rank, chunk and microbatch; got {} ranks, {} chunks, {} microbatches",
                 schedule, input.ranks, input.chunks, input.microbatches);
  }
}

void require_one_chunk(std::string_view schedule, const OrderInput& input) {
  if (input.chunks == 1) return;
  std::string others;
  for (const Schedule& other : table) {
    if (other.supports_chunks) others += fmt::format("{}{}", others.empty() ? "" : ", ", other.name);
  }
  fail_request("schedule {} runs one stage per rank, not {}; set chunks = 1{}", schedule, input.chunks,
               others.empty() ? "" : " or choose one of: " + others);
}

}  // namespace weft
