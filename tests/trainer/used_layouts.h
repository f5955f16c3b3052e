// Layouts in which a model is used and not trained, for what evaluates it and what generates with it.
#pragma once

#include <vector>

#include "tests/trainer/tiny_layout.h"

namespace weft {

inline std::vector<TinyLayout> used_layouts() {
  const std::string dense = "d*4", mixed = "d e d e";
  return {
      {.name = "pp2", .layers = dense, .degrees = {.pipeline = 2}},
      {.name = "pp4", .layers = mixed, .degrees = {.pipeline = 4}, .residency = "step"},
      {.name = "interleaved", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "interleaved", .chunks = 2},
      {.name = "v", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zbv", .chunks = 2},
      {.name = "tp2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "tp4", .layers = dense, .degrees = {.tensor = 4}},
      {.name = "shard2_reshard_after_use",
       .layers = mixed,
       .degrees = {.data_shard = 2},
       .residency = "reshard_after_use"},
      {.name = "shard4_island", .layers = dense, .degrees = {.data_shard = 4}, .residency = "2", .lookahead = 2},
      {.name = "replicate2", .layers = mixed, .degrees = {.data_replicate = 2}},
      {.name = "no_shard", .layers = mixed, .degrees = {.data_shard = 2}, .strategy = ShardStrategy::no_shard},
      {.name = "ep2", .layers = mixed, .degrees = {.data_shard = 2, .expert = 2}},
      {.name = "ep2_etp2", .layers = mixed, .degrees = {.data_shard = 2, .tensor = 2, .expert = 2, .expert_tensor = 2}},
      {.name = "tied", .layers = mixed, .degrees = {.pipeline = 2, .tensor = 2}, .tied = true},
      {.name = "tied_v", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2, .tied = true},
      {.name = "predictor", .layers = "d e d e m", .degrees = {.pipeline = 2, .tensor = 2}},
      {.name = "predictor_apart", .layers = "d e m*2", .degrees = {.pipeline = 4}, .stages = "Ed|e|mm|L"},
      {.name = "all",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
       .schedule = "interleaved",
       .chunks = 2},
  };
}

}  // namespace weft
