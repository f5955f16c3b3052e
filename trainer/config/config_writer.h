// A configuration back to TOML.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft {

// All keys, one a line, section by section. `comment` gives what stands behind a key's value; empty: nothing.
std::string write_config(const Config& config, const std::vector<ConfigKey>& schema,
                         const std::function<std::string(const ConfigKey&)>& comment);

}  // namespace weft
