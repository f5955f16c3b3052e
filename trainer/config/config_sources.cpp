#include "trainer/config/config_sources.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <sstream>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/config/config_messages.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* include_key = "include";

fs::path canonical_path(const fs::path& file) {
  std::error_code error;
  return fs::weakly_canonical(file, error);
}

std::optional<std::string> try_read(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error) || access(file.c_str(), R_OK) != 0) return std::nullopt;
  return read_whole_file(file.string());
}

// The entries of the overrides, in their order.
std::vector<ConfigEntry> override_entries(const std::vector<std::string>& overrides, Faults& faults) {
  auto source = std::make_shared<SourceText>(SourceText{"command line", {}, std::numeric_limits<int>::max(), true});
  for (const std::string& text : overrides) {
    source->lines.push_back((text.starts_with("--") ? "" : "--") + text);
  }
  std::vector<ConfigEntry> entries;
  for (std::size_t i = 0; i < source->lines.size(); ++i) {
    const Place place{source, static_cast<int>(i) + 1, 1, 1};
    const std::string text = source->lines[i].substr(2);
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      faults.push_back({place, "expected --section.key=value"});
      continue;
    }
    for (ConfigEntry& entry : parse_toml_value(text.substr(0, equals), text.substr(equals + 1), place)) {
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

// Reads files depth first; `chain_` holds the files whose includes are being followed.
class Gatherer {
 public:
  void add_file(const fs::path& file, const std::string& text) {
    const auto source = as_source(text, file.string(), files_++);
    if (!result.file) result.file = source;
    result.files.push_back(file);
    TomlDocument document = parse_toml(text, source);
    if (document.syntax_error) {
      result.faults.push_back(*document.syntax_error);
      result.complete = false;
      return;
    }
    chain_.push_back(file);
    // Included files come first: entries of this file replace theirs.
    for (const ConfigEntry& entry : document.entries) {
      if (entry.path == include_key) follow(entry.value);
    }
    chain_.pop_back();
    for (ConfigEntry& entry : document.entries) {
      if (entry.path != include_key) put(std::move(entry));
    }
  }

  void add_overrides(const std::vector<std::string>& overrides) {
    for (ConfigEntry& entry : override_entries(overrides, result.faults)) put(std::move(entry));
  }

  ConfigSources result;

 private:
  void put(ConfigEntry entry) { result.entries.insert_or_assign(entry.path, std::move(entry)); }

  void follow(const ConfigValue& value) {
    const std::size_t read_before = read_.size();
    fs::path last;
    for (const ConfigValue& element : elements_of(value)) {
      const auto* name = std::get_if<std::string>(&element.data);
      if (name == nullptr) {
        wrong_include(element, "expected a string, got " + describe(element));
        continue;
      }
      const fs::path file = chain_.back().parent_path() / *name;
      const fs::path canonical = canonical_path(file);
      if (canonical != last && read_.contains(canonical) && read_.size() > read_before) {
        wrong_include(element, fmt::format("{} has been read before others of the list, whose values win: put it "
                                           "first, or leave it out",
                                           file.string()));
      } else {
        follow(element, file);
      }
      last = canonical;
    }
  }

  void follow(const ConfigValue& value, const fs::path& file) {
    const auto same = [&](const fs::path& other) { return canonical_path(other) == canonical_path(file); };
    if (std::any_of(chain_.begin(), chain_.end(), same)) {
      std::string chain;
      for (const fs::path& link : chain_) chain += link.string() + " -> ";
      return wrong_include(value, "the files include each other in a circle: " + chain + file.string());
    }
    if (chain_.size() >= deepest_include) {
      return wrong_include(value, fmt::format("{} files include each other in a row, down to {}; {} is the most",
                                              chain_.size() + 1, file.string(), deepest_include));
    }
    // Each included file is read once: a file that many include would be read once for each way to it.
    if (!read_.insert(canonical_path(file)).second) return;
    if (const auto text = try_read(file)) return add_file(file, *text);
    wrong_include(value, fmt::format("cannot read {}", file.string()));
  }

  void wrong_include(const ConfigValue& value, const std::string& text) {
    result.faults.push_back({value.place, std::string(include_key) + ": " + text});
    result.complete = false;
  }

  static constexpr std::size_t deepest_include = 32;
  int files_ = 0;
  std::vector<fs::path> chain_;
  std::set<fs::path> read_;  // files read by an include
};

}  // namespace

void require_keys_once(const std::vector<std::string>& overrides) {
  Faults faults, malformed;  // `malformed` is reported by the reader of the overrides
  std::map<std::string, Place> first;
  for (const ConfigEntry& entry : override_entries(overrides, malformed)) {
    if (entry.is_table()) continue;  // its keys are entries of their own
    const Place& place = entry.value.place;
    const auto [found, fresh] = first.try_emplace(entry.path, place);
    if (fresh) continue;
    const auto line = [](const Place& at) { return at.source->lines[static_cast<std::size_t>(at.line) - 1]; };
    faults.push_back({place, fmt::format("{} is given twice, by {} and by {}: leave one out", entry.path,
                                         line(found->second), line(place))});
  }
  if (!faults.empty()) throw Error(ErrorKind::request, format_faults(faults));
}

std::shared_ptr<const SourceText> as_source(const std::string& text, const std::string& name, int order) {
  auto source = std::make_shared<SourceText>(SourceText{name, {}, order, false});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    source->lines.push_back(line);
  }
  return source;
}

std::string read_text(const fs::path& file) {
  if (auto text = try_read(file)) return *std::move(text);
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  fail_request("{}: error: {}", file.string(),
               !fs::exists(status)           ? "there is no such file"
               : fs::is_regular_file(status) ? "this file cannot be read"
                                             : "this is not a regular file");
}

ConfigSources gather_sources(const fs::path& file, const std::string& text, const std::vector<std::string>& overrides) {
  Gatherer gatherer;
  gatherer.add_file(file, text);
  gatherer.add_overrides(overrides);
  return std::move(gatherer.result);
}

}  // namespace weft
