#include "parallel/pipeline/orders/order_input.h"

#include "parallel/runtime/error.h"

namespace weft {
namespace {

bool takes_chunks(const Schedule& schedule, int chunks) {
  return chunks >= schedule.least_chunks && (schedule.most_chunks == 0 || chunks <= schedule.most_chunks);
}

void require_chunks(const Schedule& schedule, int chunks) {
  if (takes_chunks(schedule, chunks)) return;
  std::string others;
  for (const Schedule& other : schedules()) {
    if (takes_chunks(other, chunks)) others += fmt::format("{}{}", others.empty() ? "" : ", ", other.name);
  }
  const int least = schedule.least_chunks;
  const std::string stages = least == 1 ? "one stage" : fmt::format("{} stages", least);
  fail_request("schedule {} runs {}{} per rank, not {}; set chunks = {}{}", schedule.name,
               schedule.most_chunks == 0 ? "at least " : "", stages, chunks, least,
               others.empty() ? "" : " or choose one of: " + others);
}

// A forward and a backward of each stage and microbatch, and both ends of each of their messages. Orders with a split
// backward have more.
double actions_of(const OrderInput& input) {
  const double stages = static_cast<double>(input.ranks) * input.chunks;
  return input.microbatches * (2.0 * stages + (input.ranks > 1 ? 4.0 * (stages - 1.0) : 0.0));
}

}  // namespace

void require_counts(std::string_view schedule, const OrderInput& input) {
  if (input.ranks < 1 || input.chunks < 1 || input.microbatches < 1) {
    fail_request("schedule {} needs at least one rank, chunk and microbatch; got {} ranks, {} chunks, {} microbatches",
                 schedule, input.ranks, input.chunks, input.microbatches);
  }
  const Schedule& row = find_schedule(schedule);
  require_chunks(row, input.chunks);
  if (const double actions = actions_of(input); actions > most_actions) {
    fail_request(
        "schedule {} on {} ranks with {} chunks and {} microbatches has {:.0f} actions; a program has at most {}",
        schedule, input.ranks, input.chunks, input.microbatches, actions, most_actions);
  }
  if (input.microbatch_group != 0 && !row.takes_groups) {
    fail_request("schedule {} takes no groups of microbatches; leave microbatch_group out", schedule);
  }
}

void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits) {
  if (fits(microbatches)) return;
  int below = microbatches, above = microbatches;
  while (below > 0 && !fits(below)) --below;
  while (!fits(above)) ++above;
  fail_request("{}; set microbatches = {}{}", why, below > 0 ? fmt::format("{} or ", below) : std::string(), above);
}

}  // namespace weft
