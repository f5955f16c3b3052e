// `weft bench published`: published steps beside the steps that `weft plan` models for them.
#include <fmt/format.h>

#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/planning/published.h"

namespace weft {
namespace {

struct PublishedRequest {
  std::string file;
  bool json = false, markdown = false;
};

void print_json(const std::vector<PublishedStep>& steps, const ModelError& error) {
  const Json runs = json_list(steps, [](const PublishedStep& step) {
    return Json{{"name", step.run.name},
                {"gpus", step.gpus},
                {"hardware", step.run.hardware},
                {"published_seconds", step.published},
                {"modelled_seconds", step.modelled},
                {"ratio", step.ratio()},
                {"source", step.run.source}};
  });
  fmt::print("{}\n", Json{{"runs", runs},
                          {"least", error.least},
                          {"most", error.most},
                          {"pairs", error.pairs},
                          {"misordered", error.misordered},
                          {"apart", error.apart}}
                         .dump());
}

BenchTable table_of(const std::vector<PublishedStep>& steps) {
  BenchTable table{{"run", "GPUs", "published s a step", "modelled s", "modelled / published"}};
  for (const PublishedStep& step : steps) {
    table.add(step.run.name, fmt::format("{} {}", step.gpus, step.run.hardware), decimals(step.published, 2),
              decimals(step.modelled, 2), decimals(step.ratio(), 2));
  }
  return table;
}

void print_published(const PublishedRequest& request) {
  std::vector<PublishedStep> steps;
  for (const PublishedRun& run : read_published_runs(request.file)) steps.push_back(plan_published(run));
  const ModelError error = model_error_of(steps);
  if (request.json) return print_json(steps, error);
  const auto text = request.markdown ? markdown_text : aligned_text;
  fmt::print(
      "{}\nmodelled steps take {:.2f} to {:.2f} of the published time\nlayouts of one step: {} of {} pairs in the "
      "wrong order, quotients off by a factor of up to {:.2f}\n",
      text(table_of(steps)), error.least, error.most, error.misordered, error.pairs, error.apart);
}

}  // namespace

void add_bench_published_command(CLI::App& bench) {
  const auto [command, request] =
      add_command<PublishedRequest>(bench, "published", "steps as published, and as planned", print_published);
  command.add_option("FILE", request.file, "the runs, such as configs/published/runs.toml")->required();
  CLI::Option* flag = command.add_flag("--json", request.json, "print one JSON document");
  command.add_flag("--markdown", request.markdown, "print the table as the documents have it")->excludes(flag);
}

}  // namespace weft
