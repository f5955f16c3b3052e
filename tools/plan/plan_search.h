// `weft plan CONFIG --search`: the fastest ways to run a model that fit, of all that a search looks at.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace weft {

struct PlanSearchRequest {
  std::string hardware = {};             // in place of hardware.name
  std::optional<int> world = {};         // in place of the configuration's
  std::vector<std::string> axes = {};    // "tensor=1,2,4": parse_search_axes
  bool across_nodes = false;             // whether tensor groups may leave a node
  std::size_t top = 10;                  // how many to find
  double front_within = 2.0;             // of `pareto`: times the fastest step
  bool json = false;                     // one document on standard output
  std::string output = {}, pareto = {};  // files for the best as TOML, for the picture
};

// Adds the options of a search to a command that takes CONFIG; the one returned is `--search` itself, whose count says
// whether it was given.
CLI::Option* add_plan_search_options(CLI::App& command, PlanSearchRequest& request);

// Throws Error (request) where nothing fits, with what comes nearest.
void plan_search(const CLI::App& command, const std::string& file, const PlanSearchRequest& request);

}  // namespace weft
