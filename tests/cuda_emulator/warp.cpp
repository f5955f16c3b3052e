// The results of warp collectives, from what each lane brought.
#include <fmt/format.h>

#include <bit>

#include "parallel/runtime/error.h"
#include "processor.h"

namespace weft::cuda_emulator {
namespace {

using device::WarpOperation;
using device::WarpRequest;

// The lane that a shuffle reads. Outside the segment of `width` lanes a lane reads itself, as in the CUDA C++ Guide.
int shuffle_source(const WarpRequest& request, int lane) {
  const int first = lane & ~(request.width - 1), last = first + request.width - 1;
  switch (request.operation) {
    case WarpOperation::shuffle_index:
      return first + (request.argument & (request.width - 1));
    case WarpOperation::shuffle_up:
      return lane - request.argument < first ? lane : lane - request.argument;
    case WarpOperation::shuffle_down:
      return lane + request.argument > last ? lane : lane + request.argument;
    default:
      return (lane ^ request.argument) > last ? lane : lane ^ request.argument;
  }
}

bool is_shuffle(WarpOperation operation) {
  return operation >= WarpOperation::shuffle_index && operation <= WarpOperation::shuffle_xor;
}

std::uint64_t combine(WarpOperation operation, std::uint64_t left, std::uint64_t right) {
  const auto left_signed = static_cast<std::int32_t>(left), right_signed = static_cast<std::int32_t>(right);
  const auto left_unsigned = static_cast<std::uint32_t>(left), right_unsigned = static_cast<std::uint32_t>(right);
  switch (operation) {
    case WarpOperation::add:
      return left_unsigned + right_unsigned;
    case WarpOperation::min_signed:
      return static_cast<std::uint32_t>(left_signed < right_signed ? left_signed : right_signed);
    case WarpOperation::max_signed:
      return static_cast<std::uint32_t>(left_signed > right_signed ? left_signed : right_signed);
    case WarpOperation::min_unsigned:
      return left_unsigned < right_unsigned ? left_unsigned : right_unsigned;
    case WarpOperation::max_unsigned:
      return left_unsigned > right_unsigned ? left_unsigned : right_unsigned;
    case WarpOperation::bitwise_and:
      return left_unsigned & right_unsigned;
    case WarpOperation::bitwise_or:
      return left_unsigned | right_unsigned;
    case WarpOperation::bitwise_xor:
      return left_unsigned ^ right_unsigned;
    default:
      return 0;
  }
}

}  // namespace

void complete_warp(const WarpRequest* const* requests, std::uint32_t mask, std::uint64_t* const* results) {
  const auto lanes = [mask](auto visit) {
    for (std::uint32_t left = mask; left != 0; left &= left - 1) visit(std::countr_zero(left));
  };
  const int first = std::countr_zero(mask);
  const WarpOperation operation = requests[first]->operation;
  if (is_shuffle(operation)) {
    lanes([&](int lane) {
      const WarpRequest& request = *requests[lane];
      if (request.width < 1 || request.width > 32 || !std::has_single_bit(static_cast<unsigned>(request.width)))
        fail("a shuffle of width {}, which is no power of two up to 32", request.width);
      const int source = shuffle_source(request, lane);
      if (source < 0 || source > 31 || (mask >> source & 1u) == 0)
        fail("lane {} reads lane {} in a shuffle whose mask {:#x} does not name it", lane, source, mask);
      *results[lane] = requests[source]->value;
    });
    return;
  }
  std::uint32_t ballot = 0;
  lanes([&](int lane) { ballot |= static_cast<std::uint32_t>(requests[lane]->value != 0) << lane; });
  std::uint64_t common = 0;
  switch (operation) {
    case WarpOperation::sync:
      break;
    case WarpOperation::ballot:
      common = ballot;
      break;
    case WarpOperation::any:
      common = ballot != 0;
      break;
    case WarpOperation::all:
      common = ballot == mask;
      break;
    case WarpOperation::match_any:
      lanes([&](int lane) {
        std::uint64_t same = 0;
        lanes([&](int other) {
          if (requests[other]->value == requests[lane]->value) same |= std::uint64_t{1} << other;
        });
        *results[lane] = same;
      });
      return;
    default:
      common = requests[first]->value;
      lanes([&](int lane) {
        if (lane != first) common = combine(operation, common, requests[lane]->value);
      });
  }
  lanes([&](int lane) { *results[lane] = common; });
}

}  // namespace weft::cuda_emulator
