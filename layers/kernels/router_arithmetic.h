// The arithmetic of a router that CPU and GPU share, as plain code of one thread. It has the router's rules, the places
// of tokens, the noise of the router's input, and the choice of experts by value. The choice is the CPU's kernel, and on
// a GPU it decides where a value is NaN. A NaN is larger than nothing, so the chosen experts are different ones in any
// case.
#pragma once

#include <cmath>
#include <cstdint>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

// sqrt_softplus: sqrt(log(1 + e^logit)).
enum class Scoring : std::uint8_t { softmax, sigmoid, sqrt_softplus };
constexpr auto enum_names(Scoring) {
  return name_list("softmax", "sigmoid", "sqrt_softplus");
}
// The choices of an expert beyond its capacity that go nowhere: those of the smallest weights, or of the last tokens.
enum class DropPolicy : std::uint8_t { probability, position };
constexpr auto enum_names(DropPolicy) {
  return name_list("probability", "position");
}

// The place in a text, sequence after sequence, of each row of a slice. Rows follow each other, or under context
// parallelism are two runs of each sequence (context_parallel.h).
struct TokenPlaces {
  std::int64_t first_place = 0;  // of row 0 of the microbatch
  std::int64_t first_row = 0;    // of the slice in the microbatch
  std::int64_t run = 0;          // rows of each of the two runs; 0: rows follow each other
  // Places between the two runs of a sequence, and from its second one to the first run of the next sequence.
  std::int64_t inside = 0, between = 0;

  WEFT_ON_ANY_DEVICE std::int64_t operator()(std::int64_t row) const {
    const std::int64_t at = first_row + row, runs = run == 0 ? 0 : at / run;
    return first_place + at + (runs + 1) / 2 * inside + runs / 2 * between;
  }
};

// A number near 1: evenly from [1 - noise, 1 + noise], in steps of noise * 2^-23. The finaliser of MurmurHash3 mixes
// the key of a token and a column.
WEFT_ON_ANY_DEVICE inline float jitter_factor(std::uint32_t key, std::uint32_t column, float noise) {
  std::uint32_t bits = key ^ (column * 0x9e3779b9u);
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
  bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
  bits ^= bits >> 16;
  const float even = static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;  // exact
  return fmaf(noise, even, 1.0f);
}

// The sum of the two largest values of a group, or its only value. `value(e)` is that of expert e.
template <typename Value>
WEFT_ON_ANY_DEVICE float group_value(const Value& value, int group, int experts_of_group) {
  const int first_expert = group * experts_of_group;
  float first = value(first_expert);
  if (experts_of_group == 1) return first;
  float second = value(first_expert + 1);
  if (second > first) {
    const float smaller = first;
    first = second, second = smaller;
  }
  for (int i = 2; i < experts_of_group; ++i) {
    const float next = value(first_expert + i);
    if (next > first) {
      second = first, first = next;
    } else if (next > second) {
      second = next;
    }
  }
  return first + second;
}

constexpr std::uint32_t all_expert_groups = 0xffffffffu;
constexpr int groups_of_mask = 32;

// Bit g is set for the `chosen` groups of the largest values, ties to the lower group. At most groups_of_mask groups.
template <typename Value>
WEFT_ON_ANY_DEVICE std::uint32_t choose_groups(const Value& value, int experts, int groups, int chosen) {
  if (groups == chosen) return all_expert_groups;
  float of_group[groups_of_mask];
  for (int g = 0; g < groups; ++g) of_group[g] = group_value(value, g, experts / groups);
  std::uint32_t mask = 0;
  for (int round = 0; round < chosen; ++round) {
    int best = -1;
    for (int g = 0; g < groups; ++g) {
      const bool left = (mask >> g & 1u) == 0;
      if (left && (best < 0 || of_group[g] > of_group[best])) best = g;
    }
    mask |= 1u << best;
  }
  return mask;
}

// Insertion into a short sorted list. Experts come in ascending order and move past strictly smaller values only, so
// the lower of two equal experts stays first. Only experts of the groups in `mask` come.
template <typename Value>
WEFT_ON_ANY_DEVICE void choose_experts(const Value& value, int experts, std::uint32_t mask, int experts_of_group,
                                       int choices, std::int32_t* chosen) {
  int come = 0;
  for (int e = 0; e < experts; ++e) {
    if (mask != all_expert_groups && (mask >> (e / experts_of_group) & 1u) == 0) continue;
    const int place = come++;
    if (place >= choices && !(value(e) > value(chosen[choices - 1]))) continue;
    int at = place < choices - 1 ? place : choices - 1;
    for (; at > 0 && value(e) > value(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
}

}  // namespace weft
