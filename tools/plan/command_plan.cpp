#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_reports.h"
#include "tools/plan/plan_search.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

struct PlanRequest {
  std::string file, hardware;
  std::string measured;
  int measured_steps = 2;
  bool json = false, compare = false, kernels = false, explain = false, coarse = false, advise = false;
  // For --coarse. Absent values come from the configuration, or are the defaults of CoarseRequest.
  std::optional<double> parameters, bytes_per_parameter, activations, buffers, layer_parameters;
  std::optional<int> ranks;
  PlanSearchRequest search;
};

Overrides named_hardware(const PlanRequest& request) {
  if (request.hardware.empty()) return {};
  return {"--hardware.name=" + request.hardware};
}

// If there is a CONFIG, the model's values come from it.
std::string coarse(const CLI::App& command, const PlanRequest& request) {
  CoarseRequest sums;
  Hardware hardware;
  if (!request.file.empty()) {
    const Config config = read_config_given_to(command, request.file, named_hardware(request)).config;
    hardware = hardware_of(config);
    const ModelConfig& model = config.model;
    sums.parameters = static_cast<double>(count_parameters(model).total);
    sums.ranks = config.parallelism.world();
    // A layer of the formulas has attention and an MLP. Blocks of one part are half of one.
    double layers = 0.0;
    for (const ModelBlock& block : model.blocks) layers += block.is_whole() ? 1.0 : 0.5;
    const double heads = static_cast<double>(model.num_attention_heads * model.count(Mixer::attention));
    sums.model = CoarseModel{.layers = layers,
                             .hidden = static_cast<double>(model.hidden_size),
                             .heads = heads / layers,
                             .vocabulary = static_cast<double>(model.vocab_size),
                             .sequence = static_cast<double>(config.training.sequence_length),
                             .batch = static_cast<double>(config.training.microbatch_size)};
    const Degrees& degrees = config.parallelism;
    sums.degrees = {static_cast<double>(degrees.pipeline), static_cast<double>(degrees.data()),
                    static_cast<double>(degrees.tensor)};
    const CoarseActivations bytes = coarse_activations(*sums.model);
    sums.activations = recomputes_blocks(config.training.recompute) ? bytes.inputs_and_live : bytes.all;
  }
  sums.parameters = request.parameters.value_or(sums.parameters);
  sums.ranks = request.ranks.value_or(sums.ranks);
  sums.bytes_per_parameter = request.bytes_per_parameter.value_or(sums.bytes_per_parameter);
  sums.activations = request.activations.value_or(sums.activations);
  sums.buffers = request.buffers.value_or(sums.buffers);
  sums.layer_parameters = request.layer_parameters;
  if (request.layer_parameters.value_or(0.0) > sums.parameters) {
    fail_request("weft plan --coarse: error: the largest layer has {:g} parameters, and the model {:g}",
                 *request.layer_parameters, sums.parameters);
  }
  if (request.file.empty()) hardware = find_hardware(request.hardware.empty() ? "a100-80gb" : request.hardware);
  if (!hardware.memory) {
    fail_request(
        "weft plan --coarse: error: {} has no memory of its own: name a card with --hardware (weft hardware lists "
        "them), or set hardware.memory",
        hardware.name);
  }
  const Card card = card_of(hardware.name, hardware.memory->value);
  return request.json ? plan_coarse_json(sums, card) : plan_coarse_text(sums, card);
}

std::string plan(const CLI::App& command, const Overrides& given, const PlanRequest& request) {
  if (request.coarse) return coarse(command, request);
  if (request.file.empty()) fail_request("weft plan: error: CONFIG is missing; only --coarse plans without one");
  const Config config = read_config_given_to(command, request.file, named_hardware(request)).config;
  print_warnings(config, kept_whole_warnings(config));
  warn_of_planned_card(config);
  const Hardware hardware = hardware_of(config);
  const ReadWith read = [&](const Overrides& words) {
    return read_typed_config(request.file, merged_words(given, words)).config;
  };
  if (request.explain) {
    const auto report = request.json ? plan_explain_json : plan_explain_text;
    return report(explain_run(read, hardware), hardware);
  }
  if (request.advise) {
    const auto report = request.json ? plan_advise_json : plan_advise_text;
    return report(advise(read, hardware), request.file, given);
  }
  if (request.compare) {
    if (request.json) return plan_compare_json(config, hardware, read);
    Overrides typed = given;
    typed.insert(typed.begin(), request.file);
    return fmt::format("{}\nweft plan {} --explain says what fills the memory; the words of a strategy may be added\n",
                       plan_compare_text(config, hardware, read), shell_text(typed));
  }
  if (request.kernels) {
    return request.json ? plan_kernels_json(config, hardware)
                        : plan_kernels_text(config, hardware, request.measured, request.measured_steps);
  }
  const RunPlan planned = plan_run(config, hardware);
  return request.json ? plan_json(config, hardware, planned) : plan_text(config, hardware, planned);
}

