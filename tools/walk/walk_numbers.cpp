#include "tools/walk/walk_numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

#include "parallel/comm/local.h"
#include "parallel/runtime/error.h"
#include "tools/walk/walk_words.h"
#include "trainer/planning/walk.h"

namespace weft {
namespace {

constexpr int most_shown_ranks = 16;
constexpr std::int64_t fewest_rows = 8;

using Numbers = WalkNumbers::Numbers;

// Training uses float32, which represents these integers exactly.
std::vector<float> floats(const Numbers& numbers) {
  return {numbers.begin(), numbers.end()};
}
Numbers integers(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

TensorView rows_of(std::vector<float>& values) {
  return view_of(std::span(values), static_cast<std::int64_t>(values.size()), 1);
}

std::int64_t payload(Communicator& world, CollectiveOp op) {
  return world.counters()[{world.group(), op}].bytes;
}

// Runs on each rank's own thread, which writes only the rank's entries.
void exchange(Communicator& world, WalkNumbers& numbers) {
  const auto rank = static_cast<std::size_t>(world.rank());
  std::vector<float> shard = floats(numbers.shards[rank]), gradient = floats(numbers.gradients[rank]);
  std::vector<float> all(static_cast<std::size_t>(numbers.rows));
  world.all_gather(rows_of(shard), rows_of(all));
  numbers.gathered[rank] = integers(all);
  if (rank == 0) numbers.gather_payload = payload(world, CollectiveOp::all_gather);

  std::vector<float> reduced(shard.size()), summed = gradient;
  world.reduce_scatter(rows_of(gradient), rows_of(reduced));
  numbers.reduced[rank] = integers(reduced);
  world.all_reduce(rows_of(summed));
  numbers.all_reduced[rank] = integers(summed);
  world.all_gather(rows_of(reduced), rows_of(all));
  numbers.composed[rank] = integers(all);
  if (rank != 0) return;
  numbers.reduce_payload = payload(world, CollectiveOp::reduce_scatter);
  numbers.all_reduce_payload = payload(world, CollectiveOp::all_reduce);
}

std::string section(std::string_view heading, const std::vector<Numbers>& by_rank, std::size_t indent = 0,
                    bool owned_place = false) {
  std::string text = fmt::format("{}\n", heading);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::size_t places = owned_place ? rank * indent : 0;
    text += fmt::format("  rank {:<2}  {:{}}{:>4}\n", rank, "", places, fmt::join(by_rank[rank], " "));
  }
  return text;
}

}  // namespace

WalkNumbers walk_numbers(int ranks) {
  if (ranks < 1 || ranks > most_shown_ranks) {
    fail_request("weft walk: error: --numbers shows 1 to {} ranks, not {}", most_shown_ranks, ranks);
  }
  WalkNumbers numbers{.ranks = ranks};
  const std::int64_t each = (fewest_rows + ranks - 1) / ranks;
  numbers.rows = each * ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    Numbers& shard = numbers.shards.emplace_back();
    for (std::int64_t row = rank * each; row < (rank + 1) * each; ++row) shard.push_back(row + 1);
    // Gradients differ between ranks, as each rank has other tokens.
    Numbers& gradient = numbers.gradients.emplace_back();
    for (std::int64_t row = 0; row < numbers.rows; ++row) gradient.push_back((rank + 1) * (row + 1));
  }
  for (auto* results : {&numbers.gathered, &numbers.reduced, &numbers.all_reduced, &numbers.composed}) {
    results->resize(static_cast<std::size_t>(ranks));
  }
  run_local_ranks(ranks, [&](Communicator& world) { exchange(world, numbers); });
  if (numbers.composed != numbers.all_reduced) {
    fail("an all_reduce of {} rows over {} ranks is not their reduce_scatter and its all_gather", numbers.rows, ranks);
  }
  return numbers;
}

std::string numbers_text(const WalkNumbers& numbers) {
  const auto each = static_cast<std::size_t>(numbers.rows / numbers.ranks);
  const std::size_t width = 5 * each;  // of a shard as printed
  const auto sent = [&](CollectiveOp op, std::int64_t payload) {
    return bytes_text(sent_bytes(op, payload, numbers.ranks));
  };
  std::string text = fmt::format(
      "A unit of {} rows of one float32 number on {} ranks; computed by the communicators of {} "
      "threads.\n\n",
      numbers.rows, numbers.ranks, numbers.ranks);
  text += section("each rank's shard of the parameters", numbers.shards, width, true);
  text +=
      section(fmt::format("all_gather: the whole unit on every rank ({} of payload, {} sent by a rank)",
                          bytes_text(numbers.gather_payload), sent(CollectiveOp::all_gather, numbers.gather_payload)),
              numbers.gathered);
  text += section("\neach rank's full gradient: other tokens, other numbers", numbers.gradients);
  text += section(
      fmt::format("reduce_scatter: sums, and of these the rows that a rank owns ({} of payload, {} sent)",
                  bytes_text(numbers.reduce_payload), sent(CollectiveOp::reduce_scatter, numbers.reduce_payload)),
      numbers.reduced, width, true);
  text += section(
      fmt::format("\nall_reduce of the same gradients: all sums on every rank ({} of payload, {} sent)",
                  bytes_text(numbers.all_reduce_payload), sent(CollectiveOp::all_reduce, numbers.all_reduce_payload)),
      numbers.all_reduced);
  text += section("all_gather of what the reduce_scatter left: equal, number by number", numbers.composed);
  return text;
}

}  // namespace weft
