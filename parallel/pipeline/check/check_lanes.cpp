#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "parallel/pipeline/check/check_parts.h"
#include "parallel/pipeline/text/text.h"

namespace weft {
namespace {

// A waiter: a rank's host, or one of its queues.
struct Waiter {
  int rank = 0;
  std::optional<std::size_t> queue = {};
  auto operator<=>(const Waiter&) const = default;
};

// Runs all ranks as far as they go. Waits do not depend on the order of visits, so neither do the final positions.
class LaneRun {
 public:
  LaneRun(const CheckContext& context, const Exchange& exchange, const LaneNumbers& queues)
      : context_(context),
        exchange_(exchange),
        queue_of_lane_(queues),
        ranks_(context.rows()),
        channels_(exchange.channels.size()) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      auto& receives = state(rank).receives;
      for (const End& end : exchange.ranks[rank]) {
        if (!end.sends) receives.emplace_back(data_of(action(end)), &in_channel(end));
      }
      // Of two receives of the same data, the first in the list comes first.
      std::ranges::stable_sort(receives, {}, &Receive::first);
      ready_.push_back({rank});
    }
    while (!ready_.empty()) {
      const Waiter waiter = ready_.back();
      ready_.pop_back();
      waiter.queue ? work_off(waiter) : walk(waiter.rank);
    }
  }

  // Waiters in a circle, each waiting for the next; empty if all came to their end.
  std::vector<Waiter> circle() const {
    std::optional<Waiter> member = anyone_standing();
    if (!member) return {};
    // All messages match, so a waiter waits for another waiter: following the waits leads into a circle.
    std::vector<Waiter> way;
    std::map<Waiter, std::size_t> seen;
    while (seen.try_emplace(*member, way.size()).second) {
      way.push_back(*member);
      member = awaited(*member);
    }
    return {way.begin() + static_cast<std::ptrdiff_t>(seen[*member]), way.end()};
  }

  // The position of a waiter in its rank's list.
  std::size_t place(const Waiter& waiter) const { return waiter.queue ? head(waiter)->index : state(waiter.rank).host; }

  std::string name(const Waiter& waiter) const {
    if (!waiter.queue) return fmt::format("rank {}", waiter.rank);
    return fmt::format("{} of rank {}", name_of(lane(*head(waiter))), waiter.rank);
  }

 private:
  using Data = std::tuple<bool, int, int>;  // activation, stage that reads it, microbatch
  using Receive = std::pair<Data, const End*>;

  struct RankState {
    std::size_t host = 0, next_end = 0;                            // position in the list; position among its messages
    std::array<std::vector<const End*>, all_lanes.size()> queues;  // all messages queued so far
    std::array<std::size_t, all_lanes.size()> heads = {};
    std::vector<Receive> receives;  // by data
  };
  struct ChannelState {
    std::size_t sends = 0, receives = 0, passed = 0;  // queued by either side; passed
  };

  const RankState& state(int rank) const { return ranks_[rank]; }
  RankState& state(int rank) { return ranks_[rank]; }
  const Action& action(const End& end) const { return context_.list(end.rank)[end.index]; }
  Lane lane(const End& end) const { return lane_of(context_.program, action(end)); }
  Waiter queue_of(const End& end) const { return {end.rank, queue_of_lane_[static_cast<std::size_t>(lane(end))]}; }
  const End* head(const Waiter& queue) const {
    const auto& queued = state(queue.rank).queues[*queue.queue];
    const std::size_t at = state(queue.rank).heads[*queue.queue];
    return at < queued.size() ? queued[at] : nullptr;
  }
  // Ends are identified by their addresses in the channels.
  const End& in_channel(const End& end) const {
    const Channel& channel = exchange_.channels[end.channel];
    return (end.sends ? channel.sends : channel.receives)[end.turn];
  }
  const End& other_end(const End& end) const {
    const Channel& channel = exchange_.channels[end.channel];
    return (end.sends ? channel.receives : channel.sends)[end.turn];
  }
  bool queued(const End& end) const {
    const ChannelState& channel = channels_[end.channel];
    return end.turn < (end.sends ? channel.sends : channel.receives);
  }
  bool passed(const End& end) const { return end.turn < channels_[end.channel].passed; }

