// `weft bench window`: how long full parameters are live under each wrapping, residency and lookahead, and how many
// gathers that costs. Read off compiled steps of a model of 7 billion parameters; nothing is allocated or run.
#include <fmt/format.h>

#include <algorithm>

#include "parallel/pipeline/accounts/accounts.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// The shape of Llama 2 7B. Embedding, final norm and head stay for the whole step in the root unit.
constexpr const char* model_7b = R"([model]
layers = "d*32"
vocab_size = 32000
hidden_size = 4096
intermediate_size = 11008
num_attention_heads = 32
num_key_value_heads = 32
head_dim = 128
qk_norm = false
[parallelism]
data_shard = 16
[shard]
residency = "step"
[shard.dense]
residency = "reshard_after_use"
[shard.embedding]
wrap = "root"
[shard.head]
wrap = "root"
[precision]
compute = "bfloat16"
[training]
sequence_length = 2048
global_batch_size = 16
[data]
train = ["nothing is read"]
)";

struct WindowCase {
  std::string wrap, residency;  // of dense parameters
  int lookahead = 1;
};

std::vector<WindowCase> wrap_cases() {
  return {{"root", "step", 1},
          {"block", "reshard_after_use", 0},
          {"block", "reshard_after_use", 1},
          {"block", "reshard_after_use", 2},
          {"block", "keep_after_forward", 1},
          {"block", "8", 1},
          {"blocks 2", "reshard_after_use", 1},
          {"blocks 4", "reshard_after_use", 1},
          {"half_block", "reshard_after_use", 1}};
}

std::string residency_name(const std::string& residency) {
  return residency == "8" ? "island 8" : residency;
}

Program program_of(const WindowCase& shape, Overrides overrides) {
  overrides.insert(
      overrides.end(),
      {fmt::format("--shard.dense.wrap={}", shape.wrap), fmt::format("--shard.dense.residency={}", shape.residency),
       fmt::format("--shard.lookahead={}", shape.lookahead), "--shard.reduction=last_microbatch"});
  const ResolvedRun run(read_config_text(model_7b, "the 7B model of weft bench window", overrides).config);
  return step_program(run, run.mesh().coordinates(0));
}

struct WindowRow {
  WindowCase shape;
  ParameterWindow window;
};

std::vector<WindowRow> wrap_rows() {
  std::vector<WindowRow> rows;
  for (const WindowCase& shape : wrap_cases()) rows.push_back({shape, parameter_window(program_of(shape, {}), 0)});
  return rows;
}

// The second of four stages; it has neither embedding nor head.
constexpr int pipeline = 4, inner_rank = 1;

struct PipelineRow {
  std::string residency;
  int microbatches = 0;
  ParameterWindow window;
  int most_gathers = 0;  // of one unit
};

// The largest number of gathers of one unit of the rank.
int most_gathers_of_a_unit(const Program& program, int rank) {
  std::vector<int> gathers(program.units.size());
  for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
    if (is_gather(action.op)) ++gathers[static_cast<std::size_t>(*action.unit)];
  }
  return *std::max_element(gathers.begin(), gathers.end());
}

std::vector<PipelineRow> pipeline_rows() {
  std::vector<PipelineRow> rows;
  for (const int microbatches : {8, 16}) {
    for (const char* residency : {"reshard_after_use", "keep_after_backward", "keep_after_forward", "step"}) {
      const Program program =
          program_of({"block", residency, 1}, {fmt::format("--parallelism.pipeline={}", pipeline),
                                               fmt::format("--training.global_batch_size={}", 16 * microbatches)});
      rows.push_back({residency, microbatches, parameter_window(program, inner_rank),
                      most_gathers_of_a_unit(program, inner_rank)});
    }
  }
  return rows;
}

std::string megabytes(std::int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
}

BenchTable wrap_table(const std::vector<WindowRow>& rows) {
  BenchTable table{{"wrap", "residency", "lookahead", "peak MB", "gathers", "in the island", "reductions",
                    "gathered MB", "held MB"}};
  for (const auto& [shape, window] : rows) {
    table.add(shape.wrap, residency_name(shape.residency), shape.lookahead, megabytes(window.peak_bytes),
              window.gathers, window.island_gathers, window.reductions, megabytes(window.gathered_bytes),
              megabytes(window.held_bytes));
  }
  return table;
}

BenchTable pipeline_table(const std::vector<PipelineRow>& rows) {
  BenchTable table{{"residency", "microbatches", "gathers of a block", "gathers", "reductions", "gathered MB",
                    "peak MB", "held MB"}};
  for (const auto& [residency, microbatches, window, most_gathers] : rows) {
    table.add(residency, microbatches, most_gathers, window.gathers, window.reductions,
              megabytes(window.gathered_bytes), megabytes(window.peak_bytes), megabytes(window.held_bytes));
  }
  return table;
}

Json window_json(const ParameterWindow& window) {
  return {{"peak_bytes", window.peak_bytes},         {"held_bytes", window.held_bytes},
          {"gathered_bytes", window.gathered_bytes}, {"gathers", window.gathers},
          {"island_gathers", window.island_gathers}, {"reductions", window.reductions}};
}

void print_json(const std::vector<WindowRow>& wraps, const std::vector<PipelineRow>& pipelines) {
  Json wrapping = Json::array(), stages = Json::array();
  for (const auto& [shape, window] : wraps) {
    Json row = {{"wrap", shape.wrap}, {"residency", residency_name(shape.residency)}, {"lookahead", shape.lookahead}};
    row.update(window_json(window));
    wrapping.push_back(std::move(row));
  }
  for (const auto& [residency, microbatches, window, most_gathers] : pipelines) {
    Json row = {{"residency", residency}, {"microbatches", microbatches}, {"gathers_of_a_unit", most_gathers}};
    row.update(window_json(window));
    stages.push_back(std::move(row));
  }
  fmt::print("{}\n", Json{{"wrapping", wrapping}, {"pipeline", stages}}.dump());
}

struct WindowRequest {
  bool json = false, markdown = false;
};

void bench_window(const WindowRequest& request) {
  const auto wraps = wrap_rows();
  const auto pipelines = pipeline_rows();
  if (request.json) return print_json(wraps, pipelines);
  const auto text = request.markdown ? markdown_text : aligned_text;
  fmt::print("One microbatch on 16 ranks, bfloat16:\n\n{}\n", text(wrap_table(wraps)));
  fmt::print("Stage {} of {} under 1f1b, with 8 of the 32 blocks, wrapped by block, lookahead 1:\n\n{}", inner_rank + 1,
             pipeline, text(pipeline_table(pipelines)));
}

}  // namespace

void add_bench_window_command(CLI::App& bench) {
  const auto [command, request] = add_command<WindowRequest>(
      bench, "window", "how much full parameters take, and for how many gathers", bench_window);
  CLI::Option* flag = command.add_flag("--json", request.json, "print one JSON document");
  command.add_flag("--markdown", request.markdown, "print the tables as the documents have them")->excludes(flag);
}

}  // namespace weft
