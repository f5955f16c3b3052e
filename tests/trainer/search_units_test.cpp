// The bounds of a search where units of several blocks are gathered, or stay from one use to the next.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/search_case.h"

namespace weft {
namespace {

// Units that stay between forwards and backwards: short stages, long lookaheads, and units of several blocks.
class SearchOfUnits : public SearchOf {};
TEST_P(SearchOfUnits, BoundsHold) {
  expect_bounds();
}

// On links so slow that gathers decide.
SearchCase slow_units(const std::string& name, Overrides words, const std::string& layers = "d*8",
                      const std::vector<std::string>& axes = {}) {
  words.insert(words.end(), {"--hardware.link_bytes_per_second=1e9", "--hardware.node_bytes_per_second=1e9"});
  const std::vector<std::string> usual = {"pipeline=2",
                                          "tensor=1",
                                          "context=1",
                                          "microbatch_size=1",
                                          "data_replicate=1",
                                          "recompute=none,full",
                                          "schedule=1f1b,gpipe,looped_bfs,zbv,dualpipev",
                                          "chunks=1,2,4",
                                          "strategy=full_shard",
                                          "residency=reshard_after_use"};
  return {name, layers, "h100", 8, axes.empty() ? usual : axes, false, std::move(words)};
}

INSTANTIATE_TEST_SUITE_P(
    All, SearchOfUnits,
    testing::Values(slow_units("lookahead_0", {"--shard.lookahead=0"}),
                    slow_units("lookahead_1", {"--shard.lookahead=1"}),
                    slow_units("lookahead_4", {"--shard.lookahead=4"}), slow_units("root", {"--shard.wrap=root"}),
                    slow_units("blocks", {"--shard.wrap=blocks 2"}),
                    slow_units("bytes", {"--shard.wrap=minimum_bytes 1000000000"}),
                    slow_units("half_block", {"--shard.wrap=half_block"}),
                    slow_units("pairs", {"--training.global_batch_size=128"}, "e*12",
                               {"pipeline=4", "tensor=1", "context=1", "microbatch_size=1", "data_replicate=1",
                                "expert=1,2", "recompute=none,full", "schedule=combined_1f1b", "strategy=full_shard",
                                "residency=reshard_after_use"})),
    [](const auto& search) { return search.param.name; });

}  // namespace
}  // namespace weft
