#include "trainer/config/config_writer.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft {

std::string write_config(const Config& config, const std::vector<ConfigKey>& schema,
                         const std::function<std::string(const ConfigKey&)>& comment,
                         const std::function<bool(const ConfigKey&)>& follows) {
  constexpr std::size_t comment_column = 40;
  std::string text, section;
  for (const ConfigKey& key : schema) {
    if (key.section != section) {
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", key.section);
      section = key.section;
    }
    const std::string line = fmt::format("{}{} = {}", follows(key) ? "# " : "", key.name, key.write(config));
    const std::string behind = comment(key);
    text += behind.empty() ? line : fmt::format("{:<{}} # {}", line, comment_column, behind);
    text += '\n';
  }
  return text;
}

}  // namespace weft
