#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "parallel/pipeline/orders/order_cells.h"

namespace weft {
namespace {

std::string place_text(const OrderPlace& place) {
  return fmt::format("{} (line {}, column {})", place.cell, place.line, place.column);
}

// --- complete -------------------------------------------------------------------------------------------------------

// The cells of one microbatch in one stage; the first of each kind.
struct Turns {
  const OrderCell *forward = nullptr, *backward = nullptr, *input = nullptr, *weight = nullptr;

  const OrderCell*& of(Op op) {
    return op == Op::forward ? forward : op == Op::backward ? backward : op == Op::backward_input ? input : weight;
  }
};

class Completeness {
 public:
  Completeness(const OrderCells& cells, OrderFaults& faults) : cells_(cells), faults_(faults) {}

  void run() {
    const bool all_read = !faults_.any();
    for (std::size_t rank = 0; rank < cells_.size(); ++rank) {
      for (const OrderCell& cell : cells_[rank].cells) {
        place(cell, rank);
        take(cell);
      }
    }
    if (!all_read) return;
    require_all("stage", stages_);
    require_all("microbatch", microbatches_);
    for (const auto& [stage, home] : stages_) {
      for (const auto& [microbatch, first] : microbatches_) {
        if (faults_.full()) return;
        require_complete(stage, home.first, microbatch);
      }
    }
  }

 private:
  using Home = std::pair<std::size_t, const OrderCell*>;  // rank, first cell

  void place(const OrderCell& cell, std::size_t rank) {
    const auto [home, fresh] = stages_.try_emplace(*cell.action.stage, rank, &cell);
    microbatches_.try_emplace(*cell.action.microbatch, rank, &cell);
    if (fresh || home->second.first == rank || !strays_.emplace(*cell.action.stage, rank).second) return;
    faults_.add(cell.place,
                fmt::format("stage {} runs on rank {} already, with {}; a stage stands on one rank", *cell.action.stage,
                            home->second.first, place_text(home->second.second->place)));
  }

  void take(const OrderCell& cell) {
    Turns& turns = turns_[{*cell.action.stage, *cell.action.microbatch}];
    const Op op = cell.action.op;
    const OrderCell*& same = turns.of(op);
    if (same) {
      faults_.add(cell.place, fmt::format("it was run before, at {}", place_text(same->place)));
      return;
    }
    same = &cell;
    const OrderCell* half = turns.input ? turns.input : turns.weight;
    if (op != Op::forward && turns.backward && half) {
      faults_.add(cell.place, fmt::format("it stands beside {}: a backward is whole (B) or two halves (I, then W). "
                                          "Older files of PyTorch write B for I and BW for B",
                                          place_text((op == Op::backward ? half : turns.backward)->place)));
      return;
    }
    const OrderCell* early = turns.backward ? turns.backward : turns.input;
    if (op == Op::forward && early) {
      faults_.add(early->place, fmt::format("it comes before its forward, {}", place_text(cell.place)));
    }
    if (op == Op::backward_input && turns.weight) {
      faults_.add(turns.weight->place, fmt::format("it comes before its input gradient, {}", place_text(cell.place)));
    }
  }

  // Reports every number below the largest that no cell uses.
  void require_all(std::string_view what, const std::map<int, Home>& found) {
    int next = 0;
    for (const auto& [number, home] : found) {
      for (; next < number && !faults_.full(); ++next) {
        faults_.add(home.second->place, fmt::format("there is a {} {} but no {} {}; they are numbered without gaps",
                                                    what, number, what, next));
      }
      next = number + 1;
    }
  }

  void require_complete(int stage, std::size_t rank, int microbatch) {
    const auto found = turns_.find({stage, microbatch});
    const Turns turns = found == turns_.end() ? Turns{} : found->second;
    std::string missing;
    const auto lacks = [&](std::string_view kind) {
      missing += fmt::format("{}{}{}{}", missing.empty() ? "" : " and ", stage, kind, microbatch);
    };
    if (!turns.forward) lacks("F");
    if (!turns.backward && !turns.input && !turns.weight) lacks("B");
    if (!turns.backward && !turns.input && turns.weight) lacks("I");
    if (!turns.backward && turns.input && !turns.weight) lacks("W");
    if (missing.empty()) return;
    faults_.add(cells_[rank].end, fmt::format("rank {} ends without {}", rank, missing));
  }

