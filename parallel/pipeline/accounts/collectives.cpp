#include "parallel/pipeline/accounts/accounts.h"

#include <algorithm>
#include <iterator>

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

}  // namespace weft
