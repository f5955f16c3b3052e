// From an order to a complete step: small pure functions from program to program, each adding one concern. The list
// after the last pass is complete: an action that is not in it does not happen.
#pragma once

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// Adds SEND/RECV between stages on different ranks: a receive just before its consumer, a send right after its
// producer. If ranks are threads, sends do not wait for their receiver, but at most one is outstanding per direction
// and pair of ranks; receives wait. On the lanes of a device both ends wait for each other and hold their lanes
// meanwhile. Receives move earlier where an order would deadlock in one of these ways, and nowhere else; their data
// then waits for its consumer. No order of the table needs that on lanes. check.h proves that the result runs both
// ways. An overlapped pair has both receives in front of it and both sends behind it.
Program add_exchange(Program program);

// Part of add_exchange. A send holds its lane until the peer has come to the receive on its own lane. check_parts.h
// states the rules and proves the result independently. Runs the messages of stage-level lists as far as they go. In a
// deadlock, a message at the head of its sender's lane has its receive moved to the head of the receiver's lane.
// Returns the number of moved receives: 0 for every schedule of the table.
int take_messages_earlier_on_lanes(Program& program);

// Replaces each stage action by one action per segment of the stage, in reverse for backwards. A stage without segments
// keeps its actions.
Program lower_to_segments(Program program);

// Adds R of every segment of a region (ProgramSegment) in front of the first input gradient of the region, for each
// microbatch. Lists must be lowered to segments. A program without regions stays as it is.
Program add_recompute(Program program);

// Lets the halves of overlapped pairs alternate, because a rank runs its list in order. Segments that exchange rows
// between experts are cut into parts there, with ROWS_F, ROWS_R or ROWS_B behind each except the last. A half goes on
// until such an exchange, which then runs on its own lane beside the other half. The backward begins, since its first
// exchange needs almost no computation, and the forward's last hides behind the backward's end. Elsewhere segments take
// turns, the forward first. A half with more turns takes several per turn of the other, evenly.
Program alternate_pairs(Program program);

// Adds UNSHARD and RESHARD of every unit around its uses, by the policy of the unit. Units that a segment finds sharded
// are gathered together. With a lookahead of k, their gather is issued where the k-th such segment before it last began
// to be used. Full parameters beside the units in use are thus at most those that the next k such segments need.
// Gathers are issued in order of need, and never before the unit's own RESHARD. If a gather would follow that RESHARD
// without computation in between, both are left out and the unit stays. Gathers of a backward begin later than that
// where the policy's backward_prefetch says so. With within_stage all of them wait until the rank is at their stage. A
// gather stands in front of the receives of the action it is issued before. A RESHARD stands behind the sends of the
// last use. So neither delays a message.
Program add_residency(Program program);

// Adds REDUCE_GRAD (and SCATTER_GRAD, if gradients add up in shards) of every unit after the weight gradients that its
// policy names, replicated units included. A gather of BackwardPrefetch::post goes before them. Left out are frozen
// units, tied_unreduced units (add_ties), and units with reductions placed by a solved step (timed_step.h).
Program add_reduction(Program program);

// Adds TIE_GRAD of units with a copy on another stage, at the end of every rank, and REDUCE_GRAD behind it of
// tied_unreduced units. All ranks with a copy take part, so behind it none may have work that another waits for. A rank
// that holds several copies sums them once.
Program add_ties(Program program);

// Adds GRAD_NORM and STEP at the end of every rank.
Program add_update(Program program);

// Adds the copies of bytes that a forward keeps in host memory (ProgramSegment::offload_bytes). OFFLOAD stands behind
// the forward, and WAIT_OFFLOAD behind the next computation of the rank. RELOAD stands in front of the last computation
// before the bytes are read. So one computation runs beside each copy. Bytes that would be away for no computation
// stay.
Program add_offload(Program program);

// add_exchange, lower_to_segments, add_recompute and alternate_pairs on a schedule's order: computations and messages,
// but no unit actions yet. Throws Error (request) if the schedule refuses the counts.
Program lower_order(const ProgramTables& tables, const Schedule& schedule, const OrderInput& input);
// The same for a user's own order, which sets its counts itself (require_same_counts compares them with others). Both
// throw Error (request) if the tables have other stages or place them on other ranks.
Program lower_order(const ProgramTables& tables, const UserOrder& order);
// The other passes of a step. Throws Error (request) naming a unit with a policy that is invalid by itself.
Program complete(Program placed);

// The model without training, for tables that are `forward_only`: forward order, exchange, segments and residency,
// nothing more. Throws Error (request) naming a unit with a policy that is invalid by itself.
Program compile_forward(const ProgramTables& tables, int ranks, int microbatches);

// All passes in order.
Program compile(const ProgramTables& tables, const Schedule& schedule, const OrderInput& input);
Program compile(const ProgramTables& tables, const UserOrder& order);

}  // namespace weft
