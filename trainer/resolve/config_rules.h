// Rules between keys. Each rule names the keys it looks at and is skipped if one of them is already faulty.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"

namespace weft {

using Messages = std::vector<std::string>;

struct ConfigRule {
  std::vector<std::string> keys;  // paths; a fault is shown at the first one that is written
  // All faults, with the arithmetic.
  std::function<Messages(const Config&)> check;
};

// The message unless `holds`.
template <typename... Args>
Messages none_or(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  return holds ? Messages{} : Messages{fmt::format(text, std::forward<Args>(args)...)};
}

// A size and its words in a message.
struct NamedSize {
  std::string name;
  std::int64_t value = 0;
};
// The sizes of a configuration that a rule judges.
using Size = std::function<std::int64_t(const Config&)>;
using Sizes = std::function<std::vector<NamedSize>(const Config&)>;
Sizes one_size(const std::string& name, Size size);
// The different widths of blocks of a kind: the model's, called `name`, if a block takes it, and those that
// model.layers gives.
Sizes block_widths(BlockKind kind, const std::string& name);

std::vector<ConfigRule> config_rules();
// Objections of the rules.
Messages rule_faults(const Config& config, const std::vector<ConfigRule>& rules = config_rules());
// The rules of the model and the degrees that split it (config_model_rules.cpp).
std::vector<ConfigRule> model_rules();
// The rules of sharding and precision (config_shard_rules.cpp).
std::vector<ConfigRule> shard_rules();
// The rules of a weight that embedding and head share (config_tied_rules.cpp).
std::vector<ConfigRule> tied_rules();
// The rules that bound sizes (config_size_rules.cpp).
std::vector<ConfigRule> size_rules();
// Throws Error (request) for a model that no run could have by these rules.
void require_sizes(const Config& config);
// The rules of sizes that products in float8 can have (config_size_rules.cpp too).
std::vector<ConfigRule> float8_rules();
// The rules of stages and schedules (config_pipeline_rules.cpp).
std::vector<ConfigRule> pipeline_rules();

}  // namespace weft
