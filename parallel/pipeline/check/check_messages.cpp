#include "parallel/pipeline/check/check_messages.h"

#include <map>

#include "parallel/pipeline/program/exchange.h"

namespace weft {

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
      const bool forward = action.op == Op::send_forward || action.op == Op::receive_forward;
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

}  // namespace weft
