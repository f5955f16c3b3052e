#include <fmt/format.h>

#include <memory>

#include "tools/commands.h"
#include "tools/plan_report.h"
#include "tools/plan_search.h"

namespace weft {
namespace {

struct PlanRequest {
  std::string file, hardware;
  bool json = false;
  PlanSearchRequest search;
};

void plan(const CLI::App& command, const PlanRequest& request) {
  Overrides named;
  if (!request.hardware.empty()) named.push_back("--hardware.name=" + request.hardware);
  const Config config = read_config_given_to(command, request.file, named).config;
  const Hardware hardware = hardware_of(config);
  const RunPlan planned = plan_run(config, hardware);
  fmt::print("{}", request.json ? plan_json(hardware, planned) : plan_text(config, hardware, planned));
}

}  // namespace

void add_plan_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "plan",
      "memory, communication and time of a run, before a rank is started: exit code 0 also where it does not fit");
  const auto request = std::make_shared<PlanRequest>();
  add_config_arguments(*command, request->file)->required();
  command->add_option("--hardware", request->hardware, "in place of hardware.name; weft hardware lists what is known");
  command->add_flag("--json", request->json, "print one JSON document");
  const CLI::Option* search = add_plan_search_options(*command, request->search);
  command->callback([command, request, search] {
    if (search->count() == 0) return plan(*command, *request);
    request->search.hardware = request->hardware;
    request->search.json = request->json;
    plan_search(*command, request->file, request->search);
  });
}

}  // namespace weft
