// The hardware that a configuration names, and what actions cost on it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/hardware_table.h"

namespace weft {

// The row that [hardware] names, or the one like the run's device, with the figures that [hardware] sets, whose source
// then says so.
Hardware hardware_of(const Config& config);

// What is printed of a card, in the order of reading.
struct NamedFigure {
  std::string_view name;  // as in [hardware] where it stands there
  std::string_view unit;
  std::optional<Figure> figure;
};
std::vector<NamedFigure> figures_of(const Hardware& hardware);

// Rates are those of the dtype which dense parts compute in. A group has the link inside a node when none of its kind
// leaves one, and otherwise its share of what goes out of a node (topology.h).
HardwareCosts hardware_costs(const Hardware& hardware, const Config& config, const Mesh& mesh);

}  // namespace weft
