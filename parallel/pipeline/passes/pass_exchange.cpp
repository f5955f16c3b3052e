#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/insertion.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/program/program.h"

namespace weft {
namespace {

// The two actions of an overlapped pair begin together and end together. The data of both is received before the pair,
// the results of both are sent behind it, forward first.
std::vector<Action> with_exchange(const ProgramTables& tables, const std::vector<Action>& actions) {
  std::vector<Insertion> insertions;
  for (std::size_t begin = 0; begin < actions.size();) {
    const std::size_t end = begin + (pair_begins_at(actions, begin) ? 2 : 1);
    const auto exchange = [&](Op forward, Op backward, std::size_t position) {
      for (std::size_t i = begin; i < end; ++i) {
        const Action& action = actions[i];
        if (action.op != Op::forward && !makes_input_gradient(action.op)) continue;
        const Op op = action.op == Op::forward ? forward : backward;
        const int stage = action.stage.value();
        if (!crosses_ranks(tables, op, stage)) continue;
        insertions.push_back({position, exchange_action(tables, op, stage, action.microbatch.value())});
      }
    };
    exchange(Op::receive_forward, Op::receive_backward, begin);
    exchange(Op::send_forward, Op::send_backward, end);
    begin = end;
  }
  return insert_actions(actions, insertions);
}

// Runs the messages of all ranks as far as they go. In a deadlock a rank cannot send before its previous message is
// taken; the peer then takes that message earlier, at its current position. Of several such messages, the one with the
// farthest receive moves: the others are taken in their turn later.
class Delivery {
 public:
  explicit Delivery(std::vector<std::vector<Action>>& ranks) : ranks_(ranks), at_(ranks.size(), 0) {}

  // Whether all ranks came to the end of their lists.
  bool run() {
    do {
      while (advance()) {
      }
    } while (take_earlier());
    return std::ranges::all_of(std::views::iota(0, static_cast<int>(ranks_.size())),
                               [this](int rank) { return next(rank) == nullptr; });
  }

 private:
  using Channel = std::tuple<int, int, bool>;  // from, to, forward
  using Message = std::pair<int, int>;         // stage that sends, microbatch

  static Channel channel_of(int rank, const Action& action) {
    const bool forward = carries_activations(action.op);
    return is_send(action.op) ? Channel(rank, *action.peer, forward) : Channel(*action.peer, rank, forward);
  }
  static Message message_of(const Action& action) {
    return {is_send(action.op) ? *action.stage : other_stage(action.op, *action.stage), *action.microbatch};
  }

  const Action* next(int rank) const {
    const auto& actions = ranks_[rank];
    const std::size_t at = at_[rank];
    return at < actions.size() ? &actions[at] : nullptr;
  }

  bool pass(int rank, const Action& action) {
    if (!is_message(action.op)) return true;
    auto& under_way = under_way_[channel_of(rank, action)];
    if (is_send(action.op) ? under_way.has_value() : under_way != message_of(action)) return false;
    under_way = is_send(action.op) ? std::optional(message_of(action)) : std::nullopt;
    return true;
  }

  bool advance() {
    bool moved = false;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      for (const Action* action = next(rank); action && pass(rank, *action); action = next(rank)) {
        ++at_[rank];
        moved = true;
      }
    }
    return moved;
  }

  bool take_earlier() {
    std::optional<std::size_t> peer_to_move;
    std::ptrdiff_t farthest = 0;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const Action* action = next(rank);
      if (!action || !is_send(action->op)) continue;
      const auto peer = static_cast<std::size_t>(*action->peer);
      const auto begin = ranks_[peer].begin() + static_cast<std::ptrdiff_t>(at_[peer]), end = ranks_[peer].end();
      const Channel channel = channel_of(rank, *action);
      const auto receive = std::find_if(begin, end, [&](const Action& other) {
        return is_receive(other.op) && channel_of(*action->peer, other) == channel &&
               message_of(other) == under_way_.at(channel);
      });
      // A message that is never taken, or taken in another order, stays; check.h reports it.
      if (receive == end || receive - begin <= farthest) continue;
      farthest = receive - begin;
      peer_to_move = peer;
    }
    if (!peer_to_move) return false;
    const auto stands = ranks_[*peer_to_move].begin() + static_cast<std::ptrdiff_t>(at_[*peer_to_move]);
    std::rotate(stands, stands + farthest, stands + farthest + 1);
    return true;
  }

  std::vector<std::vector<Action>>& ranks_;
  std::vector<std::size_t> at_;
  std::map<Channel, std::optional<Message>> under_way_;
};

// Every message is received as soon as it is made. All lists then follow one global order, and the first unfinished
// action of that order never waits. Absent if the order itself cannot run. Ranks take turns, so that no rank runs far
// ahead and makes the others receive long before they need the data. Messages already in `order` are left out.
std::optional<std::vector<std::vector<Action>>> received_when_made(Program order) {
  for (auto& actions : order.ranks)
    std::erase_if(actions, [](const Action& action) { return action.peer.has_value(); });
  std::vector<std::vector<Action>> lists(order.ranks.size());
  std::vector<std::size_t> at(order.ranks.size(), 0);
  std::set<std::tuple<bool, int, int>> made;  // activation or gradient, by stage, microbatch
  const auto ready = [&](const Action& action) {
    const bool forward = action.op == Op::forward;
    if (!forward && !makes_input_gradient(action.op)) return true;
    const int other = other_stage(forward ? Op::receive_forward : Op::receive_backward, *action.stage);
    return other < 0 || other >= static_cast<int>(order.stages.size()) ||
           made.contains({forward, other, *action.microbatch});
  };
  const auto run_next = [&](std::size_t rank) {
    const auto& actions = order.ranks[rank];
    const std::size_t begin = at[rank];
    if (begin == actions.size()) return false;
    const std::span next(actions.data() + begin, pair_begins_at(actions, begin) ? 2 : 1);
    if (!std::ranges::all_of(next, ready)) return false;
    lists[rank].insert(lists[rank].end(), next.begin(), next.end());
    for (const Action& action : next) {
      const bool forward = action.op == Op::forward;
      if (!forward && !makes_input_gradient(action.op)) continue;
      made.insert({forward, *action.stage, *action.microbatch});
      const Op send = forward ? Op::send_forward : Op::send_backward;
      if (!crosses_ranks(order, send, *action.stage)) continue;
      const Action sent = exchange_action(order, send, *action.stage, *action.microbatch);
      lists[rank].push_back(sent);
      lists[*sent.peer].push_back(exchange_action(order, forward ? Op::receive_forward : Op::receive_backward,
                                                  other_stage(send, *action.stage), *action.microbatch));
    }
    at[rank] += next.size();
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) moved = run_next(rank) || moved;
  }
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    if (at[rank] < order.ranks[rank].size()) return std::nullopt;
  }
  return lists;
}

}  // namespace

Program add_exchange(Program program) {
  for (auto& actions : program.ranks) actions = with_exchange(program, actions);
  // A receive moved for threads may block lanes, and the reverse. Receives only move to the front, so the loop ends. If
  // these steps cannot satisfy both, which takes an erratic order, all receives are placed at once.
  bool runs = false;
  do {
    runs = Delivery(program.ranks).run();
  } while (runs && take_messages_earlier_on_lanes(program) > 0);
  if (!runs) {
    if (auto lists = received_when_made(program)) program.ranks = std::move(*lists);
  }
  return program;
}

}  // namespace weft
