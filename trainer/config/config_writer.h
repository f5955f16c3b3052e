// A configuration back to TOML.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft {

// All keys, one a line, section by section. `comment` gives what stands behind a key's value; empty: nothing. A key for
// which `follows` holds has its value from another key: its line is a comment, so that a reader of the text sees the
// value, and the key still follows the other where that is given anew.
std::string write_config(
    const Config& config, const std::vector<ConfigKey>& schema,
    const std::function<std::string(const ConfigKey&)>& comment,
    const std::function<bool(const ConfigKey&)>& follows = [](const ConfigKey&) { return false; });

}  // namespace weft
