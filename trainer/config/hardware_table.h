// Hardware by name: figures to plan and simulate with where nobody has measured, each with its source in words.
//
// Rates are those of data sheets times what training reaches of them, so that steps come out in the right order of
// magnitude and in the right proportions; a table of costs or the traces of a run say more.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/pipeline/simulation/cost_model.h"

namespace weft {

struct Figure {
  double value = 0.0;
  std::string_view source = {};
  bool operator==(const Figure&) const = default;
};

// Of one rank, which has a card to itself, unless a figure says otherwise.
struct Hardware {
  std::string_view name = {}, summary = {};
  std::optional<Figure> memory = {};  // bytes, as the card is called: "80 GB" are 80 GiB; none where nobody can say
  Figure reserved_memory = {};        // bytes of it that no ledger counts: driver, CUDA context, NCCL, libraries
  std::optional<Figure> memory_bytes_per_second = {};  // of the card's memory; none where nobody has measured
  Figure flops_per_second_16bit = {}, flops_per_second_float32 = {};  // peak of dense products
  Figure reached = {};                                                // of the peak, by the products of a step
  Figure ranks_per_node = {};
  Figure link_bytes_per_second = {}, link_latency = {};  // to another rank of the node, one direction; seconds
  Figure node_bytes_per_second = {}, node_latency = {};  // out of a node through all its adapters; seconds

  int node_ranks() const { return static_cast<int>(ranks_per_node.value); }
  LinkCost inside() const { return {link_latency.value, link_bytes_per_second.value}; }
  LinkCost between_nodes() const { return {node_latency.value, node_bytes_per_second.value}; }
};

std::span<const Hardware> known_hardware();
// Other names that find_hardware takes for a card.
std::vector<std::string_view> aliases_of(std::string_view name);
// Throws Error (request) naming those that are known, and the nearest.
const Hardware& find_hardware(std::string_view name);

}  // namespace weft
