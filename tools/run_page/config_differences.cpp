#include "tools/run_page/config_differences.h"

#include <algorithm>
#include <functional>
#include <map>

#include "trainer/config/config_schema.h"

namespace weft {
namespace {

bool names_the_run(const std::string& path) {
  return path == "run.name" || path == "run.directory" || path == "checkpoint.directory";
}

std::string value_in(const ConfigKey& key, const Config& config) {
  const bool read = std::ranges::all_of(key.read_where, [&](const KeyCondition& where) { return where.holds(config); });
  return read ? key.write(config) : "not read";
}

}  // namespace

std::vector<ConfigDifference> config_differences(std::span<const Config> runs) {
  const std::vector<ConfigKey> schema = config_schema();
  std::map<std::string, std::vector<std::string>> values;  // by path
  for (const ConfigKey& key : schema) {
    for (const Config& run : runs) values[key.path()].push_back(value_in(key, run));
  }
  std::vector<ConfigDifference> differences;
  for (const ConfigKey& key : schema) {
    const auto& of_key = values[key.path()];
    const bool equal = std::ranges::adjacent_find(of_key, std::not_equal_to()) == of_key.end();
    const auto base = values.find(key.inherits);
    const bool follows = base != values.end() && base->second == of_key;
    if (!equal && !follows && !names_the_run(key.path())) differences.push_back({key.path(), key.help, of_key});
  }
  return differences;
}

}  // namespace weft
