#include "trainer/layout/stage_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"
#include "trainer/config/layout_text.h"

namespace weft {
namespace {

using Messages = std::vector<std::string>;

std::string model_text(const Config& config) {
  return fmt::format("model.layers \"{}\" has {}", config.layers_text, config.model.layers());
}

// A block of one part has no letter of its own in a layout.
char symbol_of(const ModelBlock& block) {
  return !block.is_whole() ? 't' : block == BlockKind::dense ? 'd' : 'e';
}

// "pipeline 2 x chunks 3 = 6"
std::string stages_text(const Config& config) {
  if (config.pipeline.own_order) return fmt::format("the schedule's file has {}", config.stages());
  return fmt::format("pipeline {} x chunks {} = {}", config.parallelism.pipeline, config.pipeline.chunks,
                     config.stages());
}

// Other ways to have so many stages: "pipeline 6 x chunks 1, or pipeline 3 x chunks 2".
std::string products_of(const Config& config, std::size_t stages) {
  if (config.pipeline.own_order) return {};
  const auto known = schedules();
  const auto schedule = std::ranges::find(known, std::string_view(config.pipeline.schedule), &Schedule::name);
  std::vector<std::string> products;
  for (std::size_t chunks = 1; chunks <= stages && products.size() < 4; ++chunks) {
    const bool ordered = schedule == known.end() || schedule->takes_chunks(static_cast<int>(chunks));
    if (stages % chunks == 0 && ordered)
      products.push_back(fmt::format("pipeline {} x chunks {}", stages / chunks, chunks));
  }
  return fmt::format("{}", fmt::join(products, ", or "));
}

std::string stage_count_fault(const Config& config, std::size_t written, const char* before, const char* what) {
  const std::string products = products_of(config, written);
  return fmt::format("the layout has {}{} stages, but {}: write {} {}{}{}", before, written, stages_text(config),
                     config.stages(), what, products.empty() ? "" : ", or ", products);
}

LayoutText written_layout(const Config& config) {
  if (const auto* text = std::get_if<std::string>(&config.pipeline.layout)) return read_layout(*text);
  return read_layout(std::get<std::vector<std::string>>(config.pipeline.layout));
}

void compare_stages(const Config& config, const LayoutText& layout, Messages& messages) {
  const std::size_t asked = static_cast<std::size_t>(config.stages()), written = layout.stages.size();
  if (written == asked) return;
  const LayoutSymbol place = written > asked ? layout.stages[asked].opened_by : layout.end();
  messages.push_back(layout.fault_at(place, stage_count_fault(config, written, "", "stages")).message);
}

void compare_blocks(const Config& config, const LayoutText& layout, Messages& messages) {
  std::vector<LayoutSymbol> blocks, predictors;
  LayoutSymbol head = layout.end();
  for (const WrittenStage& stage : layout.stages) {
    for (const LayoutSymbol& symbol : stage.symbols) {
      if (symbol.symbol == 'L') head = symbol;
      if (symbol.symbol == 'm') predictors.push_back(symbol);
      if (std::string_view("det").find(symbol.symbol) != std::string_view::npos) blocks.push_back(symbol);
    }
  }
  const auto depth = static_cast<std::size_t>(config.model.mtp_depth);
  if (predictors.size() != depth) {
    const std::string what = fmt::format(
        "the layout has {} predictors (m), but model.layers \"{}\" has {}: they are part of the model, so write as "
        "many "
        "there",
        predictors.size(), config.layers_text, depth);
    messages.push_back(layout.fault_at(predictors.size() > depth ? predictors[depth] : head, what).message);
  }
  const auto expected = static_cast<std::size_t>(config.model.layers());
  if (blocks.size() != expected) {
    const bool more = blocks.size() > expected;
    const LayoutSymbol place = more ? blocks[expected] : head;
    const std::string change = more ? fmt::format("from block {} on, which is written here, there is none", expected)
                                    : fmt::format("{} more must stand before this", expected - blocks.size());
    const std::string what =
        fmt::format("the layout has {} blocks, but {}: {}", blocks.size(), model_text(config), change);
    messages.push_back(layout.fault_at(place, what).message);
    return;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ModelBlock& block = config.model.blocks[i];
    const char symbol = symbol_of(block);
    if (blocks[i].symbol == 't' || blocks[i].symbol == symbol) continue;
    const std::string what =
        fmt::format("block {} of the layout is {}, but in model.layers \"{}\" it is {}: write {}t", i, blocks[i].symbol,
                    config.layers_text, block_symbol({block.kind, 0, block.mixer}),
                    symbol == 't' ? "" : fmt::format("{} or ", symbol));
    messages.push_back(layout.fault_at(blocks[i], what).message);
    return;
  }
}

Messages count_faults(const Config& config, const std::vector<std::int64_t>& counts) {
  Messages messages;
  const std::int64_t blocks = config.model.layers();
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (counts.size() != static_cast<std::size_t>(config.stages())) {
    messages.push_back(stage_count_fault(config, counts.size(), "the counts of ", "counts"));
  }
  if (sum != blocks) {
    messages.push_back(
        fmt::format("the layout deals {} = {} blocks, but {}", fmt::join(counts, " + "), sum, model_text(config)));
  }
  return messages;
}

// Of blocks without predictors, which stand on the last stage.
std::vector<StageBlocks> from_counts(const std::vector<std::int64_t>& counts, const ModelConfig& model) {
  std::vector<StageBlocks> layout;
  int first = 0;
  for (const std::int64_t count : counts) {
    layout.push_back({first, static_cast<int>(count), layout.empty(), layout.size() + 1 == counts.size()});
    first += static_cast<int>(count);
  }
  layout.back().count += model.mtp_depth;
  return layout;
}

std::vector<StageBlocks> from_text(const LayoutText& text) {
  std::vector<StageBlocks> layout;
  int first = 0;
  for (const WrittenStage& stage : text.stages) {
    const auto has = [&](char symbol) {
      return std::ranges::find(stage.symbols, symbol, &LayoutSymbol::symbol) != stage.symbols.end();
    };
    StageBlocks blocks{.first = first, .embedding = has('E'), .head = has('L')};
    blocks.count = static_cast<int>(stage.symbols.size()) - blocks.embedding - blocks.head;
    first += blocks.count;
    layout.push_back(blocks);
  }
  return layout;
}

// The block counts of the first and the last stage as written, and the rest for the other stages.
struct EndStages {
  std::optional<std::int64_t> first, last;
  std::int64_t blocks = 0, stages = 0;  // of the stages without a written count

