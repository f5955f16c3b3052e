#include "trainer/costs/hardware.h"

#include "trainer/costs/topology.h"
#include "trainer/plan/unit_policy.h"

namespace weft {
Hardware hardware_of(const Config& config) {
  const HardwareConfig& set = config.hardware;
  Hardware hardware = find_hardware(!set.name.empty()                      ? std::string_view(set.name)
                                    : config.run.device == DeviceKind::cpu ? "cpu"
                                                                           : "h200");
  const auto replace = [](auto& figure, const auto& value, std::string_view source) {
    if (value) figure = Figure{static_cast<double>(*value), source};
  };
  replace(hardware.memory, set.memory, "set by hardware.memory");
  replace(hardware.host_memory, set.host_memory, "set by hardware.host_memory");
  replace(hardware.ranks_per_node, set.ranks_per_node, "set by hardware.ranks_per_node");
  replace(hardware.link_bytes_per_second, set.link_bytes_per_second, "set by hardware.link_bytes_per_second");
  replace(hardware.host_bytes_per_second, set.host_bytes_per_second, "set by hardware.host_bytes_per_second");
  replace(hardware.node_bytes_per_second, set.node_bytes_per_second, "set by hardware.node_bytes_per_second");
  const bool wide = config.precision_of(Family::dense).compute == DType::float32;
  replace(wide ? hardware.flops_per_second_float32 : hardware.flops_per_second_16bit, set.flops_per_second,
          "set by hardware.flops_per_second");
  replace(hardware.reached, set.reached, "set by hardware.reached");
  // Ranks of a trial that share a card have equal parts of it.
  if (hardware.memory) hardware.memory->value /= config.run.ranks_per_device;
  return hardware;
}

DeviceKind device_of(const Hardware& hardware) {
  return hardware.name == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
}

Config on_hardware(Config config) {
  config.run.device = device_of(hardware_of(config));
  return config;
}

std::optional<double> known_peak(const Config& config, const std::optional<std::string>& card) {
  if (config.hardware.flops_per_second) return config.hardware.flops_per_second;
  if (config.run.device == DeviceKind::cpu) return std::nullopt;
  const std::string name = config.hardware.name.empty() ? card.value_or("") : config.hardware.name;
  const Hardware* hardware = hardware_named(name);
  if (hardware == nullptr) return std::nullopt;
  return hardware->flops_per_second(config.precision_of(Family::dense).compute.dtype).value;
}

std::vector<NamedFigure> figures_of(const Hardware& hardware) {
  return {{"memory", "bytes", hardware.memory},
          {"reserved_memory", "bytes", hardware.reserved_memory},
          {"memory_bytes_per_second", "bytes/s", hardware.memory_bytes_per_second},
          {"flops_per_second_16bit", "FLOP/s", hardware.flops_per_second_16bit},
          {"flops_per_second_float32", "FLOP/s", hardware.flops_per_second_float32},
          {"flops_per_second_8bit", "FLOP/s", hardware.flops_per_second_8bit},
          {"flops_per_second_8bit_blocks", "FLOP/s", hardware.flops_per_second_8bit_blocks},
          {"reached", "of the peak", hardware.reached},
          {"ranks_per_node", "ranks", hardware.ranks_per_node},
          {"link_bytes_per_second", "bytes/s", hardware.link_bytes_per_second},
          {"link_latency", "seconds", hardware.link_latency},
          {"node_bytes_per_second", "bytes/s", hardware.node_bytes_per_second},
          {"node_latency", "seconds", hardware.node_latency},
          {"host_bytes_per_second", "bytes/s", hardware.host_bytes_per_second},
          {"host_memory", "bytes", hardware.host_memory}};
}

HardwareCosts hardware_costs(const Hardware& hardware, const Config& config, const Mesh& mesh) {
  const Figure& peak = hardware.flops_per_second(config.precision_of(Family::dense).compute);
  const double seconds = 1.0 / (hardware.reached.value * peak.value);
  HardwareCosts costs{.seconds_per_flop_forward = seconds, .seconds_per_flop_backward = seconds};
  costs.host_bytes_per_second = hardware.host_bytes_per_second.value;
  // Stages share a node only if a node holds several whole stages. Otherwise each stage counts as a node of its own.
  const int stage_ranks = mesh.degrees().stage_ranks(), node_ranks = hardware.node_ranks();
  for (int rank = 0; rank < mesh.degrees().pipeline; ++rank) {
    costs.nodes.push_back(node_ranks % stage_ranks == 0 ? rank * stage_ranks / node_ranks : rank);
  }
  const auto link_of = [&](const GroupLinks& links) {
    return shared_link(links, hardware.inside(), hardware.between_nodes());
  };
  for (const Group group : all_groups) costs.links[group] = link_of(group_links(mesh, group, hardware.node_ranks()));
  // With islands of several sizes, the slowest link counts.
  costs.links[Group::dp_island] = costs.links[Group::edp_island] = hardware.inside();
  for (const Island& island : islands_of(config)) {
    LinkCost& link = costs.links[island.shard_group == Group::edp_shard ? Group::edp_island : Group::dp_island];
    const LinkCost own =
        link_of(group_links(mesh.world(), island_steps(mesh, island.shard_group, island.ranks), hardware.node_ranks()));
    if (own.bytes_per_second < link.bytes_per_second) link = own;
  }
  return costs;
}

std::string_view words_of(Fit fit) {
  constexpr std::string_view words[] = {"fits", "does not fit safely", "does not fit", "not judged"};
  return words[static_cast<std::size_t>(fit)];
}

Fit Verdict::fit_of(std::int64_t needed_bytes) const {
  if (exceeds_host()) return Fit::exceeds;
  if (memory == 0) return Fit::unknown;
  if (needed_bytes > memory) return Fit::exceeds;
  return static_cast<double>(needed_bytes) > limit * static_cast<double>(memory) ? Fit::tight : Fit::fits;
}

bool Verdict::leaves_little_room() const {
  return fit == Fit::fits && static_cast<double>(headroom()) < little_room * static_cast<double>(memory);
}

Verdict judge(const Hardware& hardware, const BucketBytes& peak, std::int64_t host_needed) {
  Verdict verdict;
  verdict.reserved = static_cast<std::int64_t>(hardware.reserved_memory.value);
  verdict.needed = peak.total() + verdict.reserved;
  for (const Bucket bucket : all_values<Bucket>) {
    if (peak[bucket] <= verdict.deciding_bytes) continue;
    verdict.deciding = bucket;
    verdict.deciding_bytes = peak[bucket];
  }
  if (hardware.memory) verdict.memory = static_cast<std::int64_t>(hardware.memory->value);
  verdict.host_needed = host_needed;
  if (hardware.host_memory) verdict.host_memory = static_cast<std::int64_t>(hardware.host_memory->value);
  verdict.fit = verdict.fit_of(verdict.needed);
  return verdict;
}

std::string Verdict::text() const {
  const auto text_of = [unit = unit()](std::int64_t bytes) { return unit.text(bytes); };
  const std::string term = fmt::format("{} decides with {}", weft::name_of(deciding), text_of(deciding_bytes));
  const std::string need = fmt::format("{} with {} reserved", text_of(needed), text_of(reserved));
  std::string reason = "the hardware has no memory of its own (hardware.memory sets one)";
  switch (fit) {
    case Fit::fits:
      reason = fmt::format("{} of {}, {} left", need, text_of(memory), text_of(headroom()));
      if (leaves_little_room()) reason += fmt::format(", less than {:.0f} %", 100.0 * little_room);
      break;
    case Fit::tight:
      reason = fmt::format("{} is more than {:.0f} % of {}", need, 100.0 * limit, text_of(memory));
      break;
    case Fit::exceeds:
      reason = exceeds_host()
                   ? fmt::format("{} of host memory are more than {:.0f} % of a card's {} (hardware.host_memory)",
                                 text_of(host_needed), 100.0 * limit, text_of(host_memory))
                   : fmt::format("{} exceeds {} by {}", need, text_of(memory), text_of(-headroom()));
      break;
    case Fit::unknown:
      break;
  }
  if (exceeds_host()) return fmt::format("{}: {}", words_of(fit), reason);
  return fmt::format("{}: {}; {}", words_of(fit), reason, term);
}

}  // namespace weft
