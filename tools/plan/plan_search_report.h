// What a search found: for the eye as a ranked table with an account of all choices, for scripts as JSON, as a run
// file, and as a picture of time against memory.
#pragma once

#include <string>

#include "trainer/planning/published.h"
#include "trainer/planning/search.h"

namespace weft {

// Of all plans of the space alike.
Certainty certainty_of(const SearchSpace& space);

// What became of the choices, a line a reason.
std::string search_account(const SearchCounts& counts);
std::string search_table(const SearchSpace& space, const std::vector<SearchedPlan>& plans);
std::string search_json(const SearchSpace& space, const SearchResult& result);
// Of a plan alone: "pp 2 x dp 1 x 8 x cp 1 x tp 4".
std::string mesh_text(const Degrees& mesh);

// The whole configuration of a plan, as read back from `file`, behind a comment that says where it comes from.
std::string search_toml(const std::string& file, const SearchSpace& space, const SearchResult& result);

std::string search_svg(const SearchSpace& space, const std::vector<SearchedPlan>& plans, const std::string& title);

}  // namespace weft
