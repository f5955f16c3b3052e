#include <fmt/format.h>

#include "parallel/runtime/error.h"
#include "tools/commands.h"

namespace weft {

CLI::Option* add_config_arguments(CLI::App& command, std::string& file) {
  command.allow_extras();
  command.footer("Any key of CONFIG can be given as --section.key=value, the value in TOML syntax.");
  return command.add_option("CONFIG", file, "TOML file that describes the run");
}

Overrides overrides_given_to(const CLI::App& command) {
  Overrides overrides;
  std::string faults;
  for (const std::string& argument : command.remaining()) {
    const std::size_t dot = argument.find('.'), equals = argument.find('=');
    if (dot != std::string::npos && dot < equals && (equals != std::string::npos || argument.starts_with("--"))) {
      overrides.push_back(argument);
      continue;
    }
    if (!faults.empty()) faults += '\n';
    faults +=
        fmt::format("weft {}: error: {} {}; see weft {} --help", command.get_name(),
                    argument.starts_with("-") ? "unknown option" : "unexpected argument", argument, command.get_name());
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
  return overrides;
}

}  // namespace weft
