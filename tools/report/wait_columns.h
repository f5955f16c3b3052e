// The waits of computation in a simulated step, for reports.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "tools/report/bench_table.h"
#include "tools/report/report_parts.h"

namespace weft {

// Adds "exposed_gathers" and the like, each name with `suffix`.
void add_waits(Json& json, const StepWaits& waits, const std::string& suffix = "");
// Puts columns of waits in front of column `at`. Those for rows of experts and for host copies are left out if no step
// has any. `steps` has one entry a row. `unit_time` is that of format_time.
void insert_wait_columns(BenchTable& table, std::size_t at, const std::vector<StepWaits>& steps, bool unit_time);

}  // namespace weft
