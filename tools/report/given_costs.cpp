#include "tools/report/given_costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/config/config_sources.h"
#include "trainer/costs/hardware.h"
#include "trainer/measure/measured_costs.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// Adds the median of `all` under a pattern of names, unless `all` is empty.
template <typename Cost, typename Seconds>
void add_median(std::map<std::string, Cost>& costs, const std::string& pattern, std::vector<Cost> all,
                Seconds seconds) {
  if (all.empty()) return;
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::ranges::nth_element(all, middle, {}, seconds);
  costs[pattern] = *middle;
}

// Throws Error (request) unless both configurations have the same work, so that measured times hold.
void require_same_work(const std::string& command, const std::string& run, const Config& was, const Config& config) {
  std::vector<std::string> differing;
  const auto work = timed_work(config);
  for (const auto& [name, values] : timed_work(was)) {
    if (values != work.at(name)) differing.push_back(name);
  }
  if (differing.empty()) return;
  fail_request("{}: error: the costs measured in {} hold for the same work only; it had another {}", command, run,
               fmt::join(differing, ", "));
}

// An action kind that the run never did has no measured time; that is refused, because its time is not zero.
void require_measured(const Program& program, const ProgramCosts& costs) {
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      if (!(action.unit || is_host_copy(action.op)) || action.bytes == 0 || is_reshard(action.op)) continue;
      if (cost_of(program, costs, action) > 0.0) continue;
      fail_request("no {} of {} was measured; trace a run that does it", name_of(action.op),
                   action.unit ? program.units[static_cast<std::size_t>(*action.unit)].name
                               : program.segments[static_cast<std::size_t>(*action.segment)].name);
    }
  }
}

std::map<std::string, double> numbers_of(const std::string& command, const std::string& words) {
  std::map<std::string, double> numbers = {
      {"forward", 1.0},  {"backward_input", 1.0}, {"backward_weight", 1.0}, {"gather", 0.0}, {"reduce", 0.0},
      {"transfer", 0.0}, {"rows", 0.0},           {"host_copy", 0.0},       {"norm", 0.0},   {"step", 0.0}};
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const auto found = numbers.find(word.substr(0, equals));
    if (found == numbers.end()) {
      fail_request(
          "{}: error: --costs takes forward=X backward_input=X backward_weight=X gather=X reduce=X transfer=X rows=X "
          "host_copy=X norm=X step=X, not {}",
          command, word);
    }
    const std::string_view text = std::string_view(word).substr(std::min(equals + 1, word.size()));
    const auto number = parsed_number<double>(text);
    if (!number || !std::isfinite(*number) || *number < 0.0) {
      fail_request("{}: error: --costs {} is not a number of at least 0", command, word);
    }
    found->second = *number;
  }
  return numbers;
}

}  // namespace

CostTable table_of_run(const std::filesystem::path& directory, const Config& config) {
  const Mesh mesh(config.parallelism);
  CostTable table = measured_costs(config, mesh, read_traces(directory, mesh.world()));
  std::vector<double> messages;
  for (const auto& [stage, seconds] : table.messages) messages.push_back(seconds);
  add_median(table.messages, "*", std::move(messages), std::identity());
  const ProgramTables tables = program_tables(config, mesh, mesh.coordinates(0));
  // A gather of a whole unit moves nothing. What it takes is no measure of the gather of a part.
  for (const ProgramUnit& unit : tables.units) {
    if (const auto found = table.units.find(unit.name); unit.gather_bytes == 0 && found != table.units.end()) {
      found->second.gather = 0.0;
    }
  }
  for (const std::string_view kind : {"root", "routing"}) {
    std::vector<UnitCost> costs;
    for (const ProgramUnit& unit : tables.units) {
      const auto found = table.units.find(fmt::format("stage.{}.{}", unit.stage, kind));
      if (found != table.units.end() && found->first == unit.name) costs.push_back(found->second);
    }
    add_median(table.units, fmt::format("stage.*.{}", kind), std::move(costs), &UnitCost::reduce);
  }
  return table;
}

