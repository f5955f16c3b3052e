// Hardware by name: figures for plans and simulations without measurements, each with its source in words.
//
// Rates are those of data sheets times the fraction that training reaches. So steps have the right order of magnitude
// and the right proportions. A table of costs or the traces of a run are more exact.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/pipeline/simulation/cost_model.h"
#include "parallel/runtime/dtype.h"

namespace weft {

struct Figure {
  double value = 0.0;
  std::string_view source = {};
  bool operator==(const Figure&) const = default;
};

// Figures of one rank, which has a card to itself, unless a figure says otherwise.
struct Hardware {
  std::string_view name = {}, summary = {};
  std::optional<Figure> memory = {};  // bytes, by the card's name: "80 GB" are 80 GiB; none if unknown
  Figure reserved_memory = {};        // bytes of `memory` that no ledger counts: driver, CUDA context, NCCL, libraries
  std::optional<Figure> memory_bytes_per_second = {};  // of the card's memory; none if no figure was measured
  Figure flops_per_second_16bit = {}, flops_per_second_float32 = {};  // peak of dense products
  std::optional<Figure> flops_per_second_8bit = {};                   // likewise; none if the card has no such products
  std::optional<Figure> flops_per_second_8bit_blocks = {};            // with scales of blocks (ScaledBlock)
  Figure reached = {};                                                // fraction of the peak, by the products of a step
  Figure ranks_per_node = {};
  Figure link_bytes_per_second = {}, link_latency = {};  // to another rank of the node, one direction; seconds
  Figure node_bytes_per_second = {}, node_latency = {};  // out of a node through all its adapters; seconds
  Figure host_bytes_per_second = {};                     // between a card and its host's memory, in each direction
  std::optional<Figure> host_memory = {};                // bytes of the host for each of its cards; none if unknown

  // The peak of products whose factors have this dtype. Throws Error (request) if the card has no such products.
  const Figure& flops_per_second(DType factors) const;
  // Likewise of products in 8 bits; `format` is not as_stored.
  const Figure& flops_per_second(ProductFormat format) const;
  // Rate at which kernels that read and write rows move bytes: a share of the memory's rate.
  std::optional<double> moved_bytes_per_second() const;
  int node_ranks() const { return static_cast<int>(ranks_per_node.value); }
  LinkCost inside() const { return {link_latency.value, link_bytes_per_second.value}; }
  LinkCost between_nodes() const { return {node_latency.value, node_bytes_per_second.value}; }
};

std::span<const Hardware> known_hardware();
// Other names of a card that find_hardware accepts.
std::vector<std::string_view> aliases_of(std::string_view name);
// The hardware of this name, a row's own or another one; null if there is none.
const Hardware* hardware_named(std::string_view name);
// Throws Error (request) naming the known hardware and the nearest name if `name` is unknown.
const Hardware& find_hardware(std::string_view name);

}  // namespace weft
