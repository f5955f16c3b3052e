#include "tools/plan/plan_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/pipeline/program/action.h"
#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config_sources.h"
#include "trainer/costs/hardware.h"
#include "trainer/diagnosis/trace_sum.h"
#include "trainer/planning/kernel_plan.h"

namespace weft {
namespace {

// The kind of a kernel that ran, by its name.
enum class RanAs : std::uint8_t { product, attention, elementwise, communication };
constexpr auto enum_names(RanAs) {
  return name_list("product", "attention", "element-wise", "communication");
}

constexpr RanAs as_ran(KernelKind kind) {
  return kind == KernelKind::product     ? RanAs::product
         : kind == KernelKind::attention ? RanAs::attention
                                         : RanAs::elementwise;
}

// From a range without stage and block: "F attention", "F experts products", "unshard mlp", "optimizer". Work inside
// experts counts as part of the experts.
std::pair<std::string, std::string> part_and_phase(std::string_view range) {
  constexpr std::array computations = {Op::forward, Op::backward, Op::backward_input, Op::backward_weight,
                                       Op::recompute};
  const std::size_t space = std::min(range.find(' '), range.size());
  const std::string_view word = range.substr(0, space);
  const auto phase = std::ranges::find(computations, word, [](Op op) { return name_of(op); });
  if (phase != computations.end() && space < range.size()) {
    const std::string_view part = range.substr(space + 1);
    return {std::string(part.substr(0, part.find(' '))), std::string(computation_name(*phase))};
  }
  const std::string_view kind = labels_of(range).phase;
  if (kind == "gather" || kind == "reshard") return {"units", "gather"};
  if (kind == "reduce") return {"units", "reduce"};
  return {"step", kind == "update" ? "update" : "step"};
}

double number_in(std::string_view text, const std::string& file, int line) {
  if (const auto number = parsed_number<double>(text)) return *number;
  fail_request("{}:{}: \"{}\" is no number of a table of kernels", file, line, text);
}

// "nvjet_tst_128x256_...", "cudnn_generated_fort_native_sdpa_...", "weft::cuda::rms_norm_...", "ncclDevKernel_...".
RanAs kind_of_kernel(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto has = [&](std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(words, [&](std::string_view word) { return lower.find(word) != std::string::npos; });
  };
  if (has({"nccl"})) return RanAs::communication;
  if (has({"flash", "fmha", "sdpa", "cudnn", "attention"})) return RanAs::attention;
  if (has({"gemm", "nvjet", "cutlass", "xmma", "splitk", "cublas"})) return RanAs::product;
  return RanAs::elementwise;
}

// Of a step.
struct Reached {
  double calls = 0.0, bytes = 0.0, flops = 0.0, paper = 0.0;  // planned
  double launches = 0.0, seconds = 0.0;                       // measured
};
using ReachedRows = std::map<std::tuple<std::string, std::string, RanAs>, Reached>;  // by part, phase and kind

// What the table of kernels (tools/profile/kernel_table.cpp) of this many steps measured.
ReachedRows read_kernel_table(const std::string& file, int steps) {
  std::istringstream lines(read_text(file));
  ReachedRows rows;
  bool inside = false, found = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("ms\t")) {
      inside = line.ends_with("\tkernel");  // a list by range alone precedes it
      found |= inside;
      continue;
    }
    if (!inside || line.empty()) continue;
    const std::vector<std::string_view> fields = parts_between(line, '\t');
    if (fields.size() != 9) fail_request("{}:{}: {} columns of 9", file, number, fields.size());
    const auto [part, phase] = part_and_phase(fields[7]);
    Reached& sum = rows[{part, phase, kind_of_kernel(fields[8])}];
    sum.seconds += 1e-3 * number_in(fields[0], file, number) / steps;
    sum.launches += number_in(fields[2], file, number) / steps;
  }
  if (!found) fail_request("{} is no table of kernels (tools/gpu.sh OUT table)", file);
  return rows;
}

// `rows`: of the table that was measured.
std::string reached_text(const KernelPlan& plan, ReachedRows rows) {
  for (const KernelRow& row : plan.rows) {
    Reached& sum = rows[{std::string(row.part), std::string(row.phase), as_ran(row.kind)}];
    sum.calls += static_cast<double>(row.calls);
    sum.bytes += row.bytes;
    sum.flops += row.flops;
    sum.paper += row.seconds.at[shown_share];
  }
  std::vector<std::pair<ReachedRows::key_type, Reached>> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(sorted, std::ranges::greater{}, [](const auto& row) { return row.second.seconds; });
  BenchTable table{{"part and phase", "kind", "calls", "launches", "paper ms", "ms", "TFLOP/s", "GB/s"}};
  Reached all;
  for (const auto& [key, row] : sorted) {
    const auto& [part, phase, kind] = key;
    const auto rate = [&](double amount, double unit) {
      return row.seconds > 0.0 && amount > 0.0 ? fmt::format("{:.0f}", amount / row.seconds / unit) : std::string("-");
    };
    table.add(part == phase ? part : fmt::format("{} {}", part, phase), name_of(kind), decimals(row.calls, 0),
              decimals(row.launches, 0), decimals(1e3 * row.paper, 2), decimals(1e3 * row.seconds, 2),
              rate(row.flops, 1e12), kind == RanAs::elementwise ? rate(row.bytes, 1e9) : std::string("-"));
    all.paper += row.paper;
    all.seconds += row.seconds;
  }
  table.add("all", "", "", "", decimals(1e3 * all.paper, 2), decimals(1e3 * all.seconds, 2), "-", "-");
  return aligned_text(table);
}

