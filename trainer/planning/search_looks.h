// What is found out about one choice of a search, or about all with its mesh and microbatch: whether the rules take it,
// then bounds on its time and memory, then its time, then its memory. Each look finds out the next thing and costs more
// than the one before. Nothing here changes anything, so any number of looks may be taken at once.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trainer/planning/search.h"
#include "trainer/planning/search_bounds.h"

namespace weft {

// What is known of a choice, or of all with its mesh and microbatch.
enum class Known : std::uint8_t { pieces, mean, bounds, seconds, all };

struct SearchNode {
  Known known = Known::pieces;
  double seconds = 0.0;                   // at least; from Known::seconds on exactly
  std::int64_t bytes = 0;                 // at least; of Known::all exactly. Without what the hardware reserves
  std::array<std::size_t, 5> place = {};  // mesh, microbatch, order, policy, recompute: in the lists of the space
  std::size_t choices = 1;
  std::shared_ptr<const SearchedPlan> plan = {};  // from Known::seconds on

  auto key() const { return std::tuple(seconds, place, known); }
  bool operator<(const SearchNode& other) const { return key() < other.key(); }
};

// What looking at a node comes to.
struct SearchLook {
  std::vector<SearchNode> nodes;
  SearchCounts counts;
  std::vector<SearchNode> too_large;  // by what they are known to take
};

// The choice at these places in the lists of the space.
SearchChoice choice_at(const SearchSpace& space, const std::array<std::size_t, 5>& place);
void add(SearchCounts& sum, const SearchCounts& part);

class SearchLooks {
 public:
  // The space outlives this.
  explicit SearchLooks(const SearchSpace& space) : space_(space) {}

  // Meshes and microbatches that the rules accept; of the others `counts` has why.
  std::vector<SearchNode> first(SearchCounts& counts) const;
  // The least of any strategy and recompute, of one of these.
  SearchLook weigh(SearchNode node) const;
  // The next thing about a choice that may fit, and about one of which only its memory matters.
  SearchLook look(const SearchNode& node) const;
  SearchLook look_for_bytes(const SearchNode& node) const;

 private:
  // By place of the recompute and by strategy.
  using Pieces = std::map<std::pair<std::size_t, std::string>, ModelPieces>;

  bool accepted(ChoiceStep step, const Config& config, std::size_t choices, SearchCounts& counts) const;
  bool fits(std::int64_t bytes) const;
  Pieces pieces_of(const SearchNode& node) const;
  std::string kind_of(std::size_t policy) const;
  SearchLook expand(const SearchNode& node) const;
  void add_leaf(SearchNode node, std::int64_t static_bytes, SearchLook& look) const;
  Config planned(const SearchNode& node) const;
  SearchLook tighten(SearchNode node) const;
  SearchLook simulated(SearchNode node) const;
  SearchLook walk(SearchNode node, bool stop) const;

  const SearchSpace& space_;
};

}  // namespace weft
