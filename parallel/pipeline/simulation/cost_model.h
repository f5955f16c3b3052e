// Costs of a program from the capabilities of the hardware. Floating-point operations have one rate for forward and one
// for backward. Collectives have the speed of the slowest link that their group crosses. A pure function of tables and
// numbers.
//
// A collective over n ranks, with the payload that counters.h counts, takes as long as a ring:
//
//   all_gather, reduce_scatter   (n - 1) latency + (n - 1) / n payload / bytes_per_second
//   all_reduce                   twice that: one of each
//   all_to_all                   (n - 1) latency + (n - 1) / n payload / exchange rate: a rank's own part is free
//   broadcast, a message         latency + payload / bytes_per_second
//
// Inside an action the exchange of rows to the experts overlaps with products that need no rows, and nothing else does.
// An action in parts exchanges rows beside others. Routed tokens are dealt evenly. Work that is neither a product nor
// communication (norms, optimizer) takes no time. Only the optimizer waits for states that come from host memory and go
// back, both ways at once. A collective that leaves its node shares the node's adapters with other transfers at the
// same time. Its bytes over all adapters of the node are the shared seconds (simulate.h).
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "parallel/pipeline/simulation/costs.h"

namespace weft {

// A group's share of its node's adapters if all groups of its kind communicate and nothing else does: in a ring, and in
// an all_to_all. Bytes per second.
struct AdapterRates {
  double ring = 0.0, exchange = 0.0;
  bool operator==(const AdapterRates&) const = default;
};

struct LinkCost {
  double latency = 0.0;  // seconds
  double bytes_per_second = 0.0;
  // Rate of an all_to_all, if different: its ranks send to all others, the ranks of a ring only to their neighbours.
  std::optional<double> exchange_bytes_per_second = {};
  std::optional<AdapterRates> adapters = {};  // for a group that leaves its node

  bool operator==(const LinkCost&) const = default;
};

struct HardwareCosts {
  double seconds_per_flop_forward = 0.0, seconds_per_flop_backward = 0.0;
  // The link of Group::pp carries messages between stages, and gradients of copies on two stages (Group::tied).
  std::map<Group, LinkCost> links = {};
  std::vector<int> nodes = {};         // by pipeline rank: ProgramCosts::adapters
  double host_bytes_per_second = 0.0;  // in each direction; read only if something is copied there

  bool operator==(const HardwareCosts&) const = default;
};

// Number of ranks of each group, by kind, except islands: their size is in the policy of a unit.
using GroupSizes = std::map<Group, int>;
GroupSizes group_sizes(const Mesh& mesh);

// Floating-point operations of one microbatch on one rank; `spared`: those of the forward that a recompute leaves out.
struct SegmentFlops {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
  double spared = 0.0;
  // Of forward, of R and of backward_input each: those that run while rows travel to the experts.
  double beside = 0.0;
};

// Seconds of a collective over `ranks` ranks; 0 for a single rank.
double link_seconds(const LinkCost& link, CollectiveOp op, double payload, int ranks);

// Seconds of a unit's collectives, by kind of action. Throws Error (request) for a group of several ranks without a
// link.
UnitCost unit_cost(const ProgramTables& tables, const ProgramUnit& unit, const std::map<Group, LinkCost>& links,
                   const GroupSizes& sizes);

// The part of modelled_costs that compute actions spend in collectives and in nothing else, by the group of these.
// Without `flops` nothing runs beside collectives: all of their seconds. Throws Error (request) for a group of several
// ranks without a link.
std::map<Group, ActionCosts> compute_collectives(const ProgramTables& tables, std::span<const SegmentFlops> flops,
                                                 const HardwareCosts& hardware, const GroupSizes& sizes);

// `flops` by segment; empty if unknown (a bare schedule). Throws Error (request) like unit_cost.
ProgramCosts modelled_costs(const ProgramTables& tables, std::span<const SegmentFlops> flops,
                            const HardwareCosts& hardware, const GroupSizes& sizes);

}  // namespace weft
