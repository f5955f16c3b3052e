#include "parallel/pipeline/passes/passes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {
namespace {

// Messages are queued as far as computation has come. Each lane passes its messages in the order of its rank's list.
class LaneDelivery {
 public:
  explicit LaneDelivery(Program& program)
      : program_(program),
        ranks_(program.ranks.size()),
        queued_(2 * program.stages.size() * program.microbatches),
        arrived_(queued_.size()) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].passed.resize(program.ranks[rank].size());
  }

  int run() {
    for (int moved = 0;; ++moved) {
      while (advance()) {
      }
      if (!take_earlier()) return moved;
    }
  }

 private:
  struct RankState {
    std::size_t host = 0;                                  // all actions before it are computed or queued
    std::vector<bool> passed;                              // by position: messages that have passed
    std::array<std::size_t, all_lanes.size()> heads = {};  // by lane: all its messages before it have passed
  };

  // The number of a message, from its direction, sending stage and microbatch.
  std::size_t message(bool forward, int sender, int microbatch) const {
    const std::size_t stage = static_cast<std::size_t>(sender) + (forward ? 0 : program_.stages.size());
    return stage * program_.microbatches + microbatch;
  }
  std::size_t message_of(const Action& action) const {
    const bool forward = carries_activations(action.op);
    return message(forward, is_send(action.op) ? *action.stage : other_stage(action.op, *action.stage),
                   *action.microbatch);
  }

  // The position of the message at the head of a lane, or the host's position if none is queued.
  std::size_t head(std::size_t rank, Lane lane) {
    RankState& own = ranks_[rank];
    const auto& actions = program_.ranks[rank];
    std::size_t& at = own.heads[static_cast<std::size_t>(lane)];
    while (at < own.host && (own.passed[at] || lane_of(program_, actions[at]) != lane)) ++at;
    return at;
  }

  bool waits(const Action& action) const {
    if (!hands_on(action.op)) return false;
    const Op op = action.op == Op::forward ? Op::receive_forward : Op::receive_backward;
    return crosses_ranks(program_, op, *action.stage) &&
           !arrived_[message(op == Op::receive_forward, other_stage(op, *action.stage), *action.microbatch)];
  }

  bool advance() {
    bool moved = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      RankState& own = ranks_[rank];
      const auto& actions = program_.ranks[rank];
      for (; own.host < actions.size() && !waits(actions[own.host]); ++own.host) {
        if (is_send(actions[own.host].op)) queued_[message_of(actions[own.host])] = ++sends_;
        moved = true;
      }
      for (const MessageLanes& lanes : message_lanes) {
        while (pass_head(rank, lanes)) moved = true;
      }
    }
    return moved;
  }

  // Passes the message at the head of a lane of the sending rank, if its receive is at the head of the peer's lane.
  bool pass_head(std::size_t rank, const MessageLanes& lanes) {
    const std::size_t at = head(rank, lanes.send);
    if (at == ranks_[rank].host) return false;
    const Action& send = program_.ranks[rank][at];
    const auto peer = static_cast<std::size_t>(*send.peer);
    const std::size_t there = head(peer, lanes.receive);
    if (there == ranks_[peer].host) return false;
    if (message_of(program_.ranks[peer][there]) != message_of(send)) return false;
    ranks_[rank].passed[at] = ranks_[peer].passed[there] = true;
    arrived_[message_of(send)] = true;
    return true;
  }

  // Of the messages at the head of their sender's lane, the one that was queued first is received earlier. Its receive
  // then stands only in front of actions later than its send, so ranks that wait at each receive do not deadlock
  // either.
  bool take_earlier() {
    std::optional<std::size_t> first;
    std::size_t peer = 0, from = 0, to = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const MessageLanes& lanes : message_lanes) {
        const std::size_t at = head(rank, lanes.send);
        if (at == ranks_[rank].host) continue;
        const Action& send = program_.ranks[rank][at];
        const auto there = static_cast<std::size_t>(*send.peer);
        const auto& actions = program_.ranks[there];
        const auto begin = actions.begin() + static_cast<std::ptrdiff_t>(head(there, lanes.receive));
        const auto receive = std::find_if(begin, actions.end(), [&](const Action& other) {
          return is_receive(other.op) && message_of(other) == message_of(send);
        });
        // A send without a receive stays; check.h reports it.
        if (receive == actions.end()) continue;
        const std::size_t turn = queued_[message_of(send)];
        if (first && turn > *first) continue;
        first = turn;
        peer = there;
        from = static_cast<std::size_t>(receive - actions.begin());
        to = static_cast<std::size_t>(begin - actions.begin());
      }
    }
    if (!first) return false;
    const auto rotate = [&](auto& list) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(to);
      std::rotate(begin, begin + static_cast<std::ptrdiff_t>(from - to),
                  begin + static_cast<std::ptrdiff_t>(from - to) + 1);
    };
    RankState& state = ranks_[peer];
    rotate(program_.ranks[peer]);
    rotate(state.passed);
    // The actions in between have moved back by one; the lanes search for their heads again from here.
    for (std::size_t& at : state.heads) at = std::min(at, to);
    state.host += state.host > to && state.host <= from ? 1 : 0;
    return true;
  }

  Program& program_;
  std::vector<RankState> ranks_;
  // By message: its number among all sends, in the order of queueing, and whether it has passed.
  std::vector<std::size_t> queued_;
  std::vector<bool> arrived_;
  std::size_t sends_ = 0;
};

}  // namespace

int take_messages_earlier_on_lanes(Program& program) {
  return LaneDelivery(program).run();
}

}  // namespace weft
