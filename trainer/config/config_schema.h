// Every key of a run file: where it stands, what it takes, where it goes in Config. One table serves reading, printing,
// suggestions and documentation. Defaults are those of Config itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/config_value.h"

namespace weft {

// A condition under which a run reads a key: "decay is \"wsd\"".
struct KeyCondition {
  std::string text;
  std::function<bool(const Config&)> holds;
};

struct ConfigKey {
  std::string section;        // "model.moe"
  std::string name;           // "num_experts"
  std::string type;           // "an integer", as messages put it
  std::string help;           // one line
  bool required = false;      // where it is read
  std::string inherits = {};  // path of the key that gives the value if this key is not written
  // If one of these does not hold, no run reads the value, and no rule checks it.
  std::vector<KeyCondition> read_where = {};
  // Puts a value into the configuration, or says why not. Keys are read in the order of the table.
  std::function<Faults(Config&, const ConfigValue&)> read = {};
  // Puts the value of an absent key that depends on keys above it in the table; empty if it depends on none.
  std::function<void(Config&)> absent = {};
  // The value in the configuration as TOML.
  std::function<std::string(const Config&)> write = {};

  std::string path() const { return section + "." + name; }
};

std::vector<ConfigKey> config_schema();

// Writes all keys, one a line, section by section. `comment` gives the text behind a key's value; empty: none. A key
// for which `follows` holds takes its value from another key, so its line is a comment. The reader sees the value, and
// the key still follows the other key if that one is given anew.
std::string write_config(
    const Config& config, const std::vector<ConfigKey>& schema,
    const std::function<std::string(const ConfigKey&)>& comment,
    const std::function<bool(const ConfigKey&)>& follows = [](const ConfigKey&) { return false; });

// The keys with another value in `now` than in `before`, both written without comments behind values, as
// "run.steps 100 -> 200", in the order of `now`. Keys that follow another key in both texts are left out.
std::vector<std::string> changed_values(const std::string& before, const std::string& now);

// The families whose policies `[shard.<family>]` sets.
inline constexpr Family shard_families[] = {Family::dense, Family::experts, Family::embedding, Family::head,
                                            Family::root};

}  // namespace weft
