// `weft bench defaults`: configurations planned with a default and with each value in its place. The peak is that of
// the fullest rank with tokens routed evenly, the step is simulated. Nothing is allocated or run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/rank/dry_run.h"

namespace weft {
namespace {

// A default of keys, and the values that could stand in its place.
struct Default {
  std::string_view text;
  Overrides with;  // words of all plans
  std::vector<std::string_view> keys, values;
  bool of_gpus = false;
};

std::vector<Default> compared_defaults() {
  return {
      {"A root unit with embedding and head, whose wrap is \"root\", stays from forward to backward",
       {"--shard.embedding.wrap=root", "--shard.head.wrap=root"},
       {"shard.root.residency", "shard.embedding.residency", "shard.head.residency"},
       {"reshard_after_use"}},
      {"precision.compute is \"bfloat16\" on a GPU", {}, {"precision.compute"}, {"float32"}, true},
      {"shard.accumulation is \"auto\", no memory of a card known",
       {},
       {"shard.accumulation"},
       {"unsharded", "sharded"}},
      {"shard.accumulation is \"auto\", hardware.name \"h100\"",
       {"--hardware.name=h100"},
       {"shard.accumulation"},
       {"unsharded", "sharded"},
       true},
      {"shard.wrap is \"block\" under no_shard", {"--shard.strategy=no_shard"}, {"shard.wrap"}, {"buckets"}},
      {"shard.backward_prefetch is \"pre\"", {}, {"shard.backward_prefetch"}, {"post", "none"}},
      {"shard.prefetch_within_stage is false", {}, {"shard.prefetch_within_stage"}, {"true"}},
      {"shard.lookahead is 1", {}, {"shard.lookahead"}, {"0"}},
  };
}

// On the hardware of the configuration with these words.
PlannedVariant planned_with(const ReadWith& read, const Overrides& words) {
  Hardware hardware;  // none if the words are refused, as the variant says
  refusal_of([&] { hardware = hardware_of(read(words)); });
  return PlannedVariants(read, hardware).with(words);
}

// In tenths of a percent, as it is printed.
double change(double before, double after) {
  return std::round(1000.0 * (after / before - 1.0)) / 10.0 + 0.0;  // no -0
}

// Rows of one file, and its name by the reasons of refusals. Values as good as the default, to a tenth of a percent,
// have no row. Values with equal figures share one.
struct ComparedFile {
  std::vector<std::vector<std::string>> rows;
  std::map<std::string, std::string> refused;
};

ComparedFile compared_file(const Default& each, const std::string& file) {
  ComparedFile result;
  const ReadWith read = [&](const Overrides& words) { return read_config(file, words).config; };
  if (each.of_gpus && read({}).run.device != DeviceKind::cuda) return result;
  const std::string name = std::filesystem::path(file).stem();
  const PlannedVariant now = planned_with(read, each.with);
  for (const std::string_view value : each.values) {
    Overrides words = each.with;
    for (const std::string_view key : each.keys) words.push_back(word(key, value));
    const PlannedVariant before = planned_with(read, words);
    if (const std::string& reason = now.refused.empty() ? before.refused : now.refused; !reason.empty()) {
      result.refused[reason] = name;
      continue;
    }
    const double bytes = change(static_cast<double>(before.peak.total()), static_cast<double>(now.peak.total()));
    const double time = change(before.time.seconds, now.time.seconds);
    if (bytes == 0.0 && time == 0.0) continue;
    std::vector<std::string> row = {
        name,
        std::string(value),
        format_bytes(before.peak.total()),
        format_bytes(now.peak.total()),
        fmt::format("{:+.1f} %", bytes),
        format_time(before.time.seconds, false),
        format_time(now.time.seconds, false),
        fmt::format("{:+.1f} %", time),
        bytes <= 0.0 && time <= 0.0   ? "gains"
        : bytes >= 0.0 && time >= 0.0 ? "loses"
                                      : "trades",
    };
    if (!result.rows.empty() && std::equal(row.begin() + 2, row.end(), result.rows.back().begin() + 2)) {
      result.rows.back()[1] += ", " + row[1];
    } else {
      result.rows.push_back(std::move(row));
    }
  }
  return result;
}

void bench_defaults(std::vector<std::string> files) {
  std::ranges::sort(files);
  const std::vector<Default> defaults = compared_defaults();
  std::vector<ComparedFile> results(defaults.size() * files.size());
  spread_work(results.size(), dry_threads(),
              [&](std::size_t i) { results[i] = compared_file(defaults[i / files.size()], files[i % files.size()]); });
  auto result = results.begin();
  for (const Default& each : defaults) {
    BenchTable table{
        {"configuration", "in its place", "peak", "default", "change", "step", "default", "change", "the default"}};
    std::map<std::string, std::vector<std::string>> refused;
    for (const auto end = result + std::ssize(files); result != end; ++result) {
      std::ranges::move(result->rows, std::back_inserter(table.rows));
      for (const auto& [reason, name] : result->refused) refused[reason].push_back(name);
    }
    fmt::print("{}{}\n\n{}", &each == &defaults.front() ? "" : "\n", each.text, aligned_text(table));
    for (const auto& [reason, names] : refused) fmt::print("{} cannot: {}\n", fmt::join(names, ", "), reason);
  }
}

}  // namespace

void add_bench_defaults_command(CLI::App& bench) {
  const auto [command, files] = add_command<std::vector<std::string>>(
      bench, "defaults", "memory and simulated time of defaults and of what they replace", bench_defaults);
  command.add_option("CONFIG", files, "TOML files, each planned with every default")->required();
}

}  // namespace weft
