// `weft bench simulated`: simulated steps compared with measured steps, under every kind of schedule, and with experts
// where a schedule has overlapped pairs. The runs have four pipeline ranks that are threads, with experts twice. Each
// computation is padded to a known time, and each message too if requested, so results depend on schedules and not on
// the machine.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "parallel/pipeline/orders/orders.h"
#include "tools/command/commands.h"
#include "tools/report/bench_table.h"
#include "tools/report/report_parts.h"
#include "trainer/measure/padded_run.h"

namespace weft {
namespace {

constexpr int pipeline_ranks = 4;

// Small, so that its own work is negligible beside the padding. There is one block more than stages, so stages are
// unequal.
constexpr const char* model = R"([model]
vocab_size = 256
hidden_size = 16
intermediate_size = 32
num_attention_heads = 2
num_key_value_heads = 2
head_dim = 8
[model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 16
router_aux_loss_coef = 0.0
[training]
sequence_length = 8
global_batch_size = 8
microbatch_size = 1
[data]
train = ["README.md"]
)";

struct SimulatedRequest {
  double scale = 1.0, transfer = 0.0;
  int steps = 4;
  bool json = false, markdown = false;
};

// Costs of one microbatch, in units of `scale` milliseconds.
CostTable padding_of(double scale, double transfer) {
  CostTable table;
  const double unit = 1e-3 * scale;
  table.segments["embedding"] = {2.0 * unit, 2.5 * unit, 3.0 * unit};
  table.segments["attention"] = {4.0 * unit, 5.5 * unit, 3.5 * unit};
  table.segments["mlp"] = {6.0 * unit, 7.5 * unit, 5.0 * unit};
  table.segments["experts"] = {.forward = 13.0 * unit,
                               .backward_input = 15.0 * unit,
                               .backward_weight = 5.0 * unit,
                               .forward_out = 3.5 * unit,
                               .forward_back = 4.0 * unit,
                               .backward_out = 3.0 * unit,
                               .backward_back = 4.5 * unit};
  table.segments["head"] = {7.0 * unit, 8.0 * unit, 6.0 * unit};
  table.units["*"] = {};
  table.messages["*"] = transfer * unit;
  return table;
}

struct SimulatedRow {
  std::string schedule;
  int chunks = 1;
  bool experts = false;
  double simulated = 0.0, measured = 0.0;                // seconds of the step
  double in_line = 0.0;                                  // simulated, if computation waited for rows of experts
  double simulated_bubble = 0.0, measured_bubble = 0.0;  // of the rank with the largest difference
  int rank = 0;
  SimulationError error = {};
};

SimulatedRow run_schedule(const CLI::App& command, const SimulatedRequest& request, const std::string& schedule,
                          int chunks, bool experts) {
  Overrides overrides = {fmt::format("--model.layers={}*{}", experts ? "e" : "d", pipeline_ranks * chunks + 1),
                         fmt::format("--parallelism.pipeline={}", pipeline_ranks),
                         fmt::format("--run.steps={}", request.steps), "--pipeline.schedule=" + schedule,
                         fmt::format("--pipeline.chunks={}", chunks)};
  if (experts) {
    overrides.insert(overrides.end(),
                     {"--parallelism.data_shard=2", "--parallelism.expert=2", "--training.global_batch_size=16"});
  }
  const Overrides given = overrides_given_to(command);
  overrides.insert(overrides.end(), given.begin(), given.end());
  const Config config = read_config_text(model, "the model of weft bench simulated", overrides).config;
  const PaddedRun run = run_padded(without_files(config), padding_of(request.scale, request.transfer));
  const LaneChannels threads = LaneChannels::delayed();
  const Simulation simulation = simulate(run.program, run.costs, threads);
  const Simulation& step = least_disturbed(run);
  SimulatedRow row{.schedule = schedule,
                   .chunks = chunks,
                   .experts = experts,
                   .simulated = simulation.seconds,
                   .measured = step.seconds,
                   .error = {}};
  LaneChannels waiting = threads;
  waiting.channel[static_cast<std::size_t>(Lane::exchange)] = waiting.of(Lane::compute);
  row.in_line = simulate(run.program, run.costs, waiting).seconds;
  row.error = simulation_error(run.program, simulation, step);
  double most = -1.0;
  for (int rank = 0; rank < static_cast<int>(run.program.ranks.size()); ++rank) {
    const double simulated = rank_times(run.program, simulation, rank, threads).bubble;
    const double measured = bubble_of(run.program, step, rank);
    if (std::abs(measured - simulated) <= most) continue;
    most = std::abs(measured - simulated);
    row.simulated_bubble = simulated;
    row.measured_bubble = measured;
    row.rank = rank;
  }
  return row;
}

BenchTable table_of(const std::vector<SimulatedRow>& rows) {
  BenchTable table{{"schedule", "chunks", "step ms", "measured ms", "difference", "rank", "bubble of it ms",
                    "measured ms", "difference / step", "starts within", "rows in line ms"}};
  const auto milliseconds = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
  const auto percent = [](double part) { return fmt::format("{:.2f} %", 100.0 * part); };
  for (const SimulatedRow& row : rows) {
    table.add(row.schedule + (row.experts ? ", experts" : ""), row.chunks, milliseconds(row.simulated),
              milliseconds(row.measured), percent(row.error.step), row.rank, milliseconds(row.simulated_bubble),
              milliseconds(row.measured_bubble), percent(row.error.bubble), percent(row.error.start),
              row.experts ? milliseconds(row.in_line) : std::string());
  }
  return table;
}

Json json_of(const std::vector<SimulatedRow>& rows) {
  Json schedules = Json::array();
  for (const SimulatedRow& row : rows) {
    schedules.push_back({{"schedule", row.schedule},
                         {"chunks", row.chunks},
                         {"experts", row.experts},
                         {"simulated_seconds", row.simulated},
                         {"measured_seconds", row.measured},
                         {"step_error", row.error.step},
                         {"rank", row.rank},
                         {"simulated_bubble_seconds", row.simulated_bubble},
                         {"measured_bubble_seconds", row.measured_bubble},
                         {"bubble_error", row.error.bubble},
                         {"start_error", row.error.start},
                         {"rows_in_line_seconds", row.in_line}});
  }
  return {{"schedules", schedules}};
}

void bench_simulated(const CLI::App& command, const SimulatedRequest& request) {
  std::vector<SimulatedRow> rows;
  for (const Schedule& schedule : schedules()) {
    for (const bool experts : {false, true}) {
      if (experts && !schedule.overlaps) continue;
      rows.push_back(run_schedule(command, request, std::string(schedule.name), schedule.shown_chunks(), experts));
    }
  }
  if (request.json) {
    fmt::print("{}\n", json_of(rows).dump());
    return;
  }
  const std::string messages =
      request.transfer > 0.0 ? fmt::format(" and messages of {} ms", request.transfer * request.scale) : "";
  fmt::print("{} ranks, 8 microbatches, padded computation{}; simulated, then measured in the least of {} steps:\n\n{}",
             pipeline_ranks, messages, request.steps,
             request.markdown ? markdown_text(table_of(rows)) : aligned_text(table_of(rows)));
}

}  // namespace

void add_bench_simulated_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("simulated", "steps as simulated, and as measured with known costs");
  const auto request = std::make_shared<SimulatedRequest>();
  command->allow_extras();
  command->add_option("--scale", request->scale, "how many milliseconds the unit of the padding has")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--transfer", request->transfer, "how long a message is under way, in units of the padding")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--steps", request->steps, "steps of each run")->check(positive())->capture_default_str();
  CLI::Option* json = command->add_flag("--json", request->json, "print one JSON document");
  command->add_flag("--markdown", request->markdown, "print the table as the documents have it")->excludes(json);
  command->callback([command, request] { bench_simulated(*command, *request); });
}

}  // namespace weft
