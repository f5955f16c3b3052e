#include "trainer/config/config_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <vector>

#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

// A line with control characters made visible, so that a broken file cannot control the terminal. Tabs stay.
std::string printable(const std::string& line) {
  std::string result = line;
  for (char& symbol : result) {
    const auto code = static_cast<unsigned char>(symbol);
    if ((code < 0x20 && symbol != '\t') || code == 0x7f) symbol = '?';
  }
  return result;
}

constexpr std::size_t readable = 160;  // characters of a line

// The line, or the part of a long line around the place, with a marker below it. The marker copies tabs, so that it is
// aligned for any tab width.
std::string snippet(const Place& place) {
  const auto& lines = place.source->lines;
  if (place.line < 1 || place.line > static_cast<int>(lines.size())) return {};
  const std::string line = printable(lines[static_cast<std::size_t>(place.line) - 1]);
  std::vector<std::size_t> starts;  // of characters
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (!continues_character(line[at])) starts.push_back(at);
  }
  const std::size_t column = static_cast<std::size_t>(std::max(1, place.column)) - 1;
  const bool whole = starts.size() <= readable;
  const std::size_t first = whole ? 0 : std::min(starts.size() - 1, column - std::min(column, readable / 2));
  const std::size_t last = whole ? starts.size() : std::min(starts.size(), first + readable);
  const std::size_t begin = starts.empty() ? 0 : starts[first];
  const std::size_t end = last < starts.size() ? starts[last] : line.size();
  const char *left = first > 0 ? "..." : "", *right = last < starts.size() ? "..." : "";
  std::string padding(std::string_view(left).size(), ' ');
  for (std::size_t c = first; c < std::min(column, last); ++c) padding += line[starts[c]] == '\t' ? '\t' : ' ';
  const int width = std::max(1, std::min(place.width, static_cast<int>(last) - static_cast<int>(column)));
  const std::string number = fmt::format("{}", place.line);
  return fmt::format("\n  {} | {}{}{}\n  {:{}} | {}^{:~<{}}", number, left, line.substr(begin, end - begin), right, "",
                     number.size(), padding, "", width - 1);
}

// The typed text, cut off if it is too long to read.
std::string typed(const std::string& line) {
  const std::string text = printable(line);
  if (text.size() <= 2 * readable) return text;
  std::size_t end = 2 * readable;
  while (end > 0 && continues_character(text[end])) --end;
  return text.substr(0, end) + "...";
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
    const std::string line = typed(place.source->lines[static_cast<std::size_t>(place.line) - 1]);
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
