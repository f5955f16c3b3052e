// Results of a search: a ranked table with an account of all choices, JSON for scripts, a configuration file, and a
// picture of time against memory.
#pragma once

#include <string>

#include "trainer/planning/published.h"
#include "trainer/planning/search.h"

namespace weft {

// The certainty of all plans of the space.
Certainty certainty_of(const SearchSpace& space);

// The outcomes of all choices, one line per reason.
std::string search_account(const SearchCounts& counts);
std::string search_table(const SearchSpace& space, const std::vector<SearchedPlan>& plans);
std::string search_json(const SearchSpace& space, const SearchResult& result);
// The degrees of one plan: "pp 2 x dp 1 x 8 x cp 1 x tp 4".
std::string mesh_text(const Degrees& mesh);

// The whole configuration of a plan, as read back from `file`, after a comment with its origin.
std::string search_toml(const std::string& file, const SearchSpace& space, const SearchResult& result);

std::string search_svg(const SearchSpace& space, const std::vector<SearchedPlan>& plans, const std::string& title);

}  // namespace weft
