// A configuration back to TOML.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft {

// Writes all keys, one a line, section by section. `comment` gives the text behind a key's value; empty: none. A key
// for which `follows` holds takes its value from another key, so its line is a comment. The reader sees the value, and
// the key still follows the other key if that one is given anew.
std::string write_config(
    const Config& config, const std::vector<ConfigKey>& schema,
    const std::function<std::string(const ConfigKey&)>& comment,
    const std::function<bool(const ConfigKey&)>& follows = [](const ConfigKey&) { return false; });

}  // namespace weft
