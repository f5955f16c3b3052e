// Runs as one HTML page, which needs no other file and no network. It has curves, memory beside its plan, expert load,
// the planned and the measured step, differences of configurations, and samples.
//
// The page itself is HTML, CSS and JavaScript in page/, and shares the drawing of steps with tools/picture/page. Curves
// are drawn by dygraphs, which a build takes from Debian's libjs-dygraphs; its licence is in the page.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "tools/run_page/reported_run.h"

namespace weft {

// The first bytes of every page, by which one is known.
std::string_view page_beginning();

// The page with the marks WEFT_TITLE, WEFT_DATA (of the steps' pictures, picture_formats.h) and WEFT_REPORT
// (report_data). Empty in a build without dygraphs.
std::string_view run_page_template();

// The contents of the page besides pictures, for the scripts in page/. Numbers that are not finite are null. Curves
// hold the points that kept_points.h keeps, with six digits.
//   {"title", "version", "prompt", "most_points",
//    "runs": [{"name", "directory", "facts": [[name, text]], "config", "state",
//              "figures": {"step", "steps", "tokens", "seconds", "loss_first", "loss_last", "loss_least",
//                          "loss_least_step", "validation_last", "validation_least", "validation_least_step",
//                          "tokens_per_second", "tflops", "mfu", "data_seconds", "grad_norm", "lr_last", "peak_bytes",
//                          "spikes"},
//              "curves": {field: {"step", "tokens", "seconds", "value"}}, "spikes": {"step", "tokens", "seconds"},
//              "memory": {"step", "tokens", "seconds", "highest_step",
//                         "buckets": [{"name", "bytes", "measured", "planned"}], "planned"},
//              "experts": {"step", "tokens", "seconds", "blocks": [block],
//                          "fields": {field: {"rows": [[value]], "last": [value]}}},
//              "lanes": {"variant", "costs", "measured", "recorded", "planned_seconds", "measured_seconds", "ranks"},
//              "unplanned", "unmeasured", "samples": [{"step", "texts"}]}],
//    "differences": [{"key", "help", "values"}]}
// "memory", "experts" and "lanes" are null where the run has none. The edges of a stretch of steps of "experts" are
// consecutive entries of its "step", "tokens" and "seconds".
nlohmann::ordered_json report_data(std::span<const ReportedRun> runs, std::string_view version,
                                   std::string_view prompt);

// The template must not be empty.
std::string run_page(std::span<const ReportedRun> runs, std::string_view version, std::string_view prompt);

}  // namespace weft
