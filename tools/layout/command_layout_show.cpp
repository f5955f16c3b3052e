#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/layout_summary.h"
#include "trainer/planning/step_forecast.h"

namespace weft {
namespace {

struct ShownLayout {
  std::string costs;  // the source of loads
  LayoutSummary summary;
  LayoutMemory memory;
};

std::string mebibytes_text(std::int64_t bytes) {
  return fmt::format("{:.3f}", mebibytes(bytes));
}

std::string mebibytes_text(const RoutedBytes& bytes) {
  return mebibytes_text(bytes.even) + (bytes.worst ? fmt::format(" (at most {})", mebibytes_text(*bytes.worst)) : "");
}

// The sum if each stage of the rank keeps one microbatch.
RoutedBytes kept_by(const RankSummary& rank, const LayoutMemory& memory) {
  RoutedBytes sum;
  for (const int stage : rank.stages) {
    const RoutedBytes& kept = memory.kept[static_cast<std::size_t>(stage)];
    sum.even += kept.even;
    if (kept.worst) sum.worst = sum.worst.value_or(0) + *kept.worst;
  }
  return sum;
}

// One row per rank, one column per chunk; cells have the stage and its layers. Where the order of chunks turns, the
// next stage is in the same row.
std::string grid(const LayoutSummary& summary) {
  const auto chunks = static_cast<std::size_t>(summary.chunks);
  std::vector<std::vector<std::string>> rows(summary.ranks.size() + 1, std::vector<std::string>(chunks + 1));
  for (std::size_t c = 0; c < chunks; ++c) rows[0][c + 1] = fmt::format("chunk {}", c);
  for (std::size_t r = 0; r < summary.ranks.size(); ++r) rows[r + 1][0] = fmt::format("rank {}", r);
  for (const StageSummary& stage : summary.stages) {
    rows[static_cast<std::size_t>(stage.rank) + 1][static_cast<std::size_t>(stage.chunk) + 1] =
        fmt::format("{}: {}", stage.stage, stage.layers.empty() ? "-" : stage.layers);
  }
  std::vector<std::size_t> widths(chunks + 1);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) text += fmt::format("{:<{}} | ", row[c], widths[c]);
    text.back() = '\n';
  }
  return text;
}

// The columns that stages and ranks share, as cells.
void add_demands(const LayoutDemands& demands, const RoutedBytes& kept, std::vector<std::string>& cells) {
  cells.insert(cells.end(),
               {fmt::format("{}", demands.parameters), fmt::format("{}", demands.active_parameters),
                decimals(demands.forward_flops, 0), decimals(demands.load, 3), mebibytes_text(demands.parameter_bytes),
                mebibytes_text(demands.gradient_bytes), mebibytes_text(demands.optimizer_bytes), mebibytes_text(kept)});
}

std::vector<std::string> header(std::vector<std::string> first) {
  first.insert(first.end(), {"parameters", "active", "FLOPs a token", "of mean", "MiB parameters", "MiB gradients",
                             "MiB optimizer", "MiB kept a microbatch"});
  return first;
}

Json demands_json(const LayoutDemands& demands, const RoutedBytes& kept) {
  return {{"parameters", demands.parameters},
          {"active_parameters", demands.active_parameters},
          {"forward_flops", demands.forward_flops},
          {"load", demands.load},
          {"parameter_bytes", demands.parameter_bytes},
          {"gradient_bytes", demands.gradient_bytes},
          {"optimizer_bytes", demands.optimizer_bytes},
          {"activation_bytes", kept.even},
          {"worst_activation_bytes", or_null(kept.worst)}};
}

RoutedBytes largest(const std::vector<RoutedBytes>& all) {
  RoutedBytes most;
  for (const RoutedBytes& one : all) {
    most.even = std::max(most.even, one.even);
    if (one.worst) most.worst = std::max(most.worst.value_or(0), *one.worst);
  }
  return most;
}

Json layout_json(const ShownLayout& layout) {
  const LayoutSummary& summary = layout.summary;
  const auto stage_json = [&](const StageSummary& stage) {
    Json entry = {{"stage", stage.stage}, {"rank", stage.rank}, {"chunk", stage.chunk}, {"layers", stage.layers}};
    entry.update(demands_json(stage, layout.memory.kept[static_cast<std::size_t>(stage.stage)]));
    return entry;
  };
  const auto rank_json = [&](const RankSummary& rank) {
    Json entry = {{"rank", rank.rank}, {"stages", rank.stages}};
    entry.update(demands_json(rank, kept_by(rank, layout.memory)));
    const RoutedBytes& peak = layout.memory.peak[static_cast<std::size_t>(rank.rank)];
    entry["peak_bytes"] = peak.even;
    entry["worst_peak_bytes"] = or_null(peak.worst);
    return entry;
  };
  return {{"layout", summary.layout},
          {"schedule", summary.schedule},
          {"placement", summary.placement},
          {"chunks", summary.chunks},
          {"costs", layout.costs},
          {"stage_imbalance", summary.stage_imbalance()},
          {"rank_imbalance", summary.rank_imbalance()},
          {"stages", json_list(summary.stages, stage_json)},
          {"ranks", json_list(summary.ranks, rank_json)}};
}

