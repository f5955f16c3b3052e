// Reports on stage layouts for readers and scripts. All functions return text to print.
#pragma once

#include <string>
#include <vector>

#include "trainer/layout/layout_summary.h"
#include "trainer/planning/step_forecast.h"

namespace weft {

struct ShownLayout {
  LayoutSummary summary;
  LayoutMemory memory;
};

// The grid of ranks and chunks, and a table of stages and one of ranks.
std::string layout_report(const ShownLayout& layout);
// One line per layout, with the differences between the layouts.
std::string layout_comparison(const std::vector<ShownLayout>& layouts);
// {"layouts": [...]}, one JSON document.
std::string layout_json(const std::vector<ShownLayout>& layouts);

}  // namespace weft
