// `weft units --owners`: the rows that each rank stores, updates and saves.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "tools/program/unit_rows.h"
#include "tools/report/bench_table.h"
#include "tools/report/report_parts.h"
#include "trainer/rank/verify_step.h"

namespace weft {
namespace {

// In the order of the model, then by replica, then by row.
OwnerTable sorted(OwnerTable table, const std::vector<GlobalParameter>& parameters) {
  std::map<std::string_view, std::size_t> place;
  for (const GlobalParameter& parameter : parameters) place.emplace(parameter.name, place.size());
  std::ranges::stable_sort(table, {}, [&](const OwnedRange& range) {
    const auto found = place.find(range.parameter);
    const std::size_t index = found == place.end() ? place.size() : found->second;
    return std::tuple(index, range.replica, range.row_begin, range.column_begin);
  });
  return table;
}

void print_json(const OwnerTable& table, const std::vector<OwnershipFault>& faults) {
  Json owners = Json::array(), wrong = Json::array();
  for (const OwnedRange& range : table) {
    owners.push_back({{"parameter", range.parameter},
                      {"replica", range.replica},
                      {"rank", range.rank},
                      {"row_begin", range.row_begin},
                      {"rows", range.rows},
                      {"column_begin", range.column_begin},
                      {"columns", range.columns},
                      {"group", range.group},
                      {"optimizer", range.optimizer.empty() ? Json(nullptr) : Json(range.optimizer)}});
  }
  for (const OwnershipFault& fault : faults) wrong.push_back(fault.message);
  fmt::print("{}\n", Json{{"owners", owners}, {"faults", wrong}}.dump());
}

void print_text(const OwnerTable& table) {
  BenchTable rows{{"parameter", "replica", "rank", "rows", "columns", "group", "optimizer"}};
  const auto range_text = [](std::int64_t begin, std::int64_t count) {
    return fmt::format("{} to {}", begin, begin + count - 1);
  };
  for (const OwnedRange& range : table) {
    rows.add(range.parameter, range.replica, range.rank, range_text(range.row_begin, range.rows),
             range_text(range.column_begin, range.columns), range.group,
             range.optimizer.empty() ? "none: frozen" : range.optimizer);
  }
  fmt::print("{}", aligned_text(rows));
}

}  // namespace

void print_owners(const Config& config, bool json) {
  const Mesh mesh(config.parallelism);
  const auto parameters = global_parameters(config, mesh);
  const OwnerTable table = sorted(owner_table(config, mesh), parameters);
  std::int64_t elements = 0;
  for (const GlobalParameter& parameter : parameters) elements += parameter.rows * parameter.columns;
  json ? print_json(table, find_ownership_faults(table, parameters)) : print_text(table);
  std::fflush(stdout);  // before any output on standard error
  require_sound_ownership(table, parameters);
  if (json) return;
  fmt::print("every element of {} parameters, {} elements, is owned exactly once in each of their replicas\n",
             parameters.size(), elements);
}

}  // namespace weft