void add_coarse_options(CLI::App& command, PlanRequest& request) {
  CLI::Option* flag = command.add_flag("--coarse", request.coarse,
                                       "the formulas that people use, by hand; CONFIG may be left out: "
                                       "parameters 70e9, 8 ranks, 16 bytes, a100-80gb");
  const auto add = [&](const char* name, auto& value, const CLI::Validator& valid, const std::string& help) {
    command.add_option(name, value, "of --coarse: " + help)->check(valid)->needs(flag);
  };
  add("--parameters", request.parameters, positive(), "of the model, such as 70e9");
  add("--ranks", request.ranks, positive(), "GPUs that share state");
  add("--bytes-per-parameter", request.bytes_per_parameter, positive(), "bytes of state");
  add("--activations", request.activations, not_negative(), "bytes of a GPU, such as 20e9");
  add("--buffers", request.buffers, not_negative(), "bytes of a GPU, such as 5e9");
  add("--layer-parameters", request.layer_parameters, positive(), "of the largest layer, such as 3e9");
}

void run_plan(const CLI::App& command, PlanRequest& request) {
  const bool searches = command.count("--search") > 0;
  // `--search CONFIG`: a file is no axis.
  std::vector<std::string>& axes = request.search.axes;
  if (request.file.empty() && !axes.empty() && axes.front().find('=') == std::string::npos) {
    request.file = std::move(axes.front());
    axes.erase(axes.begin());
  }
  if (searches && request.file.empty()) fail_request("weft plan --search: error: CONFIG is missing");
  // --hardware is a key as well.
  const Overrides given = overrides_given_to(command, named_hardware(request), request.file);
  if (!searches) return fmt::print("{}", plan(command, given, request));
  request.search.json = request.json;
  plan_search(command, request.file, given, request.search);
}

}  // namespace

void add_plan_command(CLI::App& program) {
  const auto [command, request] = add_command<PlanRequest>(
      program, "plan",
      "memory, communication and time of a run, before a rank is started: exit code 0 also where it does not fit",
      run_plan);
  add_config_arguments(command, request.file);
  command.add_option("--hardware", request.hardware, "in place of hardware.name; weft hardware lists the names")
      ->check(not_empty());
  command.add_flag("--json", request.json, "print one JSON document");
  CLI::Option* why = command.add_flag("--explain", request.explain,
                                      "the reason why it does not fit, and changes that make it fit, each planned");
  CLI::Option* which = command.add_flag("--compare", request.compare,
                                        "every way to share the model's state beside the others, and the best");
  CLI::Option* advise = command.add_flag(
      "--advise", request.advise,
      "wrap, strategy, lookahead or backward_prefetch, then recompute, each with what it gains; prints a "
      "TOML file that includes CONFIG");
  CLI::Option* kernels = command.add_flag("--kernels", request.kernels,
                                          "every kernel that a step calls, its bytes and operations, and the time and "
                                          "utilisation that come of them on paper");
  command
      .add_option("--measured", request.measured,
                  "of --kernels: a table of kernels that ran (tools/gpu.sh OUT table), to say what they reached")
      ->needs(kernels)
      ->excludes(command.get_option("--json"));
  command.add_option("--measured-steps", request.measured_steps, "steps that the table counted")
      ->needs("--measured")
      ->check(positive())
      ->capture_default_str();
  add_coarse_options(command, request);
  const std::vector<CLI::Option*> ways = {
      why, which, kernels, advise, command.get_option("--coarse"), add_plan_search_options(command, request.search)};
  for (auto way = ways.begin(); way != ways.end(); ++way) {
    for (auto other = ways.begin(); other != way; ++other) (*way)->excludes(*other);
  }
}

}  // namespace weft
