#include "tools/report/costs_from_words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::map<std::string, double> numbers_of(const std::string& command, const std::string& words) {
  std::map<std::string, double> numbers = {{"forward", 1.0},
                                           {"backward_input", 1.0},
                                           {"backward_weight", 1.0},
                                           {"gather", 0.0},
                                           {"reduce", 0.0},
                                           {"transfer", 0.0},
                                           {"norm", 0.0},
                                           {"step", 0.0}};
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const auto found = numbers.find(word.substr(0, equals));
    if (found == numbers.end()) {
      fail_request(
          "{}: error: --costs takes forward=X backward_input=X backward_weight=X gather=X reduce=X transfer=X norm=X "
          "step=X, not {}",
          command, word);
    }
    const std::string_view text = std::string_view(word).substr(std::min(equals + 1, word.size()));
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), found->second);
    if (error != std::errc() || stop != text.data() + text.size() || !std::isfinite(found->second) ||
        found->second < 0.0) {
      fail_request("{}: error: --costs {} is not a number of at least 0", command, word);
    }
  }
  return numbers;
}

}  // namespace

ProgramCosts costs_from_words(const std::string& command, const Program& program, const std::string& words) {
  const auto numbers = numbers_of(command, words);
  const double share = static_cast<double>(program.ranks.size()) / static_cast<double>(program.stages.size());
  ProgramCosts costs = even_costs(program, {numbers.at("forward") * share, numbers.at("backward_input") * share,
                                            numbers.at("backward_weight") * share});
  std::vector<std::int64_t> gathered(program.ranks.size(), 0), reduced(program.ranks.size(), 0);  // by rank
  const auto rank_of_unit = [&](const ProgramUnit& unit) {
    return static_cast<std::size_t>(program.stages[static_cast<std::size_t>(unit.stage)].rank);
  };
  for (const ProgramUnit& unit : program.units) {
    gathered[rank_of_unit(unit)] += unit.gather_bytes;
    reduced[rank_of_unit(unit)] += unit.reduce_bytes;
  }
  const auto part = [](double whole, std::int64_t bytes, std::int64_t all) {
    return all > 0 ? whole * static_cast<double>(bytes) / static_cast<double>(all) : 0.0;
  };
  for (std::size_t i = 0; i < program.units.size(); ++i) {
    const ProgramUnit& unit = program.units[i];
    UnitCost& cost = costs.units[i];
    cost.gather = cost.island_gather = part(numbers.at("gather"), unit.gather_bytes, gathered[rank_of_unit(unit)]);
    cost.reduce = cost.scatter = part(numbers.at("reduce"), unit.reduce_bytes, reduced[rank_of_unit(unit)]);
  }
  costs.transfers.assign(program.stages.size(), numbers.at("transfer"));
  costs.gradient_norm = numbers.at("norm");
  costs.optimizer_step = numbers.at("step");
  return costs;
}

}  // namespace weft
