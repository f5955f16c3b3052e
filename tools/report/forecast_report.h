// Simulated steps for the eye and for scripts. Results are text to print.
#pragma once

#include <span>
#include <string>

#include "trainer/config/config.h"
#include "trainer/planning/published.h"
#include "trainer/planning/step_forecast.h"

namespace weft {

struct SimulatedVariant {
  std::string title;  // the words that make it
  Config config;
  StepForecast forecast;
  std::string grid;   // time_grid(), where the step is small
  std::string costs;  // where they come from, in words
  bool unit_time = false;
  Certainty certainty = {};
};

// The variants one by one, and beside each other where there are several.
std::string forecast_report(std::span<const SimulatedVariant> variants);
// {"variants": [...]}, one JSON document; times are seconds, or units where "unit_time" says so.
std::string forecast_json(std::span<const SimulatedVariant> variants);

// "1f1b, 4 x 2 stages": schedule, ranks and chunks.
std::string schedule_text(const Config& config);

}  // namespace weft