// The grid of ranks and chunks, and a table of stages and one of ranks.
std::string layout_report(const ShownLayout& layout) {
  const auto& [costs, summary, memory] = layout;
  std::string text = fmt::format(
      "layout \"{}\": {} stages on {} ranks, {} placement (schedule {})\n"
      "largest over mean of {}: {:.3f} of stages, {:.3f} of ranks\n\n{}\n",
      summary.layout, summary.stages.size(), summary.ranks.size(), summary.placement, summary.schedule, costs,
      summary.stage_imbalance(), summary.rank_imbalance(), grid(summary));
  BenchTable stages{header({"stage", "rank", "chunk", "layers"})};
  for (const StageSummary& stage : summary.stages) {
    auto& cells = stages.add(stage.stage, stage.rank, stage.chunk, stage.layers.empty() ? "-" : stage.layers);
    add_demands(stage, memory.kept[static_cast<std::size_t>(stage.stage)], cells);
  }
  BenchTable ranks{header({"rank"})};
  ranks.header.emplace_back("MiB peak");
  for (const RankSummary& rank : summary.ranks) {
    auto& cells = ranks.add(rank.rank);
    add_demands(rank, kept_by(rank, memory), cells);
    cells.push_back(mebibytes_text(memory.peak[static_cast<std::size_t>(rank.rank)]));
  }
  return text + aligned_text(stages) + "\n" + aligned_text(ranks);
}

// One line per layout, with the differences between the layouts.
std::string layout_comparison(const std::vector<ShownLayout>& layouts) {
  BenchTable table{{"layout", "largest stage", "largest rank", "MiB parameters", "MiB gradients", "MiB optimizer",
                    "MiB kept a microbatch", "MiB peak"}};
  for (const ShownLayout& layout : layouts) {
    const LayoutSummary& summary = layout.summary;
    std::vector<RoutedBytes> kept;
    for (const RankSummary& rank : summary.ranks) kept.push_back(kept_by(rank, layout.memory));
    const auto most = [&](std::int64_t LayoutDemands::*bytes) {
      return mebibytes_text((*std::ranges::max_element(summary.ranks, {}, bytes)).*bytes);
    };
    table.add(summary.layout, decimals(summary.stage_imbalance(), 3), decimals(summary.rank_imbalance(), 3),
              most(&LayoutDemands::parameter_bytes), most(&LayoutDemands::gradient_bytes),
              most(&LayoutDemands::optimizer_bytes), mebibytes_text(largest(kept)),
              mebibytes_text(largest(layout.memory.peak)));
  }
  return "compared: the largest stage and rank over their mean, and bytes on the rank that has most\n" +
         aligned_text(table);
}

struct ShowRequest {
  std::string file;
  std::vector<std::string> layouts;  // to compare with the layout of the file
  bool json = false;
};

ShownLayout shown(Config config) {
  const ResolvedRun run(on_hardware(std::move(config)));
  const PipelineConfig& pipeline = run.config().pipeline;
  const std::string costs =
      pipeline.has_cost_table() ? fmt::format("seconds in {}", pipeline.costs) : "operations, repeated ones too";
  return {costs, summarize_layout(run.config(), run.layout()), layout_memory(run)};
}

void show(const CLI::App& command, const ShowRequest& request) {
  const Config config = read_config_given_to(command, request.file).config;
  warn_of_planned_card(config);
  std::vector<ShownLayout> layouts = {shown(config)};
  for (const std::string& layout : request.layouts) {
    layouts.push_back(shown(read_config_given_to(command, request.file, {"--pipeline.layout=" + layout}).config));
  }
  if (request.json) {
    return fmt::print("{}\n", Json{{"layouts", json_list(layouts, layout_json)}}.dump());
  }
  for (std::size_t s = 0; s < layouts.size(); ++s) {
    fmt::print("{}{}", s == 0 ? "" : "\n", layout_report(layouts[s]));
  }
  if (layouts.size() > 1) fmt::print("\n{}", layout_comparison(layouts));
}

}  // namespace

void add_layout_show_command(CLI::App& layout) {
  const auto [command, request] =
      add_command<ShowRequest>(layout, "show", "blocks, costs and bytes of each stage and rank", show);
  add_config_arguments(command, request.file)->required();
  add_repeated_option(command, "--layout", request.layouts,
                      "another pipeline.layout to compare with, such as \"Ed|(e|)*3eL\"; any number of them");
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
