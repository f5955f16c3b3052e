#include <fmt/format.h>

#include <memory>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/picture/picture_formats.h"
#include "tools/picture/time_grid.h"
#include "tools/report/forecast_report.h"
#include "tools/report/given_costs.h"
#include "tools/report/layout_sweep.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

constexpr const char* simulate_command = "weft layout simulate";

struct SimulateRequest {
  std::string file, format = "text", output, costs, hardware;
  std::vector<std::string> layouts, variants;
  bool json = false, stages_only = false, compute_only = false;

  // Detail of pictures.
  Detail detail() const {
    return compute_only ? Detail::compute_only : stages_only ? Detail::stages_only : Detail::everything;
  }
};

// First the given configuration, then one variant per layout, then the variants. Each is a list of words added to the
// common ones.
std::vector<Overrides> variants_of(const SimulateRequest& request) {
  std::vector<Overrides> variants(1);
  for (const std::string& layout : request.layouts) variants.push_back({"--pipeline.layout=" + layout});
  for (const std::string& variant : request.variants) variants.push_back(words_of(variant));
  return variants;
}

void simulate_layouts(const CLI::App& command, const SimulateRequest& request) {
  const std::string format = request.json ? "json" : request.format;
  const bool draws = is_picture_format(format);
  if (!draws && format != "text" && format != "json") {
    fail_request("{}: error: --format takes text, json, svg, html and trace, not {}", simulate_command, format);
  }
  const CostSource source(simulate_command, request.costs, request.hardware);
  std::vector<SimulatedVariant> variants;
  std::vector<Picture> pictures;
  for (const Overrides& words : variants_of(request)) {
    // The hardware's memory decides the keys that the configuration leaves open.
    Overrides given = words;
    if (!request.hardware.empty()) given.push_back("--hardware.name=" + request.hardware);
    const ResolvedRun run(read_config_given_to(command, request.file, given).config);
    const Config& config = run.config();
    Program program = step_program(run, run.mesh().coordinates(0));
    const StepCosts costs = source.costs_of(config, run.mesh(), program);
    const ForecastStep simulated = simulate_run(run, std::move(program), costs.costs, costs.channels);
    Overrides all = overrides_given_to(command);
    all.insert(all.end(), words.begin(), words.end());
    PictureOptions options{.title = request.file + (all.empty() ? "" : " " + shell_text(all)),
                           .unit_time = costs.unit_time,
                           .detail = draws ? request.detail() : Detail::stages_only};
    if (draws) {
      pictures.push_back(picture_of(simulated.program, simulated.step, options));
      continue;
    }
    SimulatedVariant variant{options.title,       config,          forecast_of(run, simulated), "",
                             source.text(config), costs.unit_time, source.certainty(config)};
    if (format == "text") variant.grid = time_grid(simulated.program, simulated.step, options);
    variants.push_back(std::move(variant));
  }
  write_result(simulate_command,
               draws              ? render_pictures(simulate_command, pictures, format)
               : format == "json" ? forecast_json(variants)
                                  : forecast_report(variants),
               request.output);
}

}  // namespace

void add_layout_simulate_command(CLI::App& layout) {
  CLI::App* command =
      layout.add_subcommand("simulate", "time, bubble, waits, memory, gathers and critical path of a step");
  const auto request = std::make_shared<SimulateRequest>();
  add_config_arguments(*command, request->file)->required();
  command->add_option("--layout", request->layouts, "another pipeline.layout to compare with; any number of them")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command
      ->add_option("--variant", request->variants,
                   "another to compare with, with these keys changed: \"--pipeline.schedule=zbv --pipeline.chunks=2\"")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--costs", request->costs,
                      "a table FILE.toml, the directory of a run with traces, or words: \"forward=1 gather=0.5\"");
  command->add_option(
      "--hardware", request->hardware,
      "costs modelled for a card that weft hardware lists; without --costs either, as pipeline.costs says");
  command->add_option("--format", request->format, "text, json, svg, html or trace")->capture_default_str();
  command->add_flag("--json", request->json, "the same as --format json");
  command->add_flag("--stages-only", request->stages_only, "in pictures, merge segments and units per stage");
  command->add_flag("--compute-only", request->compute_only, "in pictures, F, B, I and W of stages and memory alone");
  command->add_option("--output", request->output, "write to this file instead of standard output");
  command->callback([command, request] { simulate_layouts(*command, *request); });
}

}  // namespace weft
