#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "parallel/pipeline/check/check_parts.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/text/text.h"

namespace weft {
namespace {

// The ends with another end of their message; the others are findings.
std::vector<End> with_partner(const CheckContext& context, const std::vector<End>& ends, const std::vector<End>& others,
                              Violation violation, std::vector<Finding>& findings) {
  std::map<std::tuple<int, int>, int> partners;
  for (const End& other : others) ++partners[other.message];
  std::vector<End> matched;
  for (const End& end : ends) {
    if (partners[end.message]-- > 0) {
      matched.push_back(end);
    } else {
      const int peer = *context.list(end.rank)[end.index].peer;
      findings.push_back(
          {violation, end.rank, end.index, fmt::format("rank {} never {} it", peer, end.sends ? "receives" : "sends")});
    }
  }
  return matched;
}

void match(const CheckContext& context, const Channel& channel, std::vector<Finding>& findings) {
  if (std::ranges::equal(channel.sends, channel.receives, {}, &End::message, &End::message)) return;
  const auto sends = with_partner(context, channel.sends, channel.receives, Violation::unmatched_send, findings);
  const auto receives = with_partner(context, channel.receives, channel.sends, Violation::unmatched_receive, findings);
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const End &send = sends[i], &receive = receives[i];
    if (send.message == receive.message) continue;
    const std::string sent = format_action(context.program, context.list(send.rank)[send.index]);
    findings.push_back({Violation::crossed_messages, receive.rank, receive.index,
                        fmt::format("rank {} sends {} at this turn", send.rank, sent)});
    return;  // all later messages are crossed as well
  }
}

// Runs the exchange of all ranks as far as it goes, for ranks that are threads and do everything at once. A send is
// posted without waiting for its receiver, but only after the previous message of its channel has been received. A
// receive waits for its message. Compute never waits, so it is left out. Each message lets at most two ranks continue:
// the work is linear in the number of messages.
class ExchangeWalk {
 public:
  explicit ExchangeWalk(const Exchange& exchange)
      : exchange_(exchange),
        at_(exchange.ranks.size(), 0),
        sent_(exchange.channels.size(), 0),
        received_(exchange.channels.size(), 0) {
    std::vector<int> ready;
    for (std::size_t rank = 0; rank < at_.size(); ++rank) ready.push_back(static_cast<int>(rank));
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      while (const End* end = next(rank)) {
        if (waits(*end)) break;
        ++(end->sends ? sent_ : received_)[end->channel];
        ++at_[rank];
        ready.push_back(exchange.peer(*end));
      }
    }
  }

  // The message at which a rank stands; null if the rank has run to its end.
  const End* next(int rank) const {
    const auto& ends = exchange_.ranks[rank];
    const std::size_t at = at_[rank];
    return at < ends.size() ? &ends[at] : nullptr;
  }

 private:
  bool waits(const End& end) const {
    const bool under_way = sent_[end.channel] > received_[end.channel];
    return end.sends ? under_way : !under_way;
  }

  const Exchange& exchange_;
  std::vector<std::size_t> at_, sent_, received_;
};

void find_deadlock(const CheckContext& context, const Exchange& exchange, std::vector<Finding>& findings) {
  const ExchangeWalk simulation(exchange);
  int rank = 0;
  const int rows = static_cast<int>(context.rows());
  while (rank < rows && !simulation.next(rank)) ++rank;
  if (rank == rows) return;
  // All messages match, so a waiting rank waits for another waiting rank: following the waits leads into a circle.
  std::vector<bool> seen(context.rows(), false);
  while (!seen[rank]) {
    seen[rank] = true;
    rank = exchange.peer(*simulation.next(rank));
  }
  std::string circle;
  int lowest = rank, member = rank;
  do {
    const End& end = *simulation.next(member);
    const std::string cell = format_action(context.program, context.list(member)[end.index]);
    circle +=
        fmt::format("{}rank {} at {} waits for rank {}", circle.empty() ? "" : ", ", member, cell, exchange.peer(end));
    lowest = std::min(lowest, member);
    member = exchange.peer(end);
  } while (member != rank);
  findings.push_back({Violation::deadlock, lowest, simulation.next(lowest)->index, std::move(circle)});
}

}  // namespace

Exchange collect_messages(const CheckContext& context) {
  Exchange exchange;
  exchange.ranks.resize(context.rows());
  std::map<std::tuple<int, int, bool>, std::size_t> numbers;  // from, to, forward
  for (int rank = 0; rank < static_cast<int>(context.rows()); ++rank) {
    const auto& actions = context.list(rank);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const bool sends = is_send(action.op);
      if ((!sends && !is_receive(action.op)) || !context.legible(rank, action)) continue;
      if (!action.peer || *action.peer < 0 || *action.peer >= static_cast<int>(context.rows())) continue;
      const int from = sends ? rank : *action.peer, to = sends ? *action.peer : rank;
      const bool forward = carries_activations(action.op);
      const auto [place, added] = numbers.try_emplace({from, to, forward}, exchange.channels.size());
      if (added) exchange.channels.push_back({from, to, {}, {}});
      Channel& channel = exchange.channels[place->second];
      const int sender = sends ? *action.stage : other_stage(action.op, *action.stage);
      auto& side = sends ? channel.sends : channel.receives;
      const auto narrow = [](std::size_t number) { return static_cast<std::uint32_t>(number); };
      side.push_back(
          {rank, narrow(i), narrow(place->second), narrow(side.size()), {sender, *action.microbatch}, sends});
      exchange.ranks[rank].push_back(side.back());
    }
  }
  return exchange;
}

void check_exchange(const CheckContext& context, std::vector<Finding>& findings) {
  const Exchange exchange = collect_messages(context);
  const std::size_t before = findings.size();
  for (const Channel& channel : exchange.channels) match(context, channel, findings);
  // A message without partner stops its rank and is reported already; deadlocks are searched only in matched lists.
  if (findings.size() != before) return;
  find_deadlock(context, exchange, findings);
  if (auto found = find_lane_deadlock(context, exchange)) findings.push_back(std::move(*found));
}

}  // namespace weft
