#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/costs/hardware.h"

namespace weft {
namespace {

Json hardware_json(const Hardware& hardware) {
  Json json = {{"name", hardware.name}, {"summary", hardware.summary}, {"aliases", aliases_of(hardware.name)}};
  for (const NamedFigure& entry : figures_of(hardware)) {
    Json& figure = json[std::string(entry.name)];
    if (entry.figure) {
      figure = {{"value", entry.figure->value}, {"unit", entry.unit}, {"source", entry.figure->source}};
    }
  }
  return json;
}

std::string value_text(const NamedFigure& entry) {
  if (!entry.figure) return "not known";
  const double value = entry.figure->value;
  if (entry.unit == "bytes") return fmt::format("{:.2f} GiB = {:.0f} bytes", value / 0x1p30, value);
  if (entry.unit == "FLOP/s") return fmt::format("{:.1f} TFLOP/s", value / 1e12);
  if (entry.unit == "bytes/s") return fmt::format("{:.1f} GB/s", value / 1e9);
  if (entry.unit == "seconds") return fmt::format("{:.0f} us", value * 1e6);
  if (entry.unit == "ranks") return fmt::format("{:.0f} ranks", value);
  return fmt::format("{:g} {}", value, entry.unit);
}

// All that is known of one card, with the sources.
std::string card_text(const Hardware& hardware) {
  std::string text = fmt::format("{}: {}\n", hardware.name, hardware.summary);
  const auto aliases = aliases_of(hardware.name);
  if (!aliases.empty()) text += fmt::format("  also known as {}\n", fmt::join(aliases, ", "));
  for (const NamedFigure& entry : figures_of(hardware)) {
    const bool of_machine = entry.name == "memory" || entry.name == "host_memory";
    const std::string source = entry.figure ? std::string(entry.figure->source)
                               : of_machine ? fmt::format("a machine's memory is its own: set hardware.{}", entry.name)
                                            : "not in the data sheet, or not done by this hardware";
    text += fmt::format("  {:<25} {:<32} {}\n", entry.name, value_text(entry), source);
  }
  return text;
}

std::string table_text() {
  constexpr double tera = 1e12, giga = 1e9;
  BenchTable table{
      {"", "memory GiB", "TFLOP/s 16bit", "TFLOP/s 32bit", "reached", "node ranks", "link GB/s", "node GB/s"}};
  std::string cards;
  for (const Hardware& hardware : known_hardware()) {
    table.add(hardware.name, hardware.memory ? decimals(hardware.memory->value / 0x1p30, 0) : "-",
              decimals(hardware.flops_per_second_16bit.value / tera, 1),
              decimals(hardware.flops_per_second_float32.value / tera, 1), decimals(hardware.reached.value, 2),
              hardware.ranks_per_node.value, decimals(hardware.link_bytes_per_second.value / giga, 1),
              decimals(hardware.node_bytes_per_second.value / giga, 1));
    cards += "\n" + card_text(hardware);
  }
  return aligned_text(table) + cards;
}

struct HardwareRequest {
  std::string name;
  bool json = false;
};

void run_hardware(const HardwareRequest& request) {
  const std::string& name = request.name;
  if (!request.json) return fmt::print("{}", name.empty() ? table_text() : card_text(find_hardware(name)));
  const auto cards = name.empty() ? known_hardware() : std::span(&find_hardware(name), 1);
  fmt::print("{}\n", Json{{"hardware", json_list(cards, hardware_json)}}.dump());
}

}  // namespace

void add_hardware_command(CLI::App& program) {
  const auto [command, request] = add_command<HardwareRequest>(
      program, "hardware", "cards to plan for: their figures, and where these are from", run_hardware);
  command.add_option("NAME", request.name, "one of them; all where none is named");
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
