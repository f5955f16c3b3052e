#include "floors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <regex>

namespace weft {
namespace {

struct Floor {
  std::string folder;
  std::vector<std::string> below;  // besides itself
};
struct Room {
  std::string_view name;
  std::vector<std::string_view> below;  // of the same floor
};

// Every room of a floor sees what is below the floor, and the rooms that it names.
void add_rooms(std::vector<Floor>& table, const std::string& floor, const std::vector<std::string>& below,
               const std::vector<Room>& rooms) {
  for (const Room& room : rooms) {
    Floor& row = table.emplace_back(fmt::format("{}/{}", floor, room.name), below);
    for (const std::string_view other : room.below) row.below.push_back(fmt::format("{}/{}", floor, other));
  }
}

// From the lowest to the highest; so are the rooms of a floor.
const std::vector<Floor>& floors() {
  static const std::vector<Floor> table = [] {
    std::vector<Floor> all;
    add_rooms(all, "parallel", {},
              {{"runtime", {}}, {"mesh", {"runtime"}}, {"comm", {"runtime"}}, {"shard", {"runtime", "mesh", "comm"}}});
    add_rooms(all, "parallel/pipeline", {"parallel/runtime", "parallel/mesh", "parallel/comm"},
              {{"program", {}},
               {"text", {"program"}},
               {"accounts", {"program"}},
               {"check", {"program", "text", "accounts"}},
               {"orders", {"program", "text"}},
               {"passes", {"program", "check", "orders"}},
               {"execute", {"program", "text"}},
               {"simulation", {"program", "text", "check", "accounts"}},
               {"timing", {"program", "orders", "simulation", "accounts"}}});
    const std::vector<std::string> beneath = {"parallel/runtime", "parallel/mesh", "parallel/comm"};
    add_rooms(all, "layers", beneath, {{"kernels", {}}});
    all.push_back({"layers", beneath});
    add_rooms(all, "trainer", {"parallel", "layers"},
              {{"config", {}},
               {"tokenizer", {}},
               {"jinja", {"tokenizer"}},
               {"data", {"config", "tokenizer", "jinja"}},
               {"plan", {"config"}},
               {"costs", {"config", "plan"}},
               {"layout", {"config", "plan", "costs"}},
               {"optimizer", {"config", "plan", "layout"}},
               {"rank", {"config", "plan", "layout", "optimizer"}},
               {"resolve", {"config", "plan", "costs", "layout", "optimizer", "rank"}},
               {"checkpoint", {"config", "tokenizer", "data", "rank"}},
               {"run", {"config", "tokenizer", "data", "costs", "plan", "rank", "resolve", "checkpoint"}},
               {"inference", {"config", "tokenizer", "data", "plan", "layout", "rank", "resolve", "checkpoint", "run"}},
               {"huggingface", {"config", "tokenizer", "plan", "checkpoint"}},
               {"measure", {"config", "plan", "costs", "rank", "resolve", "run"}},
               {"planning", {"config", "plan", "costs", "layout", "optimizer", "rank", "resolve", "checkpoint"}},
               {"diagnosis", {"config", "plan", "costs", "layout", "optimizer", "rank", "resolve", "measure"}}});
    add_rooms(all, "tools", {"parallel", "layers", "trainer"},
              {{"command", {}},
               {"picture", {}},
               {"report", {}},
               {"plan", {"command", "picture", "report"}},
               {"layout", {"command", "picture", "report"}},
               {"program", {"command", "picture", "report"}},
               {"walk", {"command", "report"}},
               {"bench", {"command", "report"}},
               {"checkpoint", {"command", "report"}},
               {"data", {"command", "report"}},
               {"run", {"command", "report", "plan"}},
               {"run_page", {"command", "picture", "report"}}});
    all.push_back({"tools", {"parallel", "layers", "trainer", "tools/command"}});
    return all;
  }();
  return table;
}

bool inside(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::string code_of(std::string_view text) {
  std::string code(text);
  std::size_t i = 0;
  const auto blank_until = [&](std::size_t end) {
    for (end = std::min(end, code.size()); i < end; ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
  };
  // Just behind `mark`, searched from `from`.
  const auto behind = [&](std::string_view mark, std::size_t from) {
    const std::size_t found = text.find(mark, from);
    return found == std::string_view::npos ? text.size() : found + mark.size();
  };
  while (i < code.size()) {
    const std::string_view rest = text.substr(i);
    const bool after_word = i > 0 && (std::isalnum(static_cast<unsigned char>(text[i - 1])) || text[i - 1] == '_');
    if (rest.starts_with("//")) {
      blank_until(text.find('\n', i));
    } else if (rest.starts_with("/*")) {
      blank_until(behind("*/", i + 2));
    } else if (rest.starts_with("R\"") && !after_word) {
      const std::size_t open = std::min(rest.find('('), rest.size());
      const std::string close = fmt::format("){}\"", rest.substr(2, open - 2));
      blank_until(behind(close, i + open));
    } else if (rest.front() == '"' || (rest.front() == '\'' && !after_word)) {  // 1'000 is no literal of its own
      std::size_t end = i + 1;
      while (end < text.size() && text[end] != rest.front()) end += text[end] == '\\' ? 2 : 1;
      ++i;  // the quotes stay: a literal still stands there
      blank_until(end);
      ++i;
    } else {
      ++i;
    }
  }
  return code;
}

std::vector<std::string> include_faults(std::string_view path, std::string_view text) {
  const auto own =
      std::find_if(floors().begin(), floors().end(), [path](const Floor& floor) { return inside(path, floor.folder); });
  if (own == floors().end()) return {fmt::format("{} is on no floor", path)};

  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]*))re");
  std::vector<std::string> faults;
  const std::vector<std::string> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(lines[i], match, include)) continue;
    const std::string header = match[2];
    const bool ours =
        std::any_of(floors().begin(), floors().end(), [&](const Floor& floor) { return inside(header, floor.folder); });
    const bool climbs = header.find("..") != std::string::npos;
    if (!ours && !climbs && match[1] == "<") continue;  // the system's
    const bool below = std::any_of(own->below.begin(), own->below.end(),
                                   [&](std::string_view folder) { return inside(header, folder); });
    if (!ours || climbs) {
      faults.push_back(fmt::format("{}:{}: \"{}\" is not a path of a floor from the root", path, i + 1, header));
    } else if (!below && !inside(header, own->folder)) {
      faults.push_back(fmt::format("{}:{}: {} may not include \"{}\"", path, i + 1, own->folder, header));
    }
  }
  return faults;
}

