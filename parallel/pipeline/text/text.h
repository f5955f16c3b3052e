// The text forms of a program: its cells, and the picture of an order over time. Cells: `0F3`, `1SEND_B2`,
// `0UNSHARD(blocks.3.experts)`, `0F3(blocks.1.attention)`, `GRAD_NORM`. `(0F3;3B1)OVERLAP_F_B` is two neighbouring
// actions of an overlapped pair. In a lowered list a gather may stand between the two; then
// `(0F3(blocks.1.attention))OVERLAP_F_B` is one of them. `0F3.1/3(blocks.1.experts)` is the first of three parts, and
// `0ROWS_F3.1/3(blocks.1.experts)` the exchange of rows behind it.
#pragma once

#include <string>
#include <string_view>

#include "parallel/pipeline/program/program.h"

namespace weft {

std::string format_action(const Program& program, const Action& action);

enum class Detail : std::uint8_t {
  everything,    // segments and units
  stages_only,   // merged per stage: 0F3, 0UNSHARD
  compute_only,  // F, B, I, W and overlapped pairs of stages only: an order, which order_csv.h reads
};
// The list at a coarser level: a run of actions that differ only in segment or unit becomes one stage action. A stage's
// UNSHARD stands where its first unit is gathered, its RESHARD where the last unit is dropped. An overlapped pair
// stands where its forward begins, behind the UNSHARD of both.
std::vector<Action> at_detail(const std::vector<Action>& actions, Detail detail);

// The cells of one list, in time order.
std::string format_actions(const Program& program, const std::vector<Action>& actions, std::string_view separator);

}  // namespace weft
