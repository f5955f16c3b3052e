// Stage layouts for the eye and for scripts. Results are text to print.
#pragma once

#include <string>
#include <vector>

#include "trainer/layout/layout_summary.h"
#include "trainer/planning/layout_memory.h"

namespace weft {

struct ShownLayout {
  LayoutSummary summary;
  LayoutMemory memory;
};

// The grid of ranks and chunks, and a table of stages and one of ranks.
std::string layout_report(const ShownLayout& layout);
// A line a layout: what tells them apart.
std::string layout_comparison(const std::vector<ShownLayout>& layouts);
// {"layouts": [...]}, one JSON document.
std::string layout_json(const std::vector<ShownLayout>& layouts);

}  // namespace weft