std::vector<std::string> state_faults(std::string_view path, std::string_view text) {
  // A variable ends its declarator with = { [ or ; where a function has its parenthesis.
  static const std::regex lasting(
      R"(^\s*(inline\s+)?(static|thread_local)\s+(?!.*\b(const|constexpr|consteval|constinit)\b)[^(]*?\w\s*(=|\{|\[|;))");
  static const std::regex at_namespace_scope(
      R"(^(?!(const|constexpr|consteval|static|thread_local|using|typedef|template|namespace|struct|class|enum|union|extern|friend|concept|inline const|inline constexpr|inline namespace|return|goto|requires)\b)(inline\s+)?[A-Za-z_][\w:<>,\s*&]*[\s*&>][\w:]+\s*(=(?![=(>])|\{|\[|;))");
  std::vector<std::string> faults;
  const std::vector<std::string> lines = lines_of(code_of(text));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (std::regex_search(lines[i], lasting) || std::regex_search(lines[i], at_namespace_scope)) {
      faults.push_back(fmt::format("{}:{}: state for the whole process: {}", path, i + 1, lines[i]));
    }
  }
  return faults;
}

std::vector<std::string> swallowed_errors(std::string_view path, std::string_view text) {
  static const std::regex nameless(
      R"(catch\s*\(\s*(const\s+)?(weft::)?(Error|std::exception|std::runtime_error)\s*&?\s*\))");
  std::vector<std::string> faults;
  const std::vector<std::string> lines = lines_of(code_of(text));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!std::regex_search(lines[i], nameless)) continue;
    faults.push_back(fmt::format("{}:{}: an error is caught and not looked at: {}", path, i + 1, lines[i]));
  }
  return faults;
}

