// `weft bench memory`: the memory of every shard strategy on one configuration, for the rank with most. It is predicted
// by the program and measured by the ledgers of its ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config.h"
#include "trainer/planning/remedies.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

// The value of every key of [shard] in which strategies differ.
struct Strategy {
  std::string_view name, strategy, residency, reduction, accumulation = "unsharded";
  bool hybrid = false;  // on 2 x 2 ranks

  Overrides overrides() const {
    Overrides words = {word("shard.strategy", strategy), word("shard.residency", residency),
                       word("shard.reduction", reduction), word("shard.accumulation", accumulation)};
    if (hybrid) words.insert(words.end(), {"--parallelism.data_replicate=2", "--parallelism.data_shard=2"});
    return words;
  }
};

constexpr Strategy all_strategies[] = {
    {"full_shard, reshard_after_use", "full_shard", "reshard_after_use", "last_microbatch"},
    {"full_shard, reshard_after_use, each_microbatch", "full_shard", "reshard_after_use", "each_microbatch"},
    {"full_shard, reshard_after_use, accumulation sharded", "full_shard", "reshard_after_use", "last_microbatch",
     "sharded"},
    {"full_shard, keep_after_forward", "full_shard", "keep_after_forward", "last_microbatch"},
    {"full_shard, keep_after_backward", "full_shard", "keep_after_backward", "last_microbatch"},
    {"full_shard, island of 2", "full_shard", "2", "last_microbatch"},
    {"full_shard, step", "full_shard", "step", "last_microbatch"},
    {"shard_grad_op", "shard_grad_op", "stage", "each_microbatch"},
    {"optimizer", "optimizer", "stage", "last_microbatch"},
    {"no_shard", "no_shard", "stage", "last_microbatch"},
    {"no_shard, each_microbatch", "no_shard", "stage", "each_microbatch"},
    {"hybrid 2 x 2, full_shard, reshard_after_use", "full_shard", "reshard_after_use", "last_microbatch", "unsharded",
     true},
    {"hybrid 2 x 2, shard_grad_op", "shard_grad_op", "stage", "each_microbatch", "unsharded", true},
};

struct MemoryRow {
  std::string strategy;
  std::size_t rank = 0;  // the rank with most
  BucketBytes predicted, measured;
  std::vector<std::string> differing;  // static buckets with a difference, over all ranks
  bool forced_balance = false;         // experts were dealt in turn

  double difference_percent() const {
    const auto total = static_cast<double>(predicted.total());
    return 100.0 * (static_cast<double>(measured.total()) - total) / total;
  }
};

MemoryRow run_strategy(const Strategy& strategy, const std::string& file, Overrides overrides, std::int64_t steps) {
  std::ranges::move(strategy.overrides(), std::back_inserter(overrides));
  overrides.push_back(word("run.steps", steps));
  const Config config = read_config(file, overrides).config;
  if (config.run.launch == LaunchKind::processes) fail_request("weft bench memory runs ranks that are threads");
  const TrainResult result = run_steps(without_files(config));
  MemoryRow row;
  row.strategy = strategy.name;
  row.forced_balance = forces_balance(config.model);
  for (std::size_t rank = 0; rank < result.measured.size(); ++rank) {
    if (result.measured[rank].total() > result.measured[row.rank].total()) row.rank = rank;
    for (const Bucket bucket : differing_static_buckets(result.predicted[rank], result.measured[rank])) {
      row.differing.push_back(fmt::format("{}: {} of rank {} is predicted as {} bytes and measured as {}",
                                          strategy.name, name_of(bucket), rank, result.predicted[rank][bucket],
                                          result.measured[rank][bucket]));
    }
  }
  row.predicted = result.predicted[row.rank];
  row.measured = result.measured[row.rank];
  return row;
}

// A static bucket is one number if prediction and measurement agree.
BenchTable table_of(const std::vector<MemoryRow>& rows) {
  BenchTable table{{"strategy"}};
  for (const Bucket bucket : all_values<Bucket>) table.header.push_back(bucket_words(bucket));
  table.header.insert(table.header.end(), {"total", "difference"});
  const auto cell = [](std::int64_t predicted, std::int64_t measured) {
    const std::string text = decimals(mebibytes(measured), 2);
    return predicted == measured ? text : decimals(mebibytes(predicted), 2) + " / " + text;
  };
  for (const MemoryRow& row : rows) {
    auto& cells = table.add(row.strategy);
    for (const Bucket bucket : all_values<Bucket>) cells.push_back(cell(row.predicted[bucket], row.measured[bucket]));
    cells.push_back(cell(row.predicted.total(), row.measured.total()));
    cells.push_back(fmt::format("{:+.2f} %", row.difference_percent()));
  }
  return table;
}

void print_json(const std::vector<MemoryRow>& rows) {
  const Json strategies = json_list(rows, [](const MemoryRow& row) {
    Json buckets = buckets_json(row.predicted, row.measured);
    for (const Bucket bucket : all_values<Bucket>) {
      buckets[std::string(name_of(bucket))]["static"] = is_static(bucket);
    }
    return Json{{"strategy", row.strategy},
                {"rank", row.rank},
                {"buckets", std::move(buckets)},
                {"predicted_bytes", row.predicted.total()},
                {"measured_bytes", row.measured.total()},
                {"difference_percent", row.difference_percent()}};
  });
  fmt::print("{}\n", Json{{"forced_balance", rows.front().forced_balance}, {"strategies", strategies}}.dump());
}

struct MemoryRequest {
  std::string file = "configs/strategies.toml";
  std::int64_t steps = 2;
  bool json = false, markdown = false;
};

void bench_memory(const CLI::App& command, const MemoryRequest& request) {
  std::vector<MemoryRow> rows;
  for (const Strategy& strategy : all_strategies) {
    rows.push_back(run_strategy(strategy, request.file, overrides_given_to(command), request.steps));
  }
  if (request.json) {
    print_json(rows);
  } else {
    if (rows.front().forced_balance) fmt::print("{}\n", forced_balance_text);
    fmt::print("Peak of the fullest rank in MiB, predicted / measured where they differ:\n\n{}",
               request.markdown ? markdown_text(table_of(rows)) : aligned_text(table_of(rows)));
  }
  std::fflush(stdout);
  std::vector<std::string> differing;
  for (const MemoryRow& row : rows) differing.insert(differing.end(), row.differing.begin(), row.differing.end());
  if (!differing.empty()) fail("static buckets differ from the prediction:\n  {}", fmt::join(differing, "\n  "));
}

}  // namespace

void add_bench_memory_command(CLI::App& bench) {
  const auto [command, request] = add_command<MemoryRequest>(
      bench, "memory", "memory of every shard strategy, predicted and measured", bench_memory);
  add_config_arguments(command, request.file)->capture_default_str();
  command.add_option("--steps", request.steps, "steps of each run")->check(positive())->capture_default_str();
  CLI::Option* json = command.add_flag("--json", request.json, "print one JSON document");
  command.add_flag("--markdown", request.markdown, "print the table as the documents have it")->excludes(json);
}

}  // namespace weft
