// Hardware by name: figures for the model of costs (parallel/pipeline/simulation/cost_model.h) where nobody has
// measured.
//
// Rates are those of data sheets times what training reaches of them, so that steps come out in the right order of
// magnitude and in the right proportions; a table of costs or the traces of a run say more.
#pragma once

#include <span>
#include <string_view>

#include "parallel/pipeline/simulation/cost_model.h"
#include "trainer/config/config.h"

namespace weft {

struct Hardware {
  std::string_view name;
  std::string_view summary;
  // Of one rank, as training reaches them.
  double flops_per_second_float32 = 0.0, flops_per_second_16bit = 0.0;
  int ranks_per_node = 1;
  LinkCost inside, between;  // nodes
};

std::span<const Hardware> known_hardware();
// Throws Error (request) naming those that are known.
const Hardware& find_hardware(std::string_view name);
// Of the device that the run asks for.
const Hardware& hardware_of(DeviceKind device);

// A group has the link inside a node when none of its groups crosses nodes, which hold neighbouring ranks. The rate is
// that of the dtype which dense parts compute in.
HardwareCosts hardware_costs(const Hardware& hardware, const Config& config, const Mesh& mesh);

}  // namespace weft