  const OrderCells& cells_;
  OrderFaults& faults_;
  std::map<int, Home> stages_, microbatches_;
  std::set<std::pair<int, std::size_t>> strays_;  // stages on a second rank, named once each
  std::map<std::pair<int, int>, Turns> turns_;    // by stage and microbatch
};

// --- waits ----------------------------------------------------------------------------------------------------------

class Waits {
 public:
  Waits(const OrderCells& cells, const std::vector<int>& stage_ranks, int microbatches)
      : cells_(cells),
        stage_ranks_(stage_ranks),
        microbatches_(microbatches),
        at_(cells.size(), 0),
        forward_(stage_ranks.size() * microbatches_, false),
        backward_(forward_) {}

  void run(OrderFaults& faults) {
    while (advance()) {
    }
    std::size_t rank = 0;
    while (rank < at_.size() && !standing(rank)) ++rank;
    if (rank == at_.size()) return;
    // The cells are complete, so a waiting rank waits for another waiting rank: the waits lead into a circle.
    std::vector<bool> seen(at_.size(), false);
    while (!seen[rank]) {
      seen[rank] = true;
      rank = wait_of(rank).rank;
    }
    std::string circle;
    std::size_t member = rank;
    do {
      const Wait wait = wait_of(member);
      circle += fmt::format("{}rank {} at {} waits for {} of rank {}", circle.empty() ? "deadlock: " : ", ", member,
                            place_text(wait.cell->place), wait.needed, wait.rank);
      member = wait.rank;
    } while (member != rank);
    faults.add(wait_of(rank).cell->place, circle);
  }

 private:
  struct Wait {
    const OrderCell* cell = nullptr;
    std::string needed;
    std::size_t rank = 0;  // the rank that computes `needed`
  };

  std::optional<StageResult> need_of(const Action& action) const {
    return read_by(action, static_cast<int>(stage_ranks_.size()));
  }
  std::size_t entry(int stage, int microbatch) const { return stage * microbatches_ + microbatch; }
  bool there(const StageResult& need, int microbatch) const {
    return (need.forward ? forward_ : backward_)[entry(need.stage, microbatch)];
  }

  // The cells at a rank's position that begin together.
  std::span<const OrderCell> next(std::size_t rank) const {
    const std::span<const OrderCell> cells = cells_[rank].cells;
    if (at_[rank] == cells.size()) return {};
    return cells.subspan(at_[rank], cells[at_[rank]].action.overlapped ? 2 : 1);
  }
  const OrderCell* standing(std::size_t rank) const {
    for (const OrderCell& cell : next(rank)) {
      const auto need = need_of(cell.action);
      if (need && !there(*need, *cell.action.microbatch)) return &cell;
    }
    return nullptr;
  }

  bool advance() {
    bool moved = false;
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      for (auto cells = next(rank); !cells.empty() && !standing(rank); cells = next(rank)) {
        for (const OrderCell& cell : cells) {
          const Op op = cell.action.op;
          if (op == Op::backward_weight) continue;
          (op == Op::forward ? forward_ : backward_)[entry(*cell.action.stage, *cell.action.microbatch)] = true;
        }
        at_[rank] += cells.size();
        moved = true;
      }
    }
    return moved;
  }

  Wait wait_of(std::size_t rank) const {
    const OrderCell* cell = standing(rank);
    const StageResult need = *need_of(cell->action);
    const std::size_t maker = stage_ranks_[need.stage];
    const auto& cells = cells_[maker].cells;
    const auto made = std::ranges::find_if(cells, [&](const OrderCell& other) {
      return other.action.stage == need.stage && other.action.microbatch == cell->action.microbatch &&
             (need.forward ? other.action.op == Op::forward : makes_input_gradient(other.action.op));
    });
    return {cell, std::string(made->place.cell), maker};
  }

  const OrderCells& cells_;
  const std::vector<int>& stage_ranks_;
  std::size_t microbatches_;
  std::vector<std::size_t> at_;           // by rank
  std::vector<bool> forward_, backward_;  // done, by stage and microbatch
};

}  // namespace

void check_complete(const OrderCells& cells, OrderFaults& faults) {
  Completeness(cells, faults).run();
}

void check_waits(const OrderCells& cells, const std::vector<int>& stage_ranks, int microbatches, OrderFaults& faults) {
  Waits(cells, stage_ranks, microbatches).run(faults);
}

}  // namespace weft