  explicit EndStages(const Config& config)
      : first(config.pipeline.first_stage_blocks),
        last(config.pipeline.last_stage_blocks),
        blocks(config.model.layers() - first.value_or(0) - last.value_or(0)),
        stages(std::int64_t{config.stages()} - first.has_value() - last.has_value()) {}

  bool given() const { return first || last; }
  bool works() const { return blocks >= 0 && (stages > 0 ? blocks % stages == 0 : stages == 0 && blocks == 0); }
};

// The counts nearest to `count` with which the remaining blocks, now `blocks`, divide evenly.
std::string nearest_counts(std::int64_t count, std::int64_t blocks, std::int64_t stages) {
  const std::int64_t all = count + blocks;  // shared by this stage and those without a written count
  if (all < 0) return {};
  if (stages == 0) return fmt::format("{}", all);
  const std::int64_t above = count + ((blocks % stages) + stages) % stages, below = above - stages;
  std::vector<std::int64_t> nearest;
  if (below >= 0) nearest.push_back(std::min(below, all));
  if (above <= all) nearest.push_back(above);
  return fmt::format("{}", fmt::join(nearest, " or "));
}

std::vector<StageBlocks> from_end_stages(const Config& config) {
  const EndStages ends(config);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(config.stages()),
                                   ends.stages > 0 ? ends.blocks / ends.stages : 0);
  if (ends.first) counts.front() = *ends.first;
  if (ends.last) counts.back() = *ends.last;
  return from_counts(counts, config.model);
}

}  // namespace

bool has_automatic_layout(const Config& config) {
  const auto* text = std::get_if<std::string>(&config.pipeline.layout);
  return text && *text == "auto";
}

std::vector<StageBlocks> stage_layout(const Config& config, const KnownOfLayout& known) {
  Messages faults = layout_faults(config);
  for (std::string& fault : end_stage_faults(config)) faults.push_back(std::move(fault));
  if (!faults.empty()) fail_request("{}", fmt::join(faults, "\n"));
  if (const auto* counts = std::get_if<std::vector<std::int64_t>>(&config.pipeline.layout))
    return from_counts(*counts, config.model);
  if (!has_automatic_layout(config)) return from_text(written_layout(config));
  if (EndStages(config).given()) return from_end_stages(config);
  if (config.stages() == 1) return from_counts({config.model.layers()}, config.model);
  // solved_timing.cpp refuses a budget that no layout keeps: there the bytes of this layout are known exactly.
  const std::optional<std::int64_t> budget = config.memory_budget;
  const LayoutItems items = known.items ? *known.items : layout_items(config);
  const ScheduleResidents residents = known.residents ? *known.residents : schedule_residents(config);
  const auto counts = automatic_layout(
      items, residents, budget ? std::optional(static_cast<double>(*budget)) : std::nullopt, known.splits);
  return from_counts({counts.begin(), counts.end()}, config.model);
}

