#include "parallel/pipeline/traffic.h"

#include <map>

namespace weft {
namespace {

class Sum {
 public:
  Sum(const Mesh& mesh, int rank) : mesh_(mesh), rank_(rank) {}

  void add(Group group, CollectiveOp op, std::int64_t count, std::int64_t bytes, bool is_bound = false) {
    if (count == 0 || alone(group)) return;
    CommunicationCount& sum = (is_bound ? traffic.bounds : traffic.exact)[{std::string(name_of(group)), op}];
    sum.count += count;
    sum.bytes += bytes;
  }

  Traffic traffic;

 private:
  bool alone(Group group) {
    // Islands have at least two ranks, and a tie has two.
    if (group == Group::dp_island || group == Group::edp_island || group == Group::tied) return false;
    const auto [found, fresh] = alone_.try_emplace(group, false);
    if (fresh) found->second = mesh_.group_of(group, rank_).size() == 1;
    return found->second;
  }

  const Mesh& mesh_;
  int rank_;
  std::map<Group, bool> alone_;
};

bool performs(const Action& action, Op during) {
  if (during == Op::backward_input) return makes_input_gradient(action.op);
  if (during == Op::backward_weight) return makes_weight_gradient(action.op);
  return action.op == during;
}

}  // namespace

Traffic traffic_of(const Program& program, const Mesh& mesh, int rank) {
  Sum sum(mesh, rank);
  for (const Action& action : program.ranks.at(static_cast<std::size_t>(mesh.coordinates(rank).pp))) {
    if (action.unit) {
      for (const UnitCollective& part : program.units[static_cast<std::size_t>(*action.unit)].collectives) {
        if (part.during == action.op) sum.add(part.group, part.op, 1, part.bytes);
      }
    }
    if (action.segment) {
      for (const SegmentCollective& part : program.segments[static_cast<std::size_t>(*action.segment)].collectives) {
        if (performs(action, part.during)) sum.add(part.group, part.op, part.count, part.bytes, part.is_bound);
      }
    }
    if (is_send(action.op)) sum.add(Group::pp, CollectiveOp::send, 1, action.bytes);
    if (is_receive(action.op)) sum.add(Group::pp, CollectiveOp::receive, 1, 0);
    for (const UpdateCollective& part : program.update) {
      if (part.during == action.op) sum.add(part.group, part.op, part.count, part.bytes);
    }
  }
  return sum.traffic;
}

}  // namespace weft