ProgramCosts costs_from_words(const std::string& command, const Program& program, const std::string& words) {
  const auto numbers = numbers_of(command, words);
  const double share = static_cast<double>(program.ranks.size()) / static_cast<double>(program.stages.size());
  ProgramCosts costs = even_costs(program, {numbers.at("forward") * share, numbers.at("backward_input") * share,
                                            numbers.at("backward_weight") * share});
  std::vector<std::int64_t> gathered(program.ranks.size(), 0), reduced = gathered, copied = gathered;  // by rank
  // Of a unit or a segment.
  const auto rank_of = [&](const auto& part) {
    return static_cast<std::size_t>(program.stages[static_cast<std::size_t>(part.stage)].rank);
  };
  for (const ProgramUnit& unit : program.units) {
    gathered[rank_of(unit)] += unit.gather_bytes;
    reduced[rank_of(unit)] += unit.reduce_bytes;
  }
  for (const ProgramSegment& segment : program.segments) copied[rank_of(segment)] += segment.offload_bytes;
  const auto part = [](double whole, std::int64_t bytes, std::int64_t all) {
    return all > 0 ? whole * static_cast<double>(bytes) / static_cast<double>(all) : 0.0;
  };
  for (std::size_t i = 0; i < program.units.size(); ++i) {
    const ProgramUnit& unit = program.units[i];
    UnitCost& cost = costs.units[i];
    cost.gather = cost.island_gather = part(numbers.at("gather"), unit.gather_bytes, gathered[rank_of(unit)]);
    cost.reduce = cost.scatter = part(numbers.at("reduce"), unit.reduce_bytes, reduced[rank_of(unit)]);
  }
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    const ProgramSegment& segment = program.segments[i];
    ComputeCost& cost = costs.segments[i];
    cost.host_copy = part(numbers.at("host_copy"), segment.offload_bytes, copied[rank_of(segment)]);
    if (row_exchanges(segment, Op::forward) == 0) continue;
    cost.forward_out = cost.forward_back = cost.backward_out = cost.backward_back = numbers.at("rows");
  }
  costs.transfers.assign(program.stages.size(), numbers.at("transfer"));
  costs.gradient_norm = numbers.at("norm");
  costs.optimizer_step = numbers.at("step");
  return costs;
}

CostSource::CostSource(const std::string& command, const std::string& costs, const std::string& hardware)
    : command_(command), hardware_(hardware) {
  if (!costs.empty() && !hardware.empty()) {
    fail_request("{}: error: --costs and --hardware both say what actions cost; leave one of them out", command);
  }
  if (!hardware.empty()) find_hardware(hardware);
  if (costs.empty()) return;
  if (costs.find('=') != std::string::npos) {
    words_ = costs;
    return;
  }
  file_ = costs;
  if (std::filesystem::is_directory(file_)) {
    measured_ = read_config(std::filesystem::path(file_) / "config.toml").config;
    table_ = table_of_run(file_, *measured_);
  } else if (file_.ends_with(".toml")) {
    table_ = parse_cost_table(read_text(file_), file_);
  } else {
    fail_request(
        "{}: error: --costs {} is neither words such as forward=1, nor a table FILE.toml, nor the directory of a run",
        command, costs);
  }
}

// Figures set in [hardware] also apply under another hardware name.
Hardware CostSource::hardware_for(const Config& config) const {
  if (hardware_.empty()) return hardware_of(config);
  Config named = config;
  named.hardware.name = hardware_;
  return hardware_of(named);
}

StepCosts CostSource::costs_of(const Config& config, const Mesh& mesh, const Program& program) const {
  if (!words_.empty()) return {costs_from_words(command_, program, words_), LaneChannels::own(), true};
  const LaneChannels channels = lane_channels(config);
  if (measured_) {
    require_same_work(command_, file_, *measured_, config);
    try {
      StepCosts costs{table_costs(*table_, program, group_sizes(mesh)), channels};
      require_measured(program, costs.costs);
      return costs;
    } catch (const Error& error) {
      fail_request("{}: error: {} was traced with other pieces than this needs: {}", command_, file_, error.what());
    }
  }
  if (table_) {
    ProgramCosts costs = table_costs(*table_, program, group_sizes(mesh));
    time_host_copies(program, hardware_for(config), costs);
    return {std::move(costs), channels};
  }
  if (hardware_.empty() && config.pipeline.has_cost_table()) {
    return {step_costs(config, mesh, program, hardware_of(config)), channels};
  }
  const Hardware hardware = hardware_for(config);
  return {modelled_costs(config, mesh, program, hardware),
          hardware.name == "cpu" ? LaneChannels::serial() : LaneChannels::own()};
}

Certainty CostSource::certainty(const Config& config) const {
  if (!words_.empty()) return given_certainty(words_);
  if (measured_) return given_certainty(fmt::format("the traces of {}", file_));
  if (table_) return given_certainty(file_);
  if (!hardware_.empty()) return modelled_certainty(hardware_for(config));
  return certainty_of(config, hardware_for(config));
}

std::string CostSource::text(const Config& config) const {
  if (!words_.empty()) return fmt::format("given as {}, in units of time", words_);
  if (measured_) return fmt::format("measured in {}", file_);
  if (table_) return fmt::format("of {}", file_);
  if (hardware_.empty() && config.pipeline.has_cost_table()) return fmt::format("of {}", config.pipeline.costs);
  return fmt::format("modelled for {}", hardware_for(config).name);
}

}  // namespace weft
