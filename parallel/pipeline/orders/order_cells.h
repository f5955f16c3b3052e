// The parts of the reader of a user's order: cells with the place they stand at, and what may be wrong with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

struct OrderPlace {
  std::size_t line = 1, column = 1;  // from 1, in bytes
  std::string_view cell = {};        // of the text; empty where something is missing
};

// One action of a cell; a cell with an overlapped pair gives two.
struct OrderCell {
  Action action;
  OrderPlace place;
};

struct RankCells {
  std::vector<OrderCell> cells;
  OrderPlace end;  // behind the last one
};

struct OrderCells {
  std::vector<RankCells> ranks;
};

// Everything that is wrong, as far as a reader wants to see it at once.
class OrderFaults {
 public:
  void add(const OrderPlace& place, const std::string& message);
  bool any() const { return !faults_.empty(); }
  bool full() const { return faults_.size() == most; }
  // Throws Error (request) listing the faults by line and column.
  void throw_if_any() const;

 private:
  static constexpr std::size_t most = 20;

  struct Fault {
    OrderPlace place;
    std::string message;
  };
  std::vector<Fault> faults_;
  bool more_ = false;
};

// Stage and microbatch numbers are below this: tables are as long as the largest.
constexpr int order_number_bound = 1 << 16;

// Cells that read as F, B, I, W or an overlapped pair of them. `text` outlives the result.
OrderCells read_order_cells(std::string_view text, OrderFaults& faults);

// Every stage on one rank, every stage and microbatch up to the largest there, each with its forward and backward once
// and in this order. Nothing is called missing while there are faults already: cells that could not be read may be it.
void check_complete(const OrderCells& cells, OrderFaults& faults);

// Runs the cells of all ranks as far as their data comes, an overlapped pair like one cell that waits for the data of
// both. Where ranks stand still, names them and what each waits for. Of complete cells.
void check_waits(const OrderCells& cells, const std::vector<int>& stage_ranks, int microbatches, OrderFaults& faults);

}  // namespace weft
