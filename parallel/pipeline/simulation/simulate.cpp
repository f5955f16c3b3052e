#include "parallel/pipeline/simulation/simulate.h"

#include <algorithm>
#include <utility>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/program/pieces.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/simulation/simulate_state.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

using walking::Connection;
using walking::Instant;
using walking::RankState;
using walking::Start;
using walking::ToldAction;

bool has_messages(const Program& program) {
  return std::ranges::any_of(program.ranks, [](const std::vector<Action>& actions) {
    return std::ranges::any_of(actions, [](const Action& action) { return is_message(action.op); });
  });
}

// Runs all lists, each as far as the others let it. Every time is the maximum of a few earlier ones plus a cost. So the
// result does not depend on the order in which ranks are visited. A visit ends at a wait; the end of the wait queues
// the rank again.
class Walk {
 public:
  // `seconds` of each action, rank by rank, replace the costs if given; `told` collects the waits of each action.
  Walk(const Program& program, const ProgramCosts& costs, const LaneChannels& channels,
       const std::vector<double>* seconds = nullptr, std::vector<ToldAction>* told = nullptr)
      : program_(program),
        costs_(costs),
        channels_(channels),
        seconds_(seconds),
        told_(told),
        pieces_(program),
        ranks_(program.ranks.size()),
        exchanged_(has_messages(program)),
        units_(program),
        data_(program, pieces_, exchanged_) {
    result_.ranks.resize(ranks_.size());
    std::size_t actions = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      result_.ranks[rank].resize(program.ranks[rank].size());
      first_.push_back(actions);
      actions += program.ranks[rank].size();
      bool norm = false;
      for (const Action& action : program.ranks[rank]) {
        require_legible(rank, action);
        norm = norm || action.op == Op::gradient_norm;
      }
      if (norm) ++ranks_with_norm_;
    }
    if (told_ != nullptr) told_->resize(actions);
    for (std::size_t rank = 0; !exchanged_ && rank < ranks_.size(); ++rank) {
      ranks_[rank].overlaps = find_overlaps(program.ranks[rank]);
    }
  }

  Simulation run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) queue(rank);
    while (!queue_.empty()) {
      const std::size_t rank = queue_.back();
      queue_.pop_back();
      ranks_[rank].queued = false;
      while (ranks_[rank].next < program_.ranks[rank].size() && step(rank)) ++ranks_[rank].next;
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::size_t next = ranks_[rank].next;
      if (next == program_.ranks[rank].size()) continue;
      fail("rank {} waits for ever at {}, action {} of its list", rank,
           format_action(program_, program_.ranks[rank][next]), next);
    }
    for (const auto& actions : result_.ranks) {
      for (const SimulatedAction& action : actions) result_.seconds = std::max(result_.seconds, action.end);
    }
    return std::move(result_);
  }

 private:
  void require_legible(std::size_t rank, const Action& action) const {
    auto reason = malformed(program_, pieces_, action);
    if (!reason && takes_unit(action.op) && !action.unit) reason = "it names no unit";
    if (!reason && is_message(action.op)) {
      const int other = other_stage(action.op, *action.stage);
      const int ranks = static_cast<int>(ranks_.size());
      if (other < 0 || other >= static_cast<int>(program_.stages.size())) reason = "there is no stage at its other end";
      if (!action.peer || *action.peer < 0 || *action.peer >= ranks) reason = "it names no rank at its other end";
    }
    if (reason) fail("rank {} cannot run its {}: {}", rank, name_of(action.op), *reason);
  }

  void queue(std::size_t rank) {
    if (!std::exchange(ranks_[rank].queued, true)) queue_.push_back(rank);
  }

  // Runs the next action of the rank; false if another rank has to run first.
  bool step(std::size_t rank) {
    const Action& action = program_.ranks[rank][ranks_[rank].next];
    if (is_compute(action.op)) return compute(rank, action);
    if (is_send(action.op)) return send(rank, action);
    if (is_receive(action.op)) return receive(rank, action);
    if (action.op == Op::gradient_norm) return norm(rank);
    if (is_row_exchange(action.op)) exchange_rows(rank, action);
    if (is_host_copy(action.op)) copy(rank, action);
    if (action.op == Op::wait_offload) wait_offload(rank, action);
    if (is_gather(action.op)) gather(rank, action);
    if (is_reshard(action.op)) reshard(rank, action);
    if (is_reduction(action.op)) reduce(rank, action);
    if (action.op == Op::tie_gradient) return tie(rank, action);
    if (action.op == Op::wait_reduction) wait_reduction(rank, action);
    if (action.op == Op::optimizer_step) ranks_[rank].compute = settle(rank, Lane::compute, begin(rank, Lane::compute));
    return true;
  }

  Instant& channel_free(std::size_t rank, Lane lane) { return ranks_[rank].channel_free[channels_.of(lane)]; }
  Start begin(std::size_t rank, Lane lane) { return begin_at(channel_free(rank, lane)); }
  Start begin_at(const Instant& instant, Wait wait = Wait::nothing) {
    all_.clear();
    if (told_ != nullptr && instant.end_of) all_.push_back(*instant.end_of);
    return {instant, wait, told_ == nullptr ? nullptr : &all_};
  }

  std::size_t number(const ActionAt& at) const { return first_[at.rank] + at.index; }
  ActionAt next_of(std::size_t rank) const { return {static_cast<int>(rank), ranks_[rank].next}; }

  // Tells the waits of the rank's next action: all that were named since its begin().
  void tell_waits(std::size_t rank) {
    if (told_ == nullptr) return;
    ToldAction& action = (*told_)[number(next_of(rank))];
    for (const ActionAt& at : std::exchange(all_, {})) action.after.push_back(number(at));
  }
  void tell_seconds(std::size_t rank, double seconds) {
    if (told_ == nullptr) return;
    ToldAction& action = (*told_)[number(next_of(rank))];
    action.seconds = seconds;
    action.adapters = costs_.adapters_of(rank);
    action.adapter_seconds = adapter_seconds(program_, costs_, channels_, action_at(rank));
  }
  // Tells that the next action of the rank waits for actions of other ranks, all with this number.
  void tell_meeting(std::size_t rank, std::size_t meeting) {
    if (told_ != nullptr) (*told_)[number(next_of(rank))].meeting = meeting;
  }

  // Records start and end of the rank's next action; returns its end.
  Instant note(std::size_t rank, Lane lane, const Start& start, double seconds) {
    const std::size_t index = ranks_[rank].next;
    tell_waits(rank);
    tell_seconds(rank, seconds);
    SimulatedAction& action = result_.ranks[rank][index];
    action.start = start.at.time;
    action.end = start.at.time + seconds;
    action.waited = std::max(start.at.time - channel_free(rank, lane).time, 0.0);
    action.wait = start.wait;
    action.after = start.at.end_of;
    return {action.end, ActionAt{static_cast<int>(rank), index}};
  }

  // Like note, and occupies the channel until the end.
  Instant settle(std::size_t rank, Lane lane, const Start& start) {
    const double seconds =
        seconds_ == nullptr ? cost_of(program_, costs_, action_at(rank)) : (*seconds_)[number(next_of(rank))];
    return channel_free(rank, lane) = note(rank, lane, start, seconds);
  }
  const Action& action_at(std::size_t rank) const { return program_.ranks[rank][ranks_[rank].next]; }

  bool compute(std::size_t rank, const Action& action) {
    RankState& state = ranks_[rank];
    const OverlappedPair* pair = pair_at(state);
    Start start = begin(rank, Lane::compute);
    if (pair != nullptr && state.next == pair->first) {
      if (!data_.wait_for(pair->forward, start) || !data_.wait_for(pair->backward, start)) return false;
    } else if (!data_.wait_for(action, start)) {
      return false;
    }
    const double with_data = start.at.time;
    if (!action.part.first()) {
      const auto rows = state.rows.extract({*action.segment, *action.microbatch});
      if (!rows.empty()) wait_for_rows(rank, action, rows.mapped(), start);
    }
    if (action.segment && !state.back.empty()) {
      const auto back = state.back.extract({*action.segment, *action.microbatch});
      if (!back.empty()) start.after(back.mapped(), Wait::host);
    }
    const auto [first, end] = pieces_.of(action);
    for (std::size_t piece = first; piece < end; ++piece)
      units_.wait_for(action, pieces_[piece], state.given_up, start);
    state.compute = settle(rank, Lane::compute, start);
    result_.ranks[rank][state.next].for_collectives = start.at.time - with_data;
    const bool leaves = action.op == Op::forward && end == pieces_.end(*action.stage);
    const bool returns = makes_input_gradient(action.op) && first == pieces_.begin(*action.stage);
    if (action.part.last() && (leaves || returns)) {
      state.made.push_back(action);
    }
    if (pair != nullptr && state.next < pair->last) return true;
    for (const Action& made : state.made) hand_on(rank, made);
    state.made.clear();
    return true;
  }

  void wait_for_rows(std::size_t rank, const Action& part, Instant arrived, Start& start) {
    const double before = seconds_before_rows(costs_, part);
    if (told_ != nullptr) {
      ToldAction& told = (*told_)[number(next_of(rank))];
      told.rows = number(*arrived.end_of);
      told.before_rows = before;
    }
    arrived.time -= before;
    std::vector<ActionAt>* const all = std::exchange(start.all, nullptr);  // it need not have ended
    start.after(arrived, Wait::rows);
    start.all = all;
  }

  // The overlapped pair of the next action. Both halves begin together and pass their results on together.
  const OverlappedPair* pair_at(const RankState& state) const {
    if (state.overlaps.pairs.empty()) return nullptr;
    const auto pair = state.overlaps.pair_of[state.next];
    return pair ? &state.overlaps.pairs[*pair] : nullptr;
  }

  // Passes a stage's result on to the next stage or back.
  void hand_on(std::size_t rank, const Action& action) {
    data_.made(action, ranks_[rank].compute);
    const int next = *action.stage + (action.op == Op::forward ? 1 : -1);
    if (exchanged_ || next < 0 || next >= static_cast<int>(program_.stages.size())) return;
    queue(program_.stages[next].rank);
  }

  void exchange_rows(std::size_t rank, const Action& action) {
    Start start = begin(rank, Lane::exchange);
    start.after(ranks_[rank].compute, Wait::compute);
    ranks_[rank].rows[{*action.segment, *action.microbatch}] = settle(rank, Lane::exchange, start);
  }

  void copy(std::size_t rank, const Action& action) {
    RankState& state = ranks_[rank];
    const Lane lane = lane_of(program_, action);
    Start start = begin(rank, lane);
    start.after(state.compute, Wait::compute);
    auto& ends = action.op == Op::offload ? state.left : state.back;
    ends[{*action.segment, *action.microbatch}] = settle(rank, lane, start);
  }

  void wait_offload(std::size_t rank, const Action& action) {
    Start start = begin(rank, Lane::compute);
    const double before = start.at.time;
    const auto left = ranks_[rank].left.extract({*action.segment, *action.microbatch});
    if (!left.empty()) start.after(left.mapped(), Wait::host);
    end_wait(rank, start, before);
  }

  // Of an action that takes a turn on the compute lane but no time.
  void end_wait(std::size_t rank, const Start& start, double before) {
    ranks_[rank].compute = settle(rank, Lane::compute, start);
    result_.ranks[rank][ranks_[rank].next].for_collectives = start.at.time - before;
  }

  void gather(std::size_t rank, const Action& action) {
    Start start = begin(rank, Lane::gather);
    start.after(units_.takes_all_room(*action.unit) ? ranks_[rank].compute : ranks_[rank].room, Wait::room);
    units_.gathered(*action.unit, settle(rank, Lane::gather, start));
  }

  void reshard(std::size_t rank, const Action& action) {
    const Start start = channels_.with_compute(Lane::gather) ? begin(rank, Lane::gather)
                                                             : begin_at(ranks_[rank].compute, Wait::compute);
    const Instant end = note(rank, Lane::gather, start, 0.0);
    if (units_.takes_room(*action.unit)) ranks_[rank].room = end;
  }

  void reduce(std::size_t rank, const Action& action) {
    RankState& state = ranks_[rank];
    Start start = begin(rank, Lane::reduce);
    start.after(state.compute, Wait::compute);
    state.reduced = settle(rank, Lane::reduce, start);
    if (units_.reduced(*action.unit, state.reduced)) state.in_flight.push_back(state.reduced);
    while (static_cast<int>(state.in_flight.size()) > program_.reduce_inputs) {
      state.given_up = state.in_flight.front();
      state.in_flight.pop_front();
    }
  }

  // The last rank with a copy to arrive lets all of them continue.
  bool tie(std::size_t rank, const Action& action) {
    RankState& state = ranks_[rank];
    if (state.tie) return false;
    Start start = begin(rank, Lane::reduce);
    const auto [copies, ranks, unreduced] = units_.tie_of(*action.unit);
    if (unreduced) start.after(state.compute, Wait::compute);
    if (ranks.size() < 2) {
      state.reduced = settle(rank, Lane::reduce, start);
      return true;
    }
    state.tie = start;
    tell_waits(rank);
    // A rank may wait at the tie of another parameter.
    const auto arrived = [&, &tied = copies](int each) {
      const auto place = static_cast<std::size_t>(each);
      return ranks_[place].tie && units_.tie_of(*program_.ranks[place][ranks_[place].next].unit).copies == tied;
    };
    if (!std::ranges::all_of(ranks, arrived)) return false;
    std::vector<Start> starts;
    for (const int each : ranks) {
      tell_meeting(static_cast<std::size_t>(each), meetings_);
      starts.push_back(*std::exchange(ranks_[static_cast<std::size_t>(each)].tie, std::nullopt));
    }
    ++meetings_;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto one = static_cast<std::size_t>(ranks[i]);
      Start own = starts[i];
      for (std::size_t j = 0; j < ranks.size(); ++j) {
        if (j != i) own.after(starts[j].at, Wait::peers);
      }
      ranks_[one].reduced = settle(one, Lane::reduce, own);
      if (one == rank) continue;
      ++ranks_[one].next;
      queue(one);
    }
    return true;
  }

  void wait_reduction(std::size_t rank, const Action& action) {
    Start start = begin(rank, Lane::compute);
    const double before = start.at.time;
    units_.wait_for_reduction(*action.unit, start);
    end_wait(rank, start, before);
  }

  bool send(std::size_t rank, const Action& action) {
    const Lane lane = lane_of(program_, action);
    Connection& to_peer = ranks_[rank].connections[{*action.peer, lane}];
    if (to_peer.under_way) return false;
    Start start = begin(rank, lane);
    start.after(ranks_[rank].compute, Wait::compute);
    start.after(to_peer.taken, Wait::message);
    if (!channels_.with_compute(lane)) {
      settle(rank, lane, start);
    } else {
      channel_free(rank, lane) = note(rank, lane, start, 0.0);
    }
    to_peer.under_way = {*action.stage, *action.microbatch};
    to_peer.sent = start.at;
    to_peer.send = next_of(rank);
    queue(*action.peer);
    return true;
  }

  bool receive(std::size_t rank, const Action& action) {
    const MessageLanes lanes = message_lanes_of(program_, action);
    Connection& from_peer = ranks_[*action.peer].connections[{static_cast<int>(rank), lanes.send}];
    if (from_peer.under_way != std::pair(other_stage(action.op, *action.stage), *action.microbatch)) return false;
    Start start = begin(rank, lanes.receive);
    start.after(from_peer.sent, Wait::message);
    if (told_ != nullptr) (*told_)[number(next_of(rank))].send = number(from_peer.send);
    Instant there;
    if (channels_.link_delays && channels_.with_compute(lanes.receive)) {
      const double arrives = std::max(from_peer.sent.time, from_peer.arrived) + cost_of(program_, costs_, action);
      from_peer.taken = start.at;
      there = note(rank, lanes.receive, start, std::max(arrives - start.at.time, 0.0));
      channel_free(rank, lanes.receive) = there;
      from_peer.arrived = arrives;
    } else {
      there = from_peer.taken = settle(rank, lanes.receive, start);
    }
    from_peer.under_way.reset();
    data_.received(action, there);
    queue(*action.peer);
    return true;
  }

  // The last rank to arrive lets all continue.
  bool norm(std::size_t rank) {
    RankState& state = ranks_[rank];
    if (state.norm) return false;
    Start start = begin(rank, Lane::compute);
    start.after(state.reduced, Wait::reduction);
    state.norm = start;
    tell_waits(rank);
    if (++ranks_at_norm_ < ranks_with_norm_) return false;
    ranks_at_norm_ = 0;
    Instant last;
    for (const RankState& other : ranks_) {
      if (other.norm && other.norm->at.time > last.time) last = other.norm->at;
    }
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (ranks_[other].norm) tell_meeting(other, meetings_);
      if (ranks_[other].norm) run_norm(other, last);
      if (other != rank && std::exchange(ranks_[other].norm, std::nullopt)) {
        ++ranks_[other].next;
        queue(other);
      }
    }
    ++meetings_;
    state.norm.reset();
    return true;
  }

  void run_norm(std::size_t rank, const Instant& last) {
    RankState& state = ranks_[rank];
    Start start = *state.norm;
    const double for_reductions = start.at.time - channel_free(rank, Lane::compute).time;
    start.after(last, Wait::peers);
    state.compute = settle(rank, Lane::compute, start);
    result_.ranks[rank][state.next].for_collectives = for_reductions;
  }

  const Program& program_;
  const ProgramCosts& costs_;
  const LaneChannels& channels_;
  const std::vector<double>* seconds_;
  std::vector<ToldAction>* told_;
  std::vector<std::size_t> first_;  // by rank: its first action, counted over all ranks
  std::vector<ActionAt> all_;       // waits of the current action
  PieceTable pieces_;
  std::vector<RankState> ranks_;
  bool exchanged_;  // the program has messages; otherwise data is available as soon as it is made
  walking::UnitInstants units_;
  walking::DataInstants data_;
  std::vector<std::size_t> queue_;  // ranks that may continue
  int ranks_with_norm_ = 0, ranks_at_norm_ = 0;
  std::size_t meetings_ = 0;  // number of meetings of ranks, for ties and norms, so far
  Simulation result_;
};

}  // namespace

Simulation simulate(const Program& program, const ProgramCosts& costs, const LaneChannels& channels) {
  require_costs(program, costs);
  for (std::uint8_t channel : channels.channel) {
    if (channel >= all_lanes.size()) fail("a lane is on channel {}; there are {}", channel, all_lanes.size());
  }
  if (!costs.have_adapters()) return Walk(program, costs, channels).run();
  std::vector<ToldAction> told;
  Walk(program, costs, channels, nullptr, &told).run();
  const std::vector<double> seconds = walking::shared_seconds(told);
  return Walk(program, costs, channels, &seconds).run();
}

}  // namespace weft