Config with_layout(Config config, const std::vector<StageBlocks>& layout) {
  if (!has_automatic_layout(config)) return config;
  config.pipeline.layout = to_string(layout, config.model);
  config.pipeline.first_stage_blocks.reset();
  config.pipeline.last_stage_blocks.reset();
  return config;
}

std::vector<std::string> layout_faults(const Config& config) {
  if (has_automatic_layout(config)) return {};
  if (const auto* counts = std::get_if<std::vector<std::int64_t>>(&config.pipeline.layout)) {
    return count_faults(config, *counts);
  }
  const LayoutText layout = written_layout(config);
  Messages messages;
  for (const LayoutFault& fault : layout.faults) messages.push_back(fault.message);
  if (!messages.empty()) return messages;
  compare_stages(config, layout, messages);
  compare_blocks(config, layout, messages);
  return messages;
}

std::vector<std::string> end_stage_faults(const Config& config) {
  const EndStages ends(config);
  if (!ends.given()) return {};
  if (!has_automatic_layout(config)) {
    return {
        "first_stage_blocks and last_stage_blocks say what layout \"auto\" deals, but a layout is written: leave "
        "one of the two out"};
  }
  if (ends.stages < 0) {
    return {fmt::format("first_stage_blocks {} and last_stage_blocks {} speak of one stage, {}: write one of them",
                        *ends.first, *ends.last, stages_text(config))};
  }
  if (ends.works()) return {};
  std::string taken, nearest;
  const auto add = [&](const char* name, const std::optional<std::int64_t>& count) {
    if (!count) return;
    taken += fmt::format(" - {} {}", name, *count);
    const std::string counts = nearest_counts(*count, ends.blocks, ends.stages);
    if (counts.empty()) return;
    nearest += fmt::format("{}{} {}", nearest.empty() ? "; nearest that work: " : ", or ", name, counts);
  };
  add("first_stage_blocks", ends.first);
  add("last_stage_blocks", ends.last);
  const std::string left = fmt::format("{} blocks{} = {}", config.model.layers(), taken, ends.blocks);
  if (ends.blocks < 0) return {fmt::format("{}: the model has no more{}", left, nearest)};
  if (ends.stages == 0)
    return {fmt::format("{}, and no stage is left for them ({}){}", left, stages_text(config), nearest)};
  return {fmt::format("{}, which do not divide among the other {} stages ({}): remainder {}{}", left, ends.stages,
                      stages_text(config), ends.blocks % ends.stages, nearest)};
}

std::vector<std::string> layout_warnings(const Config& config) {
  // An automatic layout leaves a stage empty only if there are more stages than pieces (embedding, blocks, head).
  const int pieces = config.model.layers() + 2;
  if (has_automatic_layout(config) && !EndStages(config).given() && config.stages() <= pieces) return {};
  std::vector<int> empty;
  const auto layout = stage_layout(config);
  for (std::size_t s = 0; s < layout.size(); ++s) {
    if (layout[s].empty()) empty.push_back(static_cast<int>(s));
  }
  if (empty.empty()) return {};
  constexpr std::size_t shown = 8;
  const auto first = std::span(empty).first(std::min(empty.size(), shown));
  return {fmt::format("of {} stages ({}) {} hold nothing and only pass activations on: {}{}", config.stages(),
                      stages_text(config), empty.size(), fmt::join(first, ", "), empty.size() > shown ? ", ..." : "")};
}

std::string stage_symbols(const StageBlocks& stage, const ModelConfig& model) {
  std::string symbols = stage.embedding ? "E" : "";
  for (int block = stage.first; block < stage.first + stage.count; ++block) {
    symbols += block < model.layers() ? symbol_of(model.blocks[block]) : 'm';
  }
  return stage.head ? symbols + "L" : symbols;
}

std::string to_string(const std::vector<StageBlocks>& layout, const ModelConfig& model) {
  std::vector<std::string> stages;
  for (const StageBlocks& stage : layout) stages.push_back(stage_symbols(stage, model));
  return format_layout(stages);
}

std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at) {
  return plan_stages(config, mesh, at, stage_layout(config));
}

void for_each_stage(const Config& config, const Mesh& mesh, int pipeline_rank,
                    const std::function<void(int rank, const PlannedStage& stage, bool first)>& use) {
  const int ranks = mesh.degrees().stage_ranks();
  std::map<std::tuple<int, int, int>, std::vector<PlannedStage>> plans;
  for (int rank = pipeline_rank * ranks; rank < (pipeline_rank + 1) * ranks; ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    const auto [plan, first] = plans.try_emplace({at.tp, at.ep, at.etp});
    if (first) plan->second = plan_stages(config, mesh, at);
    for (const PlannedStage& stage : plan->second) use(rank, stage, first);
  }
}

}  // namespace weft
