// Runs as one HTML page, which needs no other file and no network. It has curves, memory beside its plan, expert load,
// the planned and the measured step, differences of configurations, and samples.
//
// The page itself is HTML, CSS and JavaScript in page/, and shares the drawing of steps with tools/picture/page. Curves
// are drawn by dygraphs, which a build takes from Debian's libjs-dygraphs; its licence is in the page.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tools/run_page/reported_run.h"

namespace weft {

// The page with the marks WEFT_TITLE, WEFT_DATA (of the steps' pictures, picture_formats.h) and WEFT_REPORT
// (report_data in run_page.cpp). Empty in a build without dygraphs.
std::string_view run_page_template();

// The template must not be empty.
std::string run_page(std::span<const ReportedRun> runs, std::string_view version, std::string_view prompt);

}  // namespace weft
