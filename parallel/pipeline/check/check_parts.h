// The parts of the checker. Each walks the lists independently and appends its findings; check.cpp combines them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/pieces.h"

namespace weft {

struct CheckContext {
  const Program& program;
  const PieceTable& pieces;
  std::vector<int> replicas;  // by row: the first row of its group of replicas

  std::size_t rows() const { return program.ranks.size(); }
  const std::vector<Action>& list(int row) const { return program.ranks[row]; }
  // Replicas run the same stages; `rank` may be any number.
  bool stands_for(int row, int rank) const {
    return rank >= 0 && rank < static_cast<int>(rows()) && replicas[row] == replicas[rank];
  }
  bool runs(int row, int stage) const { return stands_for(row, program.stages[stage].rank); }
  // Whether the action is well formed and on a stage of this row.
  bool legible(int row, const Action& action) const {
    return !malformed(program, pieces, action) && (!action.stage || runs(row, *action.stage));
  }
};

// A walk over the list of one row, and what it finds there.
class RowWalk {
 protected:
  RowWalk(const CheckContext& context, int row, std::vector<Finding>& findings)
      : context_(context), program_(context.program), row_(row), findings_(findings) {}

  void found(Violation violation, std::string message) {
    findings_.push_back({violation, row_, index_, std::move(message)});
  }
  template <typename Arg, typename... Args>
  void found(Violation violation, fmt::format_string<Arg, Args...> text, Arg&& arg, Args&&... args) {
    found(violation, fmt::format(text, std::forward<Arg>(arg), std::forward<Args>(args)...));
  }

  const CheckContext& context_;
  const Program& program_;
  int row_;
  std::vector<Finding>& findings_;
  std::size_t index_ = 0;  // of the action at hand
};

// One end of a message, in list order of its rank. Ends are as numerous as actions, so their numbers are narrow; no
// program exceeds them (orders/order_input.h).
struct End {
  int rank = 0;
  std::uint32_t index = 0;  // position in the rank's list
  std::uint32_t channel = 0;
  std::uint32_t turn = 0;        // number in its channel, on this side
  std::tuple<int, int> message;  // stage that sends, microbatch
  bool sends = false;
};

// Messages from one rank to another in one direction of the pass. They arrive in order.
struct Channel {
  int from = 0, to = 0;
  std::vector<End> sends, receives;
};

struct Exchange {
  std::vector<Channel> channels;
  std::vector<std::vector<End>> ranks;  // the ends of every rank, in list order

  int peer(const End& end) const { return end.sends ? channels[end.channel].to : channels[end.channel].from; }
};

// All legible ends, whether or not they match.
Exchange collect_messages(const CheckContext& context);

// Compute and exchange of one rank: stages exist, each piece runs once and in order, data is there before it is read.
void check_compute(const CheckContext& context, int row, std::vector<Finding>& findings);
// Units of one rank: gathered before they are read, reduced once and in time, updated last.
void check_units(const CheckContext& context, int row, std::vector<Finding>& findings);
// Kept bytes of one rank: copied to host memory once they exist, and back before they are read.
void check_offload(const CheckContext& context, int row, std::vector<Finding>& findings);
// All ranks: sends and receives match and are in one order; no deadlock, neither with ranks as threads nor on lanes.
void check_exchange(const CheckContext& context, std::vector<Finding>& findings);

// Whether the messages of a program deadlock on the lanes of devices (parallel/runtime/lane.h), where both ends of a
// message occupy their lanes. Each rank's host walks the list and queues messages on their lanes. Each lane runs in the
// order of the list. A message passes when both its ends are at the head of their lanes; until then a send holds its
// lane, as a receive does. Compute waits for the messages with its data.
//
// The host waits for the end of each compute action, as it does if tokens are counted by expert. A host that runs ahead
// has fewer waits, so a program that passes here also runs with such a host.
//
// A circle of ranks and lanes that wait for each other; absent if there is none. The messages of `exchange` must match,
// in order. Takes time linear in the lengths of the lists. `queues`: the queue of each lane; lanes with one number are
// one stream.
std::optional<Finding> find_lane_deadlock(const CheckContext& context, const Exchange& exchange,
                                          const LaneNumbers& queues = own_numbers);

}  // namespace weft
