// The table of cards, what [hardware] makes of it, and how it is read.
#include "trainer/costs/hardware.h"

#include <gtest/gtest.h>

#include "parallel/runtime/error.h"
#include "tests/trainer/config_sample.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

std::string complaint_about(std::string_view name) {
  try {
    find_hardware(name);
    return "none";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
}

TEST(Hardware, EveryFigureHasASource) {
  for (const Hardware& hardware : known_hardware()) {
    EXPECT_EQ(&find_hardware(hardware.name), &hardware);
    EXPECT_FALSE(hardware.summary.empty());
    for (const NamedFigure& entry : figures_of(hardware)) {
      if (hardware.name == "cpu" && (entry.name == "memory" || entry.name == "memory_bytes_per_second")) {
        EXPECT_FALSE(entry.figure);
        continue;
      }
      // Servers with cards on PCIe have no usual memory, and on the CPU all memory is the host's.
      const bool on_pcie = hardware.name == "l40s" || hardware.name == "rtx4090";
      if (entry.name == "host_memory" && (on_pcie || hardware.name == "cpu")) {
        EXPECT_FALSE(entry.figure);
        continue;
      }
      const bool hopper_or_cpu = hardware.name.starts_with("h") || hardware.name == "cpu";
      if ((hardware.name.starts_with("a100") && entry.name == "flops_per_second_8bit") ||
          (!hopper_or_cpu && entry.name == "flops_per_second_8bit_blocks")) {
        EXPECT_FALSE(entry.figure);
        continue;
      }
      ASSERT_TRUE(entry.figure) << hardware.name << " " << entry.name;
      EXPECT_GT(entry.figure->source.size(), 10u) << hardware.name << " " << entry.name;
      // Ranks that are threads take nothing beside their ledgers.
      const bool may_be_none = hardware.name == "cpu" && entry.name == "reserved_memory";
      EXPECT_TRUE(entry.figure->value > 0.0 || may_be_none) << hardware.name << " " << entry.name;
    }
    EXPECT_LE(hardware.reached.value, 1.0);
    const double memory = hardware.memory ? hardware.memory->value : 1.0;
    EXPECT_LT(hardware.reserved_memory.value, 0.1 * memory) << hardware.name;
  }
}

TEST(Hardware, IsFoundByOtherNamesAndSuggested) {
  EXPECT_EQ(find_hardware("h100-80gb").name, "h100");
  EXPECT_EQ(find_hardware("a100").name, "a100-80gb");
  EXPECT_EQ(aliases_of("rtx4090"), (std::vector<std::string_view>{"rtx-4090", "4090", "NVIDIA GeForce RTX 4090"}));
  for (const Hardware& hardware : known_hardware()) {
    for (const std::string_view alias : aliases_of(hardware.name)) EXPECT_EQ(find_hardware(alias).name, hardware.name);
  }
  EXPECT_EQ(complaint_about("h10"),
            "hardware h10 is not known (did you mean h100?); known are h100, h200, a100-80gb, a100-40gb, b200, l40s, "
            "rtx4090, cpu");
  EXPECT_EQ(complaint_about("a100-80g").find("hardware a100-80g is not known (did you mean a100-80gb?)"), 0u);
  EXPECT_EQ(complaint_about("abacus").find("hardware abacus is not known; known are h100"), 0u);
}

// 80 GB are 80 x 2^30 bytes.
TEST(Hardware, CardsAreCalledAfterBinaryBytes) {
  EXPECT_EQ(find_hardware("h100").memory->value, 85'899'345'920.0);
  EXPECT_EQ(find_hardware("a100-40gb").memory->value, 42'949'672'960.0);
}

TEST(Hardware, TheConfigurationReplacesFigures) {
  Config config = config_of({.layers = "d"});
  EXPECT_EQ(hardware_of(config).name, "cpu");
  config.run.device = DeviceKind::cuda;
  EXPECT_EQ(hardware_of(config).name, "h200");
  config.hardware = {.name = "h100-80gb",
                     .ranks_per_node = 4,
                     .memory = 123,
                     .node_bytes_per_second = 25e9,
                     .link_bytes_per_second = 100e9,
                     .flops_per_second = 500e12,
                     .reached = 0.25};
  config.precision.compute = DType::bfloat16;
  config.precision_by_family.clear();
  const Hardware set = hardware_of(config);
  const Hardware& h100 = find_hardware("h100");
  EXPECT_EQ(set.name, "h100");
  EXPECT_EQ(set.memory, (Figure{123, "set by hardware.memory"}));
  Config shared = config;
  shared.run.ranks_per_device = 3;
  EXPECT_EQ(hardware_of(shared).memory->value, 41) << "a rank's part of the card";
  EXPECT_EQ(set.node_ranks(), 4);
  EXPECT_EQ(set.node_bytes_per_second, (Figure{25e9, "set by hardware.node_bytes_per_second"}));
  EXPECT_EQ(set.link_bytes_per_second, (Figure{100e9, "set by hardware.link_bytes_per_second"}));
  EXPECT_EQ(set.flops_per_second_16bit, (Figure{500e12, "set by hardware.flops_per_second"}));
  EXPECT_EQ(set.flops_per_second_float32, h100.flops_per_second_float32);
  EXPECT_EQ(set.reached, (Figure{0.25, "set by hardware.reached"}));
  EXPECT_EQ(set.link_latency, h100.link_latency);
  const HardwareCosts costs = hardware_costs(set, config, Mesh(config.parallelism));
  EXPECT_DOUBLE_EQ(costs.seconds_per_flop_forward, 1.0 / 125e12);
  config.precision.compute = DType::float32;
  EXPECT_EQ(hardware_of(config).flops_per_second_float32.value, 500e12);
  EXPECT_EQ(hardware_of(config).flops_per_second_16bit, h100.flops_per_second_16bit);
}

// On nodes of two, islands of two neighbours are inside one and those of four are not.
TEST(Hardware, IslandsHaveTheLinkThatTheyCross) {
  Config config = config_of({.layers = "d", .degrees = {.data_shard = 8}});
  config.run.device = DeviceKind::cuda;
  config.hardware.ranks_per_node = 2;
  const auto island_link = [&](int ranks) {
    for (auto& [family, policy] : config.shard_by_family) policy.residency = {Residency::island, ranks};
    return hardware_costs(hardware_of(config), config, Mesh(config.parallelism)).links.at(Group::dp_island);
  };
  const Hardware hardware = hardware_of(config);
  EXPECT_EQ(island_link(2), hardware.inside());
  // A ring of four over two nodes leaves each once: all of the adapters.
  EXPECT_EQ(island_link(4).bytes_per_second, hardware.node_bytes_per_second.value);
  EXPECT_EQ(island_link(4).latency, hardware.node_latency.value);
}

Config read_section(const std::string& section) {
  return read_config_text(config_sample::complete() + section, "run.toml").config;
}

TEST(Hardware, SectionIsRead) {
  EXPECT_EQ(read_section("").hardware, HardwareConfig{});
  const std::string section =
      "[hardware]\nname = \"a100\"\nranks_per_node = 4\nmemory = \"40GiB\"\nnode_bytes_per_second = 25e9\n"
      "link_bytes_per_second = 300_000_000_000\nhost_bytes_per_second = 20e9\nhost_memory = "
      "\"64GiB\"\nflops_per_second = 312e12\nreached = 1\n";
  const HardwareConfig expected{"a100", 4, 42'949'672'960, 25e9, 300e9, 20e9, 68'719'476'736, 312e12, 1.0};
  EXPECT_EQ(read_section(section).hardware, expected);
  const ResolvedConfig resolved = read_config_text(config_sample::complete() + section, "run.toml");
  EXPECT_EQ(read_config_text(resolved.toml, "again.toml").config.hardware, expected);
  const HardwareConfig automatic =
      read_config_text(resolved.toml, "again.toml",
                       {"--hardware.name=", "--hardware.ranks_per_node=auto", "--hardware.memory=auto",
                        "--hardware.node_bytes_per_second=auto", "--hardware.link_bytes_per_second=auto",
                        "--hardware.host_bytes_per_second=auto", "--hardware.host_memory=auto",
                        "--hardware.flops_per_second=auto", "--hardware.reached=auto"})
          .config.hardware;
  EXPECT_EQ(automatic, HardwareConfig{});
}

TEST(Hardware, WrongValuesAreRefused) {
  const std::pair<const char*, const char*> lines[] = {
      {"name = \"h10\"", "hardware h10 is not known (did you mean h100?)"},
      {"ranks_per_node = 0", "0 is out of range: at least 1"},
      {"ranks_per_node = \"eight\"", "expected an integer or \"auto\""},
      {"memory = \"80 gigs\"", "\"80 gigs\" is no amount of memory"},
      {"memory = 1.5", "expected a string or an integer"},
      {"node_bytes_per_second = 400", "out of range: from 1e6 to 1e15, in bytes a second (400 Gbit/s are 50e9)"},
      {"link_bytes_per_second = 0", "out of range"},
      {"flops_per_second = 989", "out of range: from 1e9 to 1e18, in operations a second"},
      {"reached = 1.1", "out of range: greater than 0 and at most 1"},
      {"reached = 0", "out of range"},
      {"card = \"h100\"", "unknown key hardware.card"},
  };
  for (const auto& [line, message] : lines) {
    try {
      read_section(std::string("[hardware]\n") + line + "\n");
      FAIL() << line;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << line << "\n" << error.what();
    }
  }
}

// Of data sheets (hardware_table.cpp), by the dtype of dense parts.
TEST(KnownPeak, IsThatOfTheCardUnlessTheConfigurationKnowsBetter) {
  Config config;
  config.run.device = DeviceKind::cuda;
  EXPECT_EQ(known_peak(config, "NVIDIA H100 80GB HBM3"), 66.9e12);
  config.precision.compute = DType::bfloat16;
  EXPECT_EQ(known_peak(config, "NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(known_peak(config, "NVIDIA A100-SXM4-40GB"), 312e12);
  config.precision.compute = ProductFormat::float8;
  EXPECT_EQ(known_peak(config, "NVIDIA H200"), 989.4e12);
  EXPECT_EQ(known_peak(config, "NVIDIA H100 PCIe"), std::nullopt);  // has another peak
  EXPECT_EQ(known_peak(config, std::nullopt), std::nullopt);
  config.hardware.name = "a100";
  EXPECT_EQ(known_peak(config, "NVIDIA H100 80GB HBM3"), 312e12);
  config.run.device = DeviceKind::cpu;
  EXPECT_EQ(known_peak(config, std::nullopt), std::nullopt);
  config.hardware.flops_per_second = 5e11;
  EXPECT_EQ(known_peak(config, std::nullopt), 5e11);
}

}  // namespace
}  // namespace weft
