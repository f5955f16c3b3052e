#include "tools/program/schedule_only_program.h"

#include <map>
#include <optional>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/passes/passes.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

// `key=value` words.
using Words = std::map<std::string, std::string>;

std::optional<int> number_of(const Words& words, const std::string& key) {
  const auto found = words.find(key);
  if (found == words.end()) return std::nullopt;
  const auto number = parsed_number<int>(found->second);
  if (number.value_or(0) >= 1) return number;
  fail_request("weft program: error: {}={} is not a number of at least 1", key, found->second);
}
int needed_number(const Words& words, const std::string& key) {
  if (const auto number = number_of(words, key)) return *number;
  fail_request("weft program: error: --world-only needs {}=N", key);
}

// A user's own order, which sets all counts.
ScheduleOnlyProgram program_of_file(const std::string& path, const Words& words) {
  if (words.contains("microbatch_group")) {
    fail_request("weft program: error: {} has its own order and takes no groups; leave microbatch_group out", path);
  }
  try {
    const UserOrder order = order_from_csv(InputFile(path).text());
    require_same_counts(order,
                        {number_of(words, "pipeline"), number_of(words, "chunks"), number_of(words, "microbatches")});
    return {fmt::format("{}, {} ranks, {} stages, {} microbatches", path, order.ranks.size(), order.stage_ranks.size(),
                        order.microbatches),
            compile(schedule_only_tables(order), order)};
  } catch (const Error& error) {
    fail_request("weft program: error: {}:\n{}", path, error.what());
  }
}

ScheduleOnlyProgram program_of_schedule(const Schedule& row, const Words& words) {
  const OrderInput input{needed_number(words, "pipeline"), number_of(words, "chunks").value_or(1),
                         needed_number(words, "microbatches"), number_of(words, "microbatch_group").value_or(0)};
  require_counts(row, input);
  return {fmt::format("{}, {} ranks{}, {} microbatches{}", row.name, input.ranks,
                      input.chunks > 1 ? fmt::format(" x {} chunks", input.chunks) : "", input.microbatches,
                      input.microbatch_group > 0 ? fmt::format(" in groups of {}", input.microbatch_group) : ""),
          compile(schedule_only_tables(input.ranks, input.ranks * input.chunks, row.placement), row, input)};
}

}  // namespace

ScheduleOnlyProgram schedule_only_program(std::span<const std::string> given) {
  Words words;
  for (const std::string& word : given) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == std::string::npos || (key != "pipeline" && key != "chunks" && key != "microbatches" &&
                                        key != "schedule" && key != "microbatch_group")) {
      fail_request(
          "weft program: error: --world-only takes pipeline=N chunks=N microbatches=N microbatch_group=N "
          "schedule=NAME or schedule=FILE.csv, not {}",
          word);
    }
    words[key] = word.substr(equals + 1);
  }
  const auto given_schedule = words.find("schedule");
  const std::string schedule = given_schedule == words.end() ? "1f1b" : given_schedule->second;
  ScheduleOnlyProgram bare = schedule.ends_with(".csv") ? program_of_file(schedule, words)
                                                        : program_of_schedule(find_schedule(schedule), words);
  check(bare.program);
  return bare;
}

}  // namespace weft
