// The columns of a run's metrics on a page, as the JSON that report_data (run_page.h) describes.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/report/report_parts.h"
#include "tools/run_page/reported_run.h"

namespace weft {

// A number with six digits, for drawing: a page has a thousand pixels. Null if it is not finite.
Json drawn_number(double value);
// A number with all its digits. Null if it is not finite.
Json exact_number(double value);
// The index of the largest value that is finite, the first of several; 0 if none is. The column is not empty.
std::size_t highest_of(const StepColumn& column);

// {"step", "tokens", "seconds"}: the places of rows on each axis that a page offers.
Json axes_json(const StepTable& table, const std::vector<std::size_t>& rows);
// {field: {"step", "tokens", "seconds", "value"}}, of the fields that the run has.
Json curves_json(const StepTable& table);
// Last, least and median values, with all their digits; null where the run has none.
Json figures_json(const ReportedRun& run);
// Bytes by bucket over the steps, and beside the plan at the highest peak. Null without peaks.
Json memory_json(const ReportedRun& run);
// The most uneven step of each stretch, by block. Null without expert blocks.
Json experts_json(const StepTable& table);

}  // namespace weft
