#include "parallel/runtime/error.h"
#include "trainer/config/config_fields.h"
#include "trainer/config/config_special_keys.h"
#include "trainer/config/hardware_table.h"

namespace weft::config_fields {
namespace {

constexpr const char* automatic = "auto";  // as in the table of cards

// A rate below 1 MB/s was probably meant in another unit.
constexpr NumberRange rate_range{1e6, 1e15, false, false, "from 1e6 to 1e15, in bytes a second (400 Gbit/s are 50e9)"};
constexpr NumberRange peak_range{1e9, 1e18, false, false,
                                 "from 1e9 to 1e18, in operations a second (989 TFLOP/s are 989e12)"};
constexpr NumberRange part_range{0, 1, true, false, "greater than 0 and at most 1"};

ConfigKey name_key() {
  return string_key(
      "hardware.name",
      "card that a step is planned and simulated for, layouts are dealt and timing is solved by: see weft hardware; "
      "empty: one like run.device",
      [](auto& c) -> auto& { return c.hardware.name; },
      [](const std::string& name) -> std::string {
        if (name.empty()) return {};
        try {
          find_hardware(name);
          return {};
        } catch (const Error& error) {
          return error.what();
        }
      });
}

bool is_automatic(const ConfigValue& value) {
  const auto* word = std::get_if<std::string>(&value.data);
  return word && *word == automatic;
}

ConfigKey rate_key(const std::string& name, std::string help, NumberRange range,
                   std::optional<double> HardwareConfig::*field) {
  ConfigKey key = make_key("hardware." + name, "a number or \"auto\"", std::move(help));
  key.read = [=, expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    if (is_automatic(value)) {
      config.hardware.*field = std::nullopt;
      return {};
    }
    const std::optional<double> number = as_number(value);
    if (!number) return {wrong_type(expected, value)};
    if (!range.contains(*number)) {
      return {{value.place, fmt::format("{} is out of range: {}", toml_text(*number), range.text)}};
    }
    config.hardware.*field = *number;
    return {};
  };
  key.write = [=](const Config& config) {
    const std::optional<double>& number = config.hardware.*field;
    return number ? toml_text(*number) : toml_text(std::string(automatic));
  };
  return key;
}

ConfigKey ranks_per_node_key() {
  ConfigKey key = make_key("hardware.ranks_per_node", "an integer or \"auto\"", "ranks of a node; auto: the card's");
  key.read = [expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    if (is_automatic(value)) {
      config.hardware.ranks_per_node = std::nullopt;
      return {};
    }
    const auto* ranks = std::get_if<std::int64_t>(&value.data);
    if (!ranks) return {wrong_type(expected, value)};
    Faults faults = out_of_range(value, *ranks, degree_range);
    if (faults.empty()) config.hardware.ranks_per_node = static_cast<int>(*ranks);
    return faults;
  };
  key.write = [](const Config& config) {
    const std::optional<int>& ranks = config.hardware.ranks_per_node;
    return ranks ? toml_text(std::int64_t{*ranks}) : toml_text(std::string(automatic));
  };
  return key;
}

}  // namespace

std::vector<ConfigKey> hardware_keys() {
  return {
      name_key(),
      ranks_per_node_key(),
      bytes_key(
          "hardware.memory", "memory of a card, such as \"80 GiB\"; auto: the card's", automatic,
          [](auto& c) -> auto& { return c.hardware.memory; }),
      rate_key("node_bytes_per_second", "out of a node, all its adapters together; auto: the card's", rate_range,
               &HardwareConfig::node_bytes_per_second),
      rate_key("link_bytes_per_second", "from one rank to another of its node; auto: the card's", rate_range,
               &HardwareConfig::link_bytes_per_second),
      rate_key("flops_per_second", "peak of a card, in the dtype that dense parts compute in; auto: the card's",
               peak_range, &HardwareConfig::flops_per_second),
      rate_key("reached", "part of that peak that the products of a step reach; auto: the card's", part_range,
               &HardwareConfig::reached),
  };
}

}  // namespace weft::config_fields
