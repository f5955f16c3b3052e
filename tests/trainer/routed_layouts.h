// Layouts over which the choices of routers must not depend. They have every axis that splits tokens or experts, every
// dispatch, and the settings that recompute a block with experts.
#pragma once

#include <string>
#include <vector>

#include "tests/trainer/tiny_layout.h"

namespace weft {

inline std::vector<TinyLayout> routed_layouts() {
  const std::string mixed = "d e d e";
  return {
      {.name = "pp2", .layers = mixed, .degrees = {.pipeline = 2}},
      {.name = "tp2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "cp2", .layers = mixed, .degrees = {.context = 2}},
      {.name = "cp2_tp2_ep4", .layers = mixed, .degrees = {.context = 2, .tensor = 2, .expert = 4}},
      {.name = "shard4_ep4", .layers = mixed, .degrees = {.data_shard = 4, .expert = 4}},
      {.name = "ep2_etp2", .layers = mixed, .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "all_tokens",
       .layers = mixed,
       .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2, .expert_dispatch = ExpertDispatch::all_gather},
       .recompute = Recompute::full},
      {.name = "two_nodes",
       .layers = mixed,
       .degrees = {.context = 2,
                   .tensor = 2,
                   .expert = 4,
                   .expert_dispatch = ExpertDispatch::hierarchical,
                   .expert_nodes = 2}},
      {.name = "zbv",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
       .schedule = "zbv",
       .chunks = 2},
      {.name = "full", .layers = mixed, .degrees = {.tensor = 2, .expert = 2}, .recompute = Recompute::full},
      {.name = "keep_dispatch",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
       .recompute = Recompute::keep_dispatch},
      {.name = "experts", .layers = mixed, .degrees = {.data_shard = 2}, .recompute = Recompute::experts},
  };
}

}  // namespace weft
