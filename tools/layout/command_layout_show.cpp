#include <fmt/format.h>

#include <memory>

#include "tools/command/commands.h"
#include "tools/layout/layout_report.h"

namespace weft {
namespace {

struct ShowRequest {
  std::string file;
  std::vector<std::string> layouts;  // to compare with the layout of the file
  bool json = false;
};

ShownLayout shown(Config config) {
  const ResolvedRun run(std::move(config));
  return {summarize_layout(run.config(), run.layout()), layout_memory(run)};
}

void show(const CLI::App& command, const ShowRequest& request) {
  std::vector<ShownLayout> layouts = {shown(read_config_given_to(command, request.file).config)};
  for (const std::string& layout : request.layouts) {
    layouts.push_back(shown(read_config_given_to(command, request.file, {"--pipeline.layout=" + layout}).config));
  }
  if (request.json) {
    fmt::print("{}", layout_json(layouts));
    return;
  }
  for (std::size_t s = 0; s < layouts.size(); ++s) {
    fmt::print("{}{}", s == 0 ? "" : "\n", layout_report(layouts[s]));
  }
  if (layouts.size() > 1) fmt::print("\n{}", layout_comparison(layouts));
}

}  // namespace

void add_layout_show_command(CLI::App& layout) {
  CLI::App* command = layout.add_subcommand("show", "blocks, costs and bytes of each stage and rank");
  const auto request = std::make_shared<ShowRequest>();
  add_config_arguments(*command, request->file)->required();
  command
      ->add_option("--layout", request->layouts,
                   "another pipeline.layout to compare with, such as \"Ed|(e|)*3eL\"; any number of them")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", request->json, "print one JSON document");
  command->callback([command, request] { show(*command, *request); });
}

}  // namespace weft
