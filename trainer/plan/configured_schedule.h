// The configured schedule with its numbers: which pipeline rank runs each stage, and the step compiled in that order.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/program/program.h"
#include "trainer/config/config.h"

namespace weft {

// Pipeline rank by stage.
std::vector<int> stage_ranks(const Config& config);
// The stages of a pipeline rank, ascending.
std::vector<int> stages_of_rank(const Config& config, int pipeline_rank);
OrderInput order_input(const Config& config);
// By pipeline rank: stage-level compute actions in time order. Throws Error (request) if the schedule refuses the
// numbers.
std::vector<std::vector<Action>> compute_order(const Config& config);

// The compute order as a program whose stages have no segments, units or sizes.
Program schedule_only_step(const Config& config);

// The fraction of a step in which the average rank waits for others. It assumes equal stages, halves of a backward that
// take as long as a forward, and communication without cost.
double even_bubble(const Program& program);

// Warnings that a step has too few microbatches to keep all pipeline ranks busy, with the resulting bubble.
std::vector<std::string> microbatch_warnings(const Config& config);

// The compute actions of a step, without actions of units. Throws Error (request) if the schedule refuses the numbers.
Program lower_step(const Config& config, const ProgramTables& tables);

}  // namespace weft