std::vector<std::string> defined_types(std::string_view text) {
  static const std::regex open(R"(^(?:inline\s+)?namespace\b\s*([\w:]*)\s*\{\s*$)"), close(R"(^\}\s+// namespace\b.*)");
  static const std::regex type(
      R"(^(?:struct|class|union|enum(?:\s+class|\s+struct)?)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*(?:\{.*|:(?!:).*)?$)");
  std::vector<std::string> scopes, types;
  const std::vector<std::string> lines = lines_of(text), code = lines_of(code_of(text));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = code[i];
    std::smatch match;
    if (std::regex_match(line, match, open)) {
      scopes.push_back(match[1]);
    } else if (std::regex_match(lines[i], close) && !scopes.empty()) {
      scopes.pop_back();
    } else if (std::regex_match(line, match, type) && std::ranges::find(scopes, "") == scopes.end()) {
      types.push_back(fmt::format("{}::{}", fmt::join(scopes, "::"), match[1].str()));
    }
  }
  return types;
}

std::vector<std::string> long_functions(std::string_view path, std::string_view text) {
  static const std::regex scopes_of_names(R"(^(template\s*<.*>\s*)?(struct|class|union|enum|namespace|extern)\b)");
  static const std::regex label(R"(^(public|private|protected)$)");
  enum class Scope : std::uint8_t { names, function, other };  // where functions are defined; one; inside of one
  std::vector<Scope> scopes;
  std::string statement;  // so far, where functions are defined
  std::size_t line = 1, begin = 1;
  int parentheses = 0;
  std::vector<std::string> faults;
  const std::string code = code_of(text);
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    const bool outside = scopes.empty() || scopes.back() == Scope::names;
    if (c == '\n') ++line;
    if (outside && c == '#' && parentheses == 0) i = std::min(code.find('\n', i), code.size()) - 1;
    if (c == '}' && !scopes.empty()) {
      if (scopes.back() == Scope::function && line - begin + 1 > most_function_lines) {
        faults.push_back(fmt::format("{}:{}: a function of {} lines: {}", path, begin, line - begin + 1,
                                     statement.substr(0, statement.find('('))));
      }
      const bool ends = scopes.back() != Scope::other;
      scopes.pop_back();
      if (ends) statement.clear();
    } else if (c == '{') {
      const bool type = outside && std::regex_search(statement, scopes_of_names);
      const bool function = outside && !type && parentheses == 0 && statement.find('(') != std::string::npos;
      scopes.push_back(type ? Scope::names : function ? Scope::function : Scope::other);
      if (type) statement.clear();
    } else if (outside && c != '#') {
      parentheses += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (c == ';' || (c == ':' && std::regex_match(statement, label))) {
        statement.clear();
      } else if (!statement.empty() || !std::isspace(static_cast<unsigned char>(c))) {
        if (statement.empty()) begin = line;
        statement += c == '\n' ? ' ' : c;
      }
    }
  }
  return faults;
}

std::vector<std::string> place_faults(std::string_view path) {
  constexpr std::array code = {".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu", ".py", ".sh"};
  constexpr std::array folders = {"parallel", "layers", "trainer", "tools", "tests", "configs"};
  const std::string extension = std::filesystem::path(path).extension();
  if (std::find(code.begin(), code.end(), extension) == code.end()) return {};
  if (std::any_of(folders.begin(), folders.end(), [path](const char* folder) { return inside(path, folder); }))
    return {};
  return {fmt::format("{} is code outside the folders that hold code", path)};
}

}  // namespace weft
