// Rules between schedule, stages and the blocks they hold.
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

std::string chunks_text(const Schedule& schedule) {
  const int least = schedule.least_chunks, most = schedule.most_chunks;
  if (most == 0) return fmt::format("{} chunks or more a rank", least);
  if (least == most) return least == 1 ? "1 chunk a rank" : fmt::format("{} chunks a rank", least);
  return fmt::format("{} to {} chunks a rank", least, most);
}

Messages chunk_faults(const Config& config) {
  const auto known = schedules();
  const auto row =
      std::find_if(known.begin(), known.end(), [&](const Schedule& s) { return s.name == config.pipeline.schedule; });
  const int chunks = config.pipeline.chunks;
  if (row == known.end() || row->takes_chunks(chunks)) return {};
  std::vector<std::string> others;
  for (const Schedule& schedule : known) {
    if (schedule.takes_chunks(chunks)) others.push_back(fmt::format("\"{}\"", schedule.name));
  }
  return {fmt::format("schedule \"{}\" runs {}, not {}; schedules that run {} are {}", row->name, chunks_text(*row),
                      chunks, chunks, fmt::join(others, ", "))};
}

// An order says "microbatches = 4 or 8" at the end of its advice. A configuration has no such key: it is the batch, of
// `unit` sequences a microbatch, that makes so many.
std::string in_batches(const std::string& complaint, std::int64_t unit) {
  constexpr std::string_view mark = "microbatches = ";
  const std::size_t at = complaint.rfind(mark);
  if (at == std::string::npos) return complaint;
  const std::string counts = complaint.substr(at + mark.size());
  std::vector<std::int64_t> batches;
  std::istringstream words(counts);
  for (std::string word; words >> word;) {
    if (const auto count = parsed_number<std::int64_t>(word)) batches.push_back(*count * unit);
  }
  return fmt::format("{}training.global_batch_size = {} for {} microbatches", complaint.substr(0, at),
                     fmt::join(batches, " or "), counts);
}

// Faults that the order itself finds: too few microbatches, or a number that it cannot group. For a file: counts that
// differ from the configured ones. `chunks` 1 is not compared with a file.
Messages order_faults(const Config& config) {
  const std::int64_t unit = config.training.microbatch_size * config.parallelism.data();
  if (!degree_errors(config.parallelism).empty() || config.training.global_batch_size % unit != 0) return {};
  if (!chunk_faults(config).empty()) return {};
  const auto complaint = refusal_of([&] {
    const OrderInput input = order_input(config);
    if (!config.pipeline.own_order) {
      find_schedule(config.pipeline.schedule).require_counts(input);
      return;
    }
    AskedCounts asked{.ranks = input.ranks, .microbatches = input.microbatches};
    if (input.chunks > 1) asked.chunks = input.chunks;
    const UserOrder& order = *config.pipeline.own_order;
    if (const auto other = refusal_of([&] { require_same_counts(order, asked); })) {
      fail_request("{}. It runs with parallelism.pipeline = {} and training.global_batch_size = {}{}", *other,
                   order.ranks.size(), order.microbatches * unit, asked.chunks ? ", without pipeline.chunks" : "");
    }
    if (input.microbatch_group > 0) fail_request("a schedule of its own takes no groups: leave microbatch_group out");
  });
  return complaint ? Messages{in_batches(*complaint, unit)} : Messages{};
}

}  // namespace

std::vector<ConfigRule> pipeline_rules() {
  return {
      {{"pipeline.chunks", "pipeline.schedule"}, chunk_faults},
      {{"pipeline.schedule", "pipeline.microbatch_group", "parallelism.pipeline", "training.global_batch_size",
        "training.microbatch_size", "parallelism.data_shard", "parallelism.data_replicate"},
       order_faults},
      {{"pipeline.layout", "pipeline.chunks", "parallelism.pipeline", "model.layers"}, layout_faults},
      {{"pipeline.first_stage_blocks", "pipeline.last_stage_blocks", "pipeline.layout", "pipeline.chunks",
        "parallelism.pipeline", "model.layers"},
       end_stage_faults},
  };
}

}  // namespace weft