  static Data data_of(const Action& action) {
    return {action.op == Op::receive_forward || action.op == Op::forward, *action.stage, *action.microbatch};
  }
  // The message that the compute action at a rank's host still waits for. A message later in the list cannot bring its
  // data (Violation::missing_receive).
  const End* awaited_message(int rank) const {
    const RankState& own = state(rank);
    const Action& action = context_.list(rank)[own.host];
    if (!hands_on(action.op) || !action.part.first() || !context_.legible(rank, action)) return nullptr;
    const auto found = std::ranges::lower_bound(own.receives, data_of(action), {}, &Receive::first);
    if (found == own.receives.end() || found->first != data_of(action)) return nullptr;
    if (found->second->index > own.host || passed(*found->second)) return nullptr;
    return found->second;
  }
  // The message at a rank's host position.
  const End* at_host(int rank) const {
    const auto& ends = exchange_.ranks[rank];
    const RankState& own = state(rank);
    return own.next_end < ends.size() && ends[own.next_end].index == own.host ? &in_channel(ends[own.next_end])
                                                                              : nullptr;
  }

  void walk(int rank) {
    RankState& own = state(rank);
    for (; own.host < context_.list(rank).size() && !awaited_message(rank); ++own.host) {
      const End* end = at_host(rank);
      if (!end) continue;
      ++(end->sends ? channels_[end->channel].sends : channels_[end->channel].receives);
      own.queues[*queue_of(*end).queue].push_back(end);
      ready_.push_back(queue_of(*end));
      ++own.next_end;
    }
  }

  void work_off(const Waiter& queue) {
    while (const End* end = head(queue)) {
      const End& other = other_end(*end);
      if (head(queue_of(other)) != &other) return;
      ++channels_[end->channel].passed;
      for (const End* side : {end, &other}) ++state(side->rank).heads[*queue_of(*side).queue];
      ready_.push_back(queue_of(other));
      ready_.push_back({end->sends ? other.rank : end->rank});
    }
  }

  std::optional<Waiter> anyone_standing() const {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (state(rank).host < context_.list(rank).size()) return Waiter{rank};
      for (std::size_t queue = 0; queue < all_lanes.size(); ++queue) {
        if (head({rank, queue})) return Waiter{rank, queue};
      }
    }
    return std::nullopt;
  }

  Waiter awaited(const Waiter& waiter) const {
    if (!waiter.queue) return queue_of(*awaited_message(waiter.rank));
    const End& other = other_end(*head(waiter));
    return queued(other) ? queue_of(other) : Waiter{other.rank};
  }

  const CheckContext& context_;
  const Exchange& exchange_;
  const LaneNumbers queue_of_lane_;
  std::vector<RankState> ranks_;
  std::vector<ChannelState> channels_;
  std::vector<Waiter> ready_;  // waiters that may continue
};

}  // namespace

std::optional<Finding> find_lane_deadlock(const CheckContext& context, const Exchange& exchange,
                                          const LaneNumbers& queues) {
  const LaneRun run(context, exchange, queues);
  std::vector<Waiter> circle = run.circle();
  if (circle.empty()) return std::nullopt;
  std::rotate(circle.begin(), std::ranges::min_element(circle), circle.end());
  std::string text = "on lanes ";
  for (std::size_t i = 0; i < circle.size(); ++i) {
    const Waiter& member = circle[i];
    text += fmt::format("{}{} at {} waits for {}", i == 0 ? "" : ", ", run.name(member),
                        format_action(context.program, context.list(member.rank)[run.place(member)]),
                        run.name(circle[(i + 1) % circle.size()]));
  }
  return Finding{Violation::deadlock, circle.front().rank, run.place(circle.front()), std::move(text)};
}

}  // namespace weft
