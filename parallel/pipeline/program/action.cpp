#include "parallel/pipeline/program/action.h"

#include "parallel/runtime/error.h"

namespace weft {

std::string_view computation_name(Op op) {
  switch (op) {
    case Op::forward:
      return "forward";
    case Op::backward:
      return "backward";
    case Op::backward_input:
      return "input gradient";
    case Op::backward_weight:
      return "weight gradient";
    case Op::recompute:
      return "recompute";
    default:
      fail("{} computes nothing", name_of(op));
  }
}

std::string_view name_of(Op op) {
  switch (op) {
    case Op::forward:
      return "F";
    case Op::backward:
      return "B";
    case Op::backward_input:
      return "I";
    case Op::backward_weight:
      return "W";
    case Op::recompute:
      return "R";
    case Op::unshard:
      return "UNSHARD";
    case Op::unshard_secondary:
      return "UNSHARD_SECONDARY";
    case Op::reshard:
      return "RESHARD";
    case Op::reshard_secondary:
      return "RESHARD_SECONDARY";
    case Op::scatter_gradient:
      return "SCATTER_GRAD";
    case Op::reduce_gradient:
      return "REDUCE_GRAD";
    case Op::tie_gradient:
      return "TIE_GRAD";
    case Op::wait_reduction:
      return "WAIT_REDUCE";
    case Op::send_forward:
      return "SEND_F";
    case Op::receive_forward:
      return "RECV_F";
    case Op::send_backward:
      return "SEND_B";
    case Op::receive_backward:
      return "RECV_B";
    case Op::gradient_norm:
      return "GRAD_NORM";
    case Op::optimizer_step:
      return "STEP";
  }
  return "?";
}

}  // namespace weft
