// From an order to a complete step: small pure functions from program to program, each adding one concern and nothing
// else. What is not in the list after the last pass does not happen.
#pragma once

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// Adds SEND/RECV between stages on different ranks: a receive just before its consumer, a send right after its
// producer. Where a rank is a thread, sends do not wait for their receiver, but at most one is outstanding per
// direction and pair; receives wait. On the lanes of a device both ends wait for each other, and hold their lanes
// meanwhile. Orders that would stand still either way have receives earlier, there and only there, and what these bring
// waits for its consumer: every order of the table stays as it is on lanes. check.h proves that the result runs both
// ways. An overlapped pair has both receives in front of it and both sends behind it.
Program add_exchange(Program program);

// Replaces each stage action by one action per segment of the stage, backward ones in reverse; the segments of an
// overlapped pair take turns. A stage without segments keeps its actions.
Program lower_to_segments(Program program);

// Adds R of every segment of a region (ProgramSegment) in front of the first input gradient of the region, for each
// microbatch; where no segment is in a region, nothing. For lists of segments.
Program add_recompute(Program program);

// Adds UNSHARD and RESHARD of every unit around its uses according to its policy. What a segment finds sharded is
// gathered together. With a lookahead of k that is where the k-th segment before it, of those that found something
// sharded, last began to be used: what is full beside the units in use is at most what the next k such segments need.
// Gathers are issued in order of need, and never before the unit's own RESHARD; where one would be issued right there,
// nothing computed between, both are left out and the unit stays. A gather stands in front of the receives of the
// action it is issued before, a RESHARD behind the sends of the last use: neither another rank nor this one waits for
// it longer than for the data.
Program add_residency(Program program);

// Adds REDUCE_GRAD (and SCATTER_GRAD, where gradients add up in shards) of every unit but those that a solved step
// (timed_step.h) has reduced, after the weight gradients that
// its policy names, replicated units included, frozen ones not.
Program add_reduction(Program program);

// Adds TIE_GRAD of units with a copy on another stage, at the end of every rank: both ranks take part, so behind it
// neither may have anything to do that the other waits for. Where one rank holds both copies, it sums them once.
Program add_ties(Program program);

// Adds GRAD_NORM and STEP at the end of every rank.
Program add_update(Program program);

// The passes up to there on a schedule's order: who computes what when, and nothing of units yet. Throws Error
// (request) when the schedule refuses the numbers.
Program place_order(const ProgramTables& tables, const Schedule& schedule, const OrderInput& input);
// The same of a user's own order, which has its counts itself (require_same_counts compares them with others). Throws
// Error (request) when the tables have other stages or put them on other ranks.
Program place_order(const ProgramTables& tables, const UserOrder& order);
// The other passes. Throws Error (request) naming a unit whose policy makes no sense by itself.
Program complete(Program placed);

// The model without training, for tables that are `forward_only`: forward order, exchange, segments and residency, and
// no more. Throws Error (request) naming a unit whose policy makes no sense by itself.
Program compile_forward(const ProgramTables& tables, int ranks, int microbatches);

// All of them in order.
Program compile(const ProgramTables& tables, const Schedule& schedule, const OrderInput& input);
Program compile(const ProgramTables& tables, const UserOrder& order);

}  // namespace weft
