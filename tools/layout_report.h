// Stage layouts for the eye and for scripts. Results are text to print.
#pragma once

#include <string>
#include <vector>

#include "trainer/layout/layout_summary.h"

namespace weft {

// The grid of ranks and chunks, and a table of stages and one of ranks.
std::string layout_report(const LayoutSummary& summary);
// A line a layout: what tells them apart.
std::string layout_comparison(const std::vector<LayoutSummary>& summaries);
// {"layouts": [...]}, one JSON document.
std::string layout_json(const std::vector<LayoutSummary>& summaries);

}  // namespace weft
