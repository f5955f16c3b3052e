#include "parallel/pipeline/check/check.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/order_figures.h"

namespace weft {
namespace {

// By hand: rank 0 runs 2 (2 - 1 - 0) + 2 = 4 turns ahead, rank 1 two.
TEST(Interleaved, ByHand) {
  EXPECT_EQ(order_of("interleaved", {.ranks = 2, .chunks = 2, .microbatches = 4}),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
}

// Megatron's own table for 5 microbatches in groups of 3 and 2, as rank 0 of 2 ranks runs it. Chunks count from one,
// and backwards are negative.
TEST(Interleaved, AnUnevenLastGroupIsThatOfMegatron) {
  const OrderInput input{.ranks = 2, .chunks = 2, .microbatches = 5, .microbatch_group = 3};
  const int expected[] = {1, 1, 1, 2, 2, 2, -2, 1, -2, 1, -2, 2, -1, 2, -1, -1, -2, -2, -1, -1};
  const auto actions = find_schedule("interleaved").order(input).front();
  ASSERT_EQ(actions.size(), std::size(expected));
  for (std::size_t i = 0; i < actions.size(); ++i) {
    EXPECT_EQ((*actions[i].stage / 2 + 1) * (actions[i].op == Op::forward ? 1 : -1), expected[i]) << i;
  }
}

// The bubble of 1F1B, 3 (P - 1), is shorter by the chunks: a rank waits for P - 1 forwards and backwards of one chunk.
// Rank r has run 2 (P - 1 - r) + (V - 1) P turns ahead and one more when its first backward comes.
TEST(Interleaved, BubbleAndActivationsAreThoseOfTheFormulas) {
  int multiples = 0;
  for (const OrderInput& input : rounds_of("interleaved", 8, 4, 4)) {
    if (input.microbatches < input.ranks) continue;
    multiples += input.microbatches % input.ranks == 0 ? 1 : 0;
    EXPECT_EQ(bubble_of("interleaved", input), 3 * (input.ranks - 1));
    const auto peaks = chunks_in_flight("interleaved", input);
    const int group = input.microbatches / (input.microbatches / input.ranks);
    for (int rank = 0; rank < input.ranks; ++rank) {
      EXPECT_EQ(
          peaks[static_cast<std::size_t>(rank)],
          std::min(2 * (input.ranks - 1 - rank) + (input.chunks - 1) * group + 1, input.microbatches * input.chunks));
    }
  }
  EXPECT_EQ(multiples, 8 * 3 * 4);
}

// PyTorch's groups (ScheduleInterleaved1F1B): the microbatches in max(1, microbatches / ranks) rounds. 10 of them on 4
// ranks are two of 5, and fewer than ranks are one.
TEST(Interleaved, GroupsAreThoseOfPyTorch) {
  OrderInput input{.ranks = 4, .chunks = 2, .microbatches = 10};
  const std::string unset = order_of("interleaved", input);
  input.microbatch_group = 5;
  EXPECT_EQ(unset, order_of("interleaved", input));
  EXPECT_EQ(order_of("interleaved", {.ranks = 2, .chunks = 2, .microbatches = 1}),
            "0F0,2F0,2B0,0B0\n"
            "1F0,3F0,3B0,1B0\n");
  for (const char* schedule : {"interleaved", "zb1p"}) {
    for (input = {.ranks = 2, .chunks = 2, .microbatches = 1}; input.ranks <= 6; ++input.ranks) {
      for (input.microbatches = 1; input.microbatches < input.ranks; ++input.microbatches) {
        EXPECT_TRUE(find_violations(add_exchange(ordered(find_schedule(schedule), input))).empty())
            << described(find_schedule(schedule), input);
        OrderInput whole = input;
        whole.microbatch_group = input.microbatches;
        EXPECT_EQ(order_of(schedule, whole), order_of(schedule, input)) << described(find_schedule(schedule), input);
      }
    }
  }
}

// Groups may be longer than the ranks, and the last one shorter, as long as no group is shorter than the ranks. The
// bubble stays the same, and (V - 1) times the longer group is in flight.
TEST(Interleaved, GroupsOfAnyLegalLengthKeepTheBubble) {
  int legal = 0;
  for (OrderInput input{.ranks = 2}; input.ranks <= 5; ++input.ranks) {
    for (input.chunks = 2; input.chunks <= 3; ++input.chunks) {
      for (input.microbatches = 1; input.microbatches <= 20; ++input.microbatches) {
        for (input.microbatch_group = 1; input.microbatch_group <= 9; ++input.microbatch_group) {
          // One group of few microbatches, as without the key.
          if (input.microbatch_group == input.microbatches && input.microbatches < input.ranks) continue;
          if (!can_order("interleaved", input)) {
            EXPECT_THROW(find_schedule("interleaved").order(input), Error);
            continue;
          }
          ++legal;
          EXPECT_EQ(bubble_of("interleaved", input), 3 * (input.ranks - 1))
              << described(find_schedule("interleaved"), input) << " in groups of " << input.microbatch_group;
          EXPECT_EQ(chunks_in_flight("interleaved", input).front(),
                    std::min(2 * (input.ranks - 1) + (input.chunks - 1) * input.microbatch_group + 1,
                             input.microbatches * input.chunks));
          EXPECT_TRUE(find_violations(add_exchange(ordered(find_schedule("interleaved"), input))).empty());
        }
      }
    }
  }
  EXPECT_GT(legal, 400);
}

std::string refusal(const OrderInput& input) {
  try {
    find_schedule("interleaved").order(input);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(Interleaved, ARefusalNamesTheNearestCountsThatWork) {
  EXPECT_EQ(refusal({.ranks = 4, .chunks = 2, .microbatches = 11}),
            "schedule interleaved on 4 ranks takes microbatches in equal groups, and 11 make no 2 of them; set "
            "microbatch_group = 6 for a shorter last one; set microbatches = 10 or 12");
  EXPECT_EQ(refusal({.ranks = 4, .chunks = 2, .microbatches = 11, .microbatch_group = 6}), "accepted");
  EXPECT_EQ(refusal({.ranks = 4, .chunks = 2, .microbatches = 13, .microbatch_group = 6}),
            "schedule interleaved on 4 ranks in groups of 6 microbatches leaves a group of 1, shorter than the ranks; "
            "set microbatches = 12 or 16");
  EXPECT_EQ(refusal({.ranks = 4, .chunks = 2, .microbatches = 12, .microbatch_group = 3}),
            "schedule interleaved on 4 ranks takes groups of at least 4 microbatches or of all, not 3; set "
            "microbatch_group = 4");
  // The group that is named is taken.
  for (int ranks = 2; ranks <= 6; ++ranks) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      const std::string text =
          refusal({.ranks = ranks, .chunks = 2, .microbatches = microbatches, .microbatch_group = 1});
      const std::string_view named = "set microbatch_group = ";
      if (text == "accepted") continue;
      ASSERT_NE(text.find(named), std::string::npos) << text;
      const int group = std::stoi(text.substr(text.find(named) + named.size()));
      EXPECT_EQ(refusal({.ranks = ranks, .chunks = 2, .microbatches = microbatches, .microbatch_group = group}),
                "accepted")
          << text;
    }
  }
  EXPECT_EQ(refusal({.ranks = 4, .chunks = 2, .microbatches = 8, .microbatch_group = 9}),
            "schedule interleaved: microbatch_group = 9 is more than the 8 microbatches of a step; set "
            "microbatch_group = 8, or microbatches = 9");
  EXPECT_TRUE(refusal({.ranks = 2, .chunks = 1, .microbatches = 4})
                  .starts_with("schedule interleaved runs at least 2 stages per rank, not 1; set chunks = 2 or "
                               "choose one of: gpipe, 1f1b"));
}

// Gathers of a rank by visit, of units a chunk, two chunks, n = microbatches / ranks rounds (schedules, section 3).
TEST(Interleaved, GathersByVisitFollowTheClosedFormulas) {
  for (int ranks : {2, 4, 8}) {
    for (int n : {2, 3, 4, 5}) {
      for (int units : {1, 2, 4}) {
        const OrderInput input{.ranks = ranks, .chunks = 2, .microbatches = n * ranks};
        const auto visits = gathers_of("interleaved", input, units, Residency::while_on_stage);
        const auto kept = gathers_of("interleaved", input, units, Residency::step);
        for (int rank = 0; rank < ranks; ++rank) {
          const int d = ranks - 1 - rank;
          const int expected = rank < ranks / 2 ? (8 * rank + 6) * n - (8 * rank + 1) : (8 * d + 2) * n - (8 * d - 1);
          EXPECT_EQ(visits[static_cast<std::size_t>(rank)], units * expected)
              << ranks << " ranks, " << n << " rounds, rank " << rank;
          EXPECT_EQ(kept[static_cast<std::size_t>(rank)], 2 * units);
        }
      }
    }
  }
}

// 4 ranks, 16 microbatches, 8 units a rank.
TEST(Interleaved, GathersAreThoseOfThePublishedExample) {
  const OrderInput two{.ranks = 4, .chunks = 2, .microbatches = 16}, four{.ranks = 4, .chunks = 4, .microbatches = 16};
  EXPECT_EQ(gathers_of("interleaved", two, 4, Residency::reshard_after_use), (std::vector{231, 251, 235, 207}));
  EXPECT_EQ(gathers_of("interleaved", two, 4, Residency::while_on_stage), (std::vector{92, 188, 132, 36}));
  EXPECT_EQ(gathers_of("interleaved", four, 2, Residency::reshard_after_use), (std::vector{231, 251, 235, 207}));
  EXPECT_EQ(gathers_of("interleaved", four, 2, Residency::while_on_stage), (std::vector{150, 198, 170, 122}));
}

}  // namespace
}  // namespace weft
