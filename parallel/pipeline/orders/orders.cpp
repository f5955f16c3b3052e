#include "parallel/pipeline/orders/orders.h"

#include <algorithm>
#include <array>

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

void Schedule::require_counts(const OrderInput& input) const {
  if (input.ranks < 1 || input.chunks < 1 || input.microbatches < 1) {
    fail_request("schedule {} needs at least one rank, chunk and microbatch; got {} ranks, {} chunks, {} microbatches",
                 name, input.ranks, input.chunks, input.microbatches);
  }
  require_chunks(*this, input.chunks);
  if (const double actions = actions_of(input); actions > most_actions) {
    fail_request(
        "schedule {} on {} ranks with {} chunks and {} microbatches has {:.0f} actions; a program has at most {}", name,
        input.ranks, input.chunks, input.microbatches, actions, most_actions);
  }
  if (input.microbatch_group != 0 && !takes_groups) {
    fail_request("schedule {} takes no groups of microbatches; leave microbatch_group out", name);
  }
  if (takes_groups) microbatch_group(name, input);
  const int least = least_of_a_rank * input.ranks;
  require_microbatches(fmt::format("schedule {} on {} ranks needs at least {} microbatches, not {}", name, input.ranks,
                                   least, input.microbatches),
                       input.microbatches, [&](int microbatches) { return microbatches >= least; });
}

void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits) {
  if (fits(microbatches)) return;
  int below = microbatches, above = microbatches;
  while (below > 0 && !fits(below)) --below;
  while (!fits(above)) ++above;
  fail_request("{}; set microbatches = {}{}", why, below > 0 ? fmt::format("{} or ", below) : std::string(), above);
}

namespace {

// Two chunks per rank in a V, with weight gradients apart.
constexpr Schedule in_a_v(std::string_view name, std::string_view summary, RankLists (*lists)(const OrderInput&)) {
  return {.name = name,
          .summary = summary,
          .lists = lists,
          .placement = Placement::v,
          .least_chunks = 2,
          .most_chunks = 2,
          .parts = true};
}

// A new row stands last: pictures give the schedules their marks by position (tools/picture/pareto_svg.h).
constexpr std::array table = {
    Schedule{.name = "gpipe",
             .summary = "all forwards, then all backwards; keeps the activations of every microbatch",
             .lists = gpipe_order},
    Schedule{.name = "1f1b",
             .summary = "one forward, one backward in turn; keeps min(ranks - rank, microbatches) activations",
             .lists = one_f_one_b_order},
    Schedule{.name = "interleaved",
             .summary = "1F1B over several chunks a rank, depth first: its bubble divided by the chunks",
             .lists = interleaved_order,
             .least_chunks = 2,
             .most_chunks = 0,
             .takes_groups = true},
    Schedule{.name = "looped_bfs",
             .summary = "all microbatches through a chunk before the next: each stage is visited once each way",
             .lists = looped_bfs_order,
             .most_chunks = 0},
    Schedule{.name = "zb_h1",
             .summary = "1F1B with weight gradients in the bubble; keeps min(ranks, microbatches) activations",
             .lists = zb1p_order,
             .parts = true},
    Schedule{.name = "zb1p",
             .summary = "interleaved with weight gradients in the bubble",
             .lists = zb1p_order,
             .most_chunks = 0,
             .takes_groups = true,
             .parts = true},
    in_a_v("zbv", "two chunks in a V with weight gradients in the bubble; keeps 2 ranks chunks", zbv_order),
    in_a_v("v_half", "two chunks in a V at about half the activations of 1f1b", v_half_order),
    in_a_v("v_min", "two chunks in a V at about a third of the activations of 1f1b", v_min_order),
    Schedule{.name = "dualpipev",
             .summary = "two chunks in a V, forwards beside backwards of the other; keeps 2 ranks + 1 chunks",
             .lists = dualpipev_order,
             .placement = Placement::v,
             .least_chunks = 2,
             .most_chunks = 2,
             .parts = true,
             .overlaps = true,
             .least_of_a_rank = 2},
    Schedule{.name = "combined_1f1b",
             .summary = "interleaved, one forward further ahead, so that forwards run beside backwards of others",
             .lists = combined_1f1b_order,
             .most_chunks = 0,
             .takes_groups = true,
             .overlaps = true},
};

}  // namespace

RankLists Schedule::order(const OrderInput& input) const {
  require_counts(input);
  return lists(input);
}

std::span<const Schedule> schedules() {
  return table;
}

const Schedule& find_schedule(std::string_view name) {
  if (name == "dualpipe") {
    fail_request(
        "schedule \"dualpipe\" runs microbatches from both ends of the pipeline; every rank then has two stages' "
        "parameters, gradients and state, and the model stands twice; \"dualpipev\" has its order with one copy");
  }
  std::string known;
  for (const Schedule& schedule : table) {
    if (schedule.name == name) return schedule;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", schedule.name);
  }
  fail_request("schedule \"{}\" is unknown; the schedules are {}{}", name, known, own_schedule_text);
}

int chunks_in_flight(std::span<const Action> actions) {
  int kept = 0, most = 0;
  for (const Action& action : actions) {
    if (action.op == Op::forward) most = std::max(most, ++kept);
    if (makes_weight_gradient(action.op)) --kept;
  }
  return most;
}

}  // namespace weft
