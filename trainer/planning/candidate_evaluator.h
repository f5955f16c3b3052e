// Looks at a choice of a search, or at all choices with one mesh and microbatch. In order: do the rules accept it,
// bounds on its time and memory, its time, its memory. Each look costs more than the one before. Looks share only what
// has one value whoever finds it first, so any number of them may run at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trainer/layout/automatic_layout.h"
#include "trainer/planning/search.h"
#include "trainer/planning/search_bounds.h"

namespace weft {

// The state of knowledge of a choice, or of all choices with one mesh and microbatch. From `layout` on the stages of
// the choice are known.
enum class Known : std::uint8_t { pieces, mean, layout, bounds, seconds, all };

// Choices of one mesh, microbatch, recompute and strategy have these in common.
struct CommonPieces {
  ModelPieces pieces;
  std::once_flag dealt = {};
  LayoutItems items = {};  // once `dealt`
};

struct SearchNode {
  Known known = Known::pieces;
  double seconds = 0.0;      // a lower bound; exact from Known::seconds on
  std::int64_t bytes = 0;    // a lower bound; exact for Known::all. Without bytes reserved by the hardware
  SearchChoice choice = {};  // for Known::pieces its mesh and microbatch only
  std::size_t choices = 1;
  std::shared_ptr<CommonPieces> common = {};      // from Known::mean to Known::bounds
  std::string layout = {};                        // from Known::layout on: as text
  std::shared_ptr<const SearchedPlan> plan = {};  // from Known::seconds on

  // Of plans that take as long, the one that needs least comes first.
  auto key() const { return std::tuple(seconds, bytes, choice, known); }
  bool operator<(const SearchNode& other) const { return key() < other.key(); }
};

// The result of looking at a node.
struct CandidateEvaluation {
  std::vector<SearchNode> nodes;
  SearchCounts counts;
  std::vector<SearchNode> too_large;  // nodes that do not fit, with their least bytes
};

void add(SearchCounts& sum, const SearchCounts& part);

class CandidateEvaluator {
 public:
  // The space outlives this.
  explicit CandidateEvaluator(const SearchSpace& space) : space_(space), known_(space.hardware) {}

  // Meshes and microbatches that the rules accept. `counts` gets the reasons against the others.
  std::vector<SearchNode> first(SearchCounts& counts) const;
  // Bounds of a node of first(): the least over all strategies and recomputes.
  CandidateEvaluation weigh(const SearchNode& node) const;
  // The next look at a choice that may fit, and at a choice of which only the memory matters.
  CandidateEvaluation evaluate(const SearchNode& node) const;
  CandidateEvaluation evaluate_bytes(const SearchNode& node) const;

 private:
  // By index of the recompute and by strategy.
  using Pieces = std::map<std::pair<std::size_t, std::string>, std::shared_ptr<CommonPieces>>;

  bool accepted(ChoiceStep step, const Config& config, std::size_t choices, SearchCounts& counts) const;
  bool fits(std::int64_t bytes) const;
  // Of the wanted recomputes.
  Pieces pieces_of(const SearchNode& node, const std::function<bool(Recompute)>& wanted) const;
  std::string kind_of(std::size_t policy) const;
  CandidateEvaluation expand(const SearchNode& node) const;
  // Raises the node's bounds to `least`.
  void add_leaf(SearchNode node, const LeastTaken& least, CandidateEvaluation& step) const;
  // The configuration of a node with a layout.
  Config config_of_node(const SearchNode& node) const;
  const ScheduleResidents& residents_of(const Config& config, std::size_t order) const;
  CandidateEvaluation deal(SearchNode node) const;
  CandidateEvaluation tighten(SearchNode node) const;
  CandidateEvaluation simulated(SearchNode node) const;
  CandidateEvaluation walk(SearchNode node) const;

  const SearchSpace& space_;
  mutable KnownPieces known_;
  // By pipeline ranks, order and microbatches: lists of thousands of actions are made for each.
  mutable std::map<std::tuple<int, std::size_t, std::int64_t>, ScheduleResidents> residents_;
  mutable std::mutex residents_mutex_;
};

}  // namespace weft
