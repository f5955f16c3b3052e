#include <fmt/format.h>

#include <memory>

#include "tools/commands.h"
#include "tools/layout_report.h"

namespace weft {
namespace {

struct ShowRequest {
  std::string file;
  std::vector<std::string> layouts;  // to compare with that of the file
  bool json = false;
};

void show(const CLI::App& command, const ShowRequest& request) {
  std::vector<LayoutSummary> summaries = {summarize_layout(read_config_given_to(command, request.file).config)};
  for (const std::string& layout : request.layouts) {
    const ResolvedConfig other = read_config_given_to(command, request.file, {"--pipeline.layout=" + layout});
    summaries.push_back(summarize_layout(other.config));
  }
  if (request.json) {
    fmt::print("{}", layout_json(summaries));
    return;
  }
  for (std::size_t s = 0; s < summaries.size(); ++s) {
    fmt::print("{}{}", s == 0 ? "" : "\n", layout_report(summaries[s]));
  }
  if (summaries.size() > 1) fmt::print("\n{}", layout_comparison(summaries));
}

}  // namespace

void add_layout_show_command(CLI::App& layout) {
  CLI::App* command = layout.add_subcommand("show", "what each stage and rank holds, costs and keeps");
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
