#include "parallel/pipeline/orders/order_input.h"

#include "parallel/runtime/error.h"

namespace weft {
namespace {

void require_chunks(const Schedule& schedule, int chunks) {
  if (schedule.takes_chunks(chunks)) return;
  std::string others;
  for (const Schedule& other : schedules()) {
    if (other.takes_chunks(chunks)) others += fmt::format("{}{}", others.empty() ? "" : ", ", other.name);
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

void require_counts(const Schedule& schedule, const OrderInput& input) {
  if (input.ranks < 1 || input.chunks < 1 || input.microbatches < 1) {
    fail_request("schedule {} needs at least one rank, chunk and microbatch; got {} ranks, {} chunks, {} microbatches",
                 schedule.name, input.ranks, input.chunks, input.microbatches);
  }
  require_chunks(schedule, input.chunks);
  if (const double actions = actions_of(input); actions > most_actions) {
    fail_request(
        "schedule {} on {} ranks with {} chunks and {} microbatches has {:.0f} actions; a program has at most {}",
        schedule.name, input.ranks, input.chunks, input.microbatches, actions, most_actions);
  }
  if (input.microbatch_group != 0 && !schedule.takes_groups) {
    fail_request("schedule {} takes no groups of microbatches; leave microbatch_group out", schedule.name);
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