constexpr std::array kinds = {KernelKind::product, KernelKind::attention, KernelKind::elementwise};

void add_row(BenchTable& table, const std::string& name, const KernelRow& row, double all_seconds) {
  const double seconds = row.seconds.at[shown_share];
  table.add(name, row.calls, decimals(row.bytes / 1e9, 2), decimals(row.flops / 1e12, 2), decimals(1e3 * seconds, 2),
            decimals(100.0 * seconds / all_seconds, 1));
}

// Sums of rows with equal `key`, in the order of first rows.
template <typename Key>
std::vector<KernelRow> grouped(const std::vector<KernelRow>& rows, const Key& key) {
  std::vector<KernelRow> sums;
  std::map<decltype(key(rows.front())), std::size_t> place;
  for (const KernelRow& row : rows) {
    const auto [found, fresh] = place.try_emplace(key(row), sums.size());
    if (fresh) sums.push_back({row.part, row.phase, row.kernel, row.kind});
    KernelRow& sum = sums[found->second];
    sum.calls += row.calls;
    sum.bytes += row.bytes;
    sum.flops += row.flops;
    sum.seconds += row.seconds;
  }
  return sums;
}

std::string of_products(double share) {
  return fmt::format("{:.0f} %", 100.0 * share);
}

// Seconds per kind and the utilisation, for each assumed share of the peak for products.
BenchTable share_table(const KernelPlan& plan) {
  BenchTable table{{"products reach"}};
  for (const KernelKind kind : kinds) table.header.push_back(fmt::format("{} s", name_of(kind)));
  table.header.insert(table.header.end(), {"sum s", "MFU %"});
  for (std::size_t i = 0; i < product_shares.size(); ++i) {
    auto& row = table.add(of_products(product_shares[i]));
    for (const KernelKind kind : kinds) row.push_back(decimals(plan.sum(kind).seconds.at[i], 4));
    row.push_back(decimals(plan.seconds().at[i], 4));
    row.push_back(decimals(100.0 * plan.utilisation(i), 1));
  }
  return table;
}

Json row_json(const KernelRow& row) {
  Json json;
  if (!row.part.empty()) json["part"] = row.part;
  if (!row.phase.empty()) json["phase"] = row.phase;
  json["kernel"] = row.kernel;
  json["kind"] = name_of(row.kind);
  json["calls"] = row.calls;
  json["bytes"] = row.bytes;
  json["flops"] = row.flops;
  json["seconds"] = row.seconds.at;
  return json;
}

}  // namespace

std::string plan_kernels_text(const Config& config, const Hardware& hardware, const std::string& measured, int steps) {
  ReachedRows ran;
  if (!measured.empty()) ran = read_kernel_table(measured, steps);
  const KernelPlan plan = plan_kernels(ResolvedRun(on_hardware(config)), hardware);
  const double all = plan.seconds().at[shown_share];
  std::string text = fmt::format(
      "kernels of a step of rank {} of {} on {}; ms and % with products that reach {} of {:.0f} TFLOP/s\n\n", plan.rank,
      plan.world, hardware.name, of_products(product_shares[shown_share]), plan.peak / 1e12);
  BenchTable parts{{"part and phase", "calls", "GB", "TFLOP", "ms", "%"}};
  const auto part = [](const KernelRow& row) { return std::pair(row.part, row.phase); };
  for (const KernelRow& row : grouped(plan.rows, part)) {
    const std::string name = row.part == row.phase ? std::string(row.part) : fmt::format("{} {}", row.part, row.phase);
    add_row(parts, name, row, all);
  }
  text += aligned_text(parts) + "\n";
  BenchTable kernels{{"kernel", "calls", "GB", "TFLOP", "ms", "%"}};
  std::vector<KernelRow> by_kernel = grouped(plan.rows, [](const KernelRow& row) { return row.kernel; });
  std::ranges::stable_sort(by_kernel, std::ranges::greater{},
                           [](const KernelRow& row) { return row.seconds.at[shown_share]; });
  for (const KernelRow& row : by_kernel) add_row(kernels, row.kernel, row, all);
  text += aligned_text(kernels) + "\n" + aligned_text(share_table(plan));
  const double saved = plan.capture_saves().at[shown_share];
  text += fmt::format(
      "\ncaptured regions (CUDA graphs) of all segments except experts would save at most {:.2f} ms, {:.1f} %: the "
      "launches of kernels that last less than {:.1f} us\n",
      1e3 * saved, 100.0 * saved / all, 1e6 * least_kernel_seconds);
  text += "\non paper: no kernel has run. Waits for other ranks, and hits of a cache, are not in it.\n";
  if (!ran.empty()) text += "\nof a step that ran\n" + reached_text(plan, std::move(ran));
  return text;
}

std::string plan_kernels_json(const Config& config, const Hardware& hardware) {
  const KernelPlan plan = plan_kernels(ResolvedRun(on_hardware(config)), hardware);
  Json json = {{"hardware", hardware.name}, {"rank", plan.rank}, {"world", plan.world}};
  json["product_shares"] = product_shares;
  json["rows"] = json_list(plan.rows, row_json);
  json["kinds"] = json_list(kinds, [&](KernelKind kind) { return row_json(plan.sum(kind)); });
  json["seconds"] = plan.seconds().at;
  json["capture_saves"] = plan.capture_saves().at;
  json["step_flops"] = plan.step_flops;
  json["utilisation"] = Json::array();
  for (std::size_t i = 0; i < product_shares.size(); ++i) json["utilisation"].push_back(plan.utilisation(i));
  return json.dump(2) + "\n";
}

}  // namespace weft
