#include "parallel/pipeline/accounts/accounts.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace weft {
namespace {

bool performs(const Action& action, const ProgramCollective& part) {
  const Op during = part.during;
  if (is_row_exchange(action.op)) {
    return is_compute(during) && during != Op::backward_weight && row_exchange_of(during) == action.op &&
           part.beside == action.part.index + 1;
  }
  if (action.part.count > 1 && part.beside > 0) return false;
  // The weight gradient of a B in parts belongs to its last, other collectives to its first.
  if (during == Op::backward_weight && !action.part.last()) return false;
  if (during != Op::backward_weight && !action.part.first()) return false;
  if (during == Op::backward_input) return makes_input_gradient(action.op);
  if (during == Op::backward_weight) return makes_weight_gradient(action.op);
  return action.op == during;
}

}  // namespace

std::vector<ProgramCollective> collectives_of(const ProgramTables& tables, const Action& action) {
  std::vector<ProgramCollective> collectives;
  const auto add = [&](const std::vector<ProgramCollective>& parts) {
    std::ranges::copy_if(parts, std::back_inserter(collectives),
                         [&](const ProgramCollective& part) { return performs(action, part); });
  };
  if (action.unit) add(tables.units[*action.unit].collectives);
  if (action.segment) add(tables.segments[*action.segment].collectives);
  if (is_send(action.op)) collectives.push_back({action.op, CollectiveOp::send, Group::pp, 1, action.bytes});
  if (is_receive(action.op)) collectives.push_back({action.op, CollectiveOp::receive, Group::pp, 1, 0});
  add(tables.update);
  return collectives;
}

Traffic traffic_of(const Program& program, const Mesh& mesh, int rank) {
  std::map<Group, bool> is_alone;
  const auto alone = [&](Group group) {
    // Islands have at least two ranks, and a tie has two.
    if (group == Group::dp_island || group == Group::edp_island || group == Group::tied) return false;
    const auto [found, fresh] = is_alone.try_emplace(group, false);
    if (fresh) found->second = mesh.group_of(group, rank).size() == 1;
    return found->second;
  };
  Traffic traffic;
  for (const Action& action : program.ranks.at(mesh.coordinates(rank).pp)) {
    for (const ProgramCollective& part : collectives_of(program, action)) {
      if (part.count == 0 || alone(part.group)) continue;
      auto& counters = part.is_bound ? traffic.bounds : traffic.exact;
      CommunicationCount& sum = counters[{std::string(name_of(part.group)), part.op}];
      sum.count += part.count;
      sum.bytes += part.bytes;
    }
  }
  return traffic;
}

}  // namespace weft
