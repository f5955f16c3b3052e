#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"
#include "trainer/config/hardware_table.h"

namespace weft::config_fields {
namespace {

// A rate below 1 MB/s was probably meant in another unit.
constexpr NumberRange rate_range{1e6, 1e15, false, false, "from 1e6 to 1e15, in bytes a second (400 Gbit/s are 50e9)"};
constexpr NumberRange peak_range{1e9, 1e18, false, false,
                                 "from 1e9 to 1e18, in operations a second (989 TFLOP/s are 989e12)"};
constexpr NumberRange part_range{0, 1, true, false, "greater than 0 and at most 1"};

void names_hardware(const std::string& name) {
  if (!name.empty()) find_hardware(name);
}

}  // namespace

std::vector<ConfigKey> hardware_keys() {
  using H = HardwareConfig;
  const auto field = fields_of("hardware", &Config::hardware);
  return {
      string_key(field("name", &H::name),
                 "card that a step is planned and simulated for and timing is solved by: see weft hardware; empty: one "
                 "like run.device",
                 names_hardware),
      integer_key(field("ranks_per_node", &H::ranks_per_node), "ranks of a node; auto: the card's", degree_range),
      bytes_key(field("memory", &H::memory),
                "memory of a card, such as \"80 GiB\"; auto: the card's; where it has room, gradients add up whole by "
                "default",
                automatic),
      number_key(field("node_bytes_per_second", &H::node_bytes_per_second),
                 "out of a node, all its adapters together; auto: the card's", rate_range),
      number_key(field("link_bytes_per_second", &H::link_bytes_per_second),
                 "from one rank to another of its node; auto: the card's", rate_range),
      number_key(field("host_bytes_per_second", &H::host_bytes_per_second),
                 "between a card and its host's memory, in each direction; auto: the card's", rate_range),
      bytes_key(field("host_memory", &H::host_memory),
                "memory of a host for each of its cards, such as \"200 GiB\"; auto: the card's", automatic),
      number_key(field("flops_per_second", &H::flops_per_second),
                 "peak of a card, in the dtype that dense parts compute in; auto: the card's", peak_range),
      number_key(field("reached", &H::reached), "part of that peak that the products of a step reach; auto: the card's",
                 part_range),
      number_key(field("expert_load", &H::expert_load, {has_blocks(BlockKind::moe)}),
                 "load of the busiest rank's experts over the mean, as modelled times take it",
                 NumberRange{1, 1024, false, false, "from 1, an even load, to 1024"}),
  };
}

}  // namespace weft::config_fields
