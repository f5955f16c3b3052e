// Reports on simulated steps for readers and scripts. All functions return text to print.
#pragma once

#include <span>
#include <string>

#include "trainer/config/config.h"
#include "trainer/planning/published.h"
#include "trainer/planning/step_forecast.h"

namespace weft {

struct SimulatedVariant {
  std::string title;  // the words that describe the variant
  Config config;
  StepForecast forecast;
  std::string grid;   // time_grid(), if the step is small
  std::string costs;  // the source of the costs, in words
  bool unit_time = false;
  Certainty certainty = {};
};

// Each variant, then a comparison if there are several.
std::string forecast_report(std::span<const SimulatedVariant> variants);
// {"variants": [...]}, one JSON document; times are seconds, or units if "unit_time" is true.
std::string forecast_json(std::span<const SimulatedVariant> variants);

// "1f1b, 4 x 2 stages": schedule, ranks and chunks.
std::string schedule_text(const Config& config);

}  // namespace weft
