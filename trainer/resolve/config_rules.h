// What must hold between keys. Each rule names the keys it looks at and is skipped when one of them is already faulty.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"

namespace weft {

using Messages = std::vector<std::string>;

struct ConfigRule {
  std::vector<std::string> keys;  // paths; the first one that was written is where a fault is shown
  // Everything wrong, with the arithmetic.
  std::function<Messages(const Config&)> check;
};

// The message unless it holds.
inline Messages none_or(bool holds, std::string message) {
  return holds ? Messages{} : Messages{std::move(message)};
}

std::vector<ConfigRule> config_rules();
// Those of them that speak of sharding and precision (config_shard_rules.cpp).
std::vector<ConfigRule> shard_rules();
// Those of a weight that embedding and head share (config_tied_rules.cpp).
std::vector<ConfigRule> tied_rules();
// Those that bound sizes (config_size_rules.cpp).
std::vector<ConfigRule> size_rules();
// Those of stages and schedules (config_pipeline_rules.cpp).
std::vector<ConfigRule> pipeline_rules();

}  // namespace weft
