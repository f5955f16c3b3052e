#include "trainer/config/config_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace weft {
namespace {

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

// A line with control characters made visible, so that a broken file cannot play with the terminal. Tabs stay.
std::string printable(const std::string& line) {
  std::string result = line;
  for (char& symbol : result) {
    const auto code = static_cast<unsigned char>(symbol);
    if ((code < 0x20 && symbol != '\t') || code == 0x7f) symbol = '?';
  }
  return result;
}

// The line and a marker below it. The marker copies tabs, so that it stands right whatever their width.
std::string snippet(const Place& place) {
  const auto& lines = place.source->lines;
  if (place.line < 1 || place.line > static_cast<int>(lines.size())) return {};
  const std::string line = printable(lines[static_cast<std::size_t>(place.line) - 1]);
  std::string padding;
  int column = 1, characters = 0;
  for (const char symbol : line) {
    if (continues_character(symbol)) continue;
    ++characters;
    if (column++ < place.column) padding += symbol == '\t' ? '\t' : ' ';
  }
  const int width = std::max(1, std::min(place.width, characters - place.column + 1));
  const std::string number = fmt::format("{}", place.line);
  return fmt::format("\n  {} | {}\n  {:{}} | {}^{:~<{}}", number, line, "", number.size(), padding, "", width - 1);
}

auto position(const Fault& fault) {
  const Place& place = fault.place;
  return std::tuple(place.source ? place.source->order : 0, place.line, place.column);
}

}  // namespace

std::string format_origin(const Place& place) {
  if (place.source->is_command_line) return "command line";
  return fmt::format("{}:{}", place.source->name, place.line);
}

std::string format_fault(const Fault& fault) {
  const Place& place = fault.place;
  if (place.line < 1) return fmt::format("{}: error: {}", place.source->name, fault.text);
  if (place.source->is_command_line) {
    const std::string line = printable(place.source->lines[static_cast<std::size_t>(place.line) - 1]);
    return fmt::format("command line: {}: error: {}", line, fault.text);
  }
  return fmt::format("{}:{}:{}: error: {}{}", place.source->name, place.line, place.column, fault.text, snippet(place));
}

void sort_by_place(Faults& faults) {
  std::stable_sort(faults.begin(), faults.end(),
                   [](const Fault& left, const Fault& right) { return position(left) < position(right); });
}

std::string format_faults(const Faults& faults) {
  std::string text;
  for (const Fault& fault : faults) {
    if (!text.empty()) text += '\n';
    text += format_fault(fault);
  }
  return text;
}

}  // namespace weft
