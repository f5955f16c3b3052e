// `weft plan CONFIG --search`: the fastest ways to run a model that fit, among all choices of a search.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/planning/published.h"
#include "trainer/planning/search.h"

namespace weft {

struct PlanSearchRequest {
  std::optional<int> world = {};         // replaces the configuration's
  std::vector<std::string> axes = {};    // "tensor=1,2,4": parse_search_axes
  bool across_nodes = false;             // whether tensor groups may cross nodes
  std::size_t top = 10;                  // number of plans to find
  double front_within = 2.0;             // limit of the front in `pareto`, relative to the fastest step
  std::optional<double> seconds = {};    // SearchOptions::seconds
  bool json = false;                     // one document on standard output
  std::string output = {}, pareto = {};  // files: the best plan as TOML, and the picture
};

// The certainty of all plans of the space.
Certainty certainty_of(const SearchSpace& space);

// Adds the options of a search to a command that takes CONFIG. Returns the option `--search`; its count says whether it
// was given.
CLI::Option* add_plan_search_options(CLI::App& command, PlanSearchRequest& request);

// search_plans, with its progress on standard error.
SearchResult shown_search(const SearchSpace& space, const SearchOptions& options);
// Throws Error (request) for a search without a plan, with the one that needs least memory.
[[noreturn]] void refuse_empty(const std::string& command, const SearchSpace& space, const SearchResult& result);

// `given`: the overrides of the command line. Throws Error (request) if nothing fits.
void plan_search(const CLI::App& command, const std::string& file, const Overrides& given,
                 const PlanSearchRequest& request);

}  // namespace weft
