// Costs of a program from what hardware can do: floating-point operations at one rate forward and one backward, and
// collectives at the speed of the slowest link that their group crosses. A pure function of tables and numbers.
//
// A collective over n ranks, with the payload that counters.h counts, takes as long as a ring does:
//
//   all_gather, reduce_scatter   (n - 1) latency + (n - 1) / n payload / bytes_per_second
//   all_reduce                   twice that: one of each
//   all_to_all                   (n - 1) latency + (n - 1) / n payload / exchange rate: what stays at home is free
//   broadcast, a message         latency + payload / bytes_per_second
//
// Nothing overlaps inside an action, routed tokens are dealt evenly, and what is neither a product nor
// communication (norms, optimizer) takes no time. Of a collective that leaves its node, the bytes that leave it over
// all adapters of the node are seconds that it shares with whatever leaves at the same time (simulate.h).
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "parallel/pipeline/simulation/costs.h"

namespace weft {

// What a group has of the adapters of its node when all groups of its kind communicate and nothing else does: in a
// ring, and in an all_to_all. Bytes a second.
struct AdapterRates {
  double ring = 0.0, exchange = 0.0;
  bool operator==(const AdapterRates&) const = default;
};

struct LinkCost {
  double latency = 0.0;  // seconds
  double bytes_per_second = 0.0;
  // Of an all_to_all, where that is another: its ranks send to all others, those of a ring to their neighbours alone.
  std::optional<double> exchange_bytes_per_second = {};
  std::optional<AdapterRates> adapters = {};  // of a group that leaves its node

  bool operator==(const LinkCost&) const = default;
};

struct HardwareCosts {
  double seconds_per_flop_forward = 0.0, seconds_per_flop_backward = 0.0;
  // Those of Group::pp carry the messages between stages, and the gradients of copies on two of them (Group::tied).
  std::map<Group, LinkCost> links = {};
  std::vector<int> nodes = {};  // by pipeline rank: ProgramCosts::adapters

  bool operator==(const HardwareCosts&) const = default;
};

// Ranks of each group, by kind. Islands are not among them: their size is in the policy of a unit.
using GroupSizes = std::map<Group, int>;
GroupSizes group_sizes(const Mesh& mesh);

// Floating-point operations of one microbatch on one rank.
struct SegmentFlops {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
};

// Seconds of a collective over so many ranks; none over one.
double link_seconds(const LinkCost& link, CollectiveOp op, double payload, int ranks);

// What the collectives of a unit take, by kind of action. Throws Error (request) for a group of several ranks without a
// link.
UnitCost unit_cost(const ProgramUnit& unit, const std::map<Group, LinkCost>& links, const GroupSizes& sizes);

// `flops` by segment; empty where nothing is known of them (a bare schedule). Throws Error (request) as unit_cost.
ProgramCosts modelled_costs(const ProgramTables& tables, std::span<const SegmentFlops> flops,
                            const HardwareCosts& hardware, const GroupSizes& sizes);

}  // namespace weft
