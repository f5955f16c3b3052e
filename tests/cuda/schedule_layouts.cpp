#include "tests/cuda/schedule_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

std::vector<TinyLayout> schedule_layouts() {
  const std::vector<std::tuple<std::string, std::string, std::string>> variants = {
      {"reshard_after_use", "reshard_after_use", "d*8"},
      {"window", "window 1", "d e d e d e d e"},
      {"step", "step", "d d e e"}};
  std::vector<TinyLayout> all;
  for (const Schedule& row : schedules()) {
    const std::string schedule(row.name);
    const int chunks = row.shown_chunks();
    const bool parted = std::ranges::any_of(row.order({.ranks = 2, .chunks = chunks, .microbatches = 4})[0],
                                            [](const Action& action) { return action.op == Op::backward_weight; });
    if (chunks == 1 && !parted) continue;
    const auto& [name, residency, layers] = variants[all.size() / 2 % variants.size()];
    all.push_back({.name = schedule + "_" + name,
                   .layers = layers,
                   .degrees = {.pipeline = 2},
                   .schedule = schedule,
                   .residency = residency,
                   .chunks = chunks});
    all.push_back({.name = schedule + "_pp4",
                   .layers = "d e d e d e d e",
                   .degrees = {.pipeline = 4},
                   .schedule = schedule,
                   .chunks = chunks});
  }
  // Gathers and reductions that meet another rank's.
  all.push_back({.name = "interleaved_shard2",
                 .layers = "d e d e",
                 .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                 .schedule = "interleaved",
                 .residency = "reshard_after_use",
                 .lookahead = 2,
                 .chunks = 2});
  // Rows of experts that travel beside the other half of a pair, once again where a block is recomputed.
  for (const char* schedule : {"dualpipev", "combined_1f1b"}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      all.push_back({.name = fmt::format("{}_experts_recompute_{}", schedule, name_of(recompute)),
                     .layers = "d e e e",
                     .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                     .schedule = schedule,
                     .chunks = 2,
                     .recompute = recompute});
    }
  }
  // A tie between two ranks' reduce lanes, and one on a rank's own.
  for (const auto& [schedule, chunks] : {std::pair("1f1b", 1), std::pair("zbv", 2)}) {
    all.push_back({.name = fmt::format("{}_tied", schedule),
                   .layers = "d e d e",
                   .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                   .schedule = schedule,
                   .chunks = chunks,
                   .tied = true});
    // Ties of two weights, and of three copies of one, with two on a rank.
    for (const bool tied : {false, true}) {
      all.push_back({.name = fmt::format("{}_predictors{}", schedule, tied ? "_tied" : ""),
                     .layers = "d e m*2",
                     .degrees = {.pipeline = 4 / chunks},
                     .schedule = schedule,
                     .chunks = chunks,
                     .tied = tied,
                     .stages = "Ed|e|mm|L"});
    }
  }
  return all;
}

}  // namespace weft
