// The hardware that a configuration names, and what actions cost on it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/hardware_table.h"

namespace weft {

// The table row that [hardware] names, by default the one for the run's device (cpu, or h200 for cuda). Figures set in
// [hardware] replace the row's, and their source says so.
Hardware hardware_of(const Config& config);

// A printed figure of a card; figures_of() lists them in the order of reading.
struct NamedFigure {
  std::string_view name;  // the key of [hardware], if there is one
  std::string_view unit;
  std::optional<Figure> figure;
};
std::vector<NamedFigure> figures_of(const Hardware& hardware);

// Rates are those of the compute dtype of dense parts. A group has the link inside a node if no group of its kind
// leaves a node, and otherwise its share of the rate out of a node (topology.h).
HardwareCosts hardware_costs(const Hardware& hardware, const Config& config, const Mesh& mesh);

}  // namespace weft
