// The reader of a user's order: the grammar of one cell, cells with their places in the text, and the checks of these
// cells.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// One action as spelled in a cell, without tables: kind, stage, microbatch and the overlap mark.
struct CellAction {
  Action action = {};
  std::optional<std::string_view> name = {};  // the name in parentheses
  std::string_view text = {};                 // text of this action; a part of the cell if the cell is a pair
};

// One action, or the two of an overlapped pair; `cell` has no blanks around it. A kind takes exactly the numbers that
// it needs. Throws Error (request) naming the cell and its fault.
std::vector<CellAction> read_cell(std::string_view cell);

[[noreturn]] void fail_cell(std::string_view cell, const std::string& what);

// Without blanks, tabs and carriage returns around it.
std::string_view trimmed(std::string_view text);

struct OrderPlace {
  std::size_t line = 1, column = 1;  // from 1, in bytes
  std::string_view cell = {};        // part of the text; empty if something is missing
};

// One action of a cell; a cell with an overlapped pair makes two.
struct OrderCell {
  Action action;
  OrderPlace place;
};

struct RankCells {
  std::vector<OrderCell> cells;
  OrderPlace end;  // behind the last cell
};

using OrderCells = std::vector<RankCells>;  // by rank

// All faults of an order, as many as a reader wants to see at once.
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

// Stage and microbatch numbers are below this bound, because tables are as long as the largest number.
constexpr int order_number_bound = 1 << 16;

// Reads cells of F, B, I, W or an overlapped pair of them. `text` outlives the result.
OrderCells read_order_cells(std::string_view text, OrderFaults& faults);

// Every stage must be on one rank, and every stage and microbatch up to the largest must exist. Each must have its
// forward and backward once and in this order. Missing things are not reported if there are faults already: they may be
// among the cells that could not be read.
void check_complete(const OrderCells& cells, OrderFaults& faults);

// Runs the cells of all ranks as far as their data allows; an overlapped pair waits for the data of both halves.
// Reports a deadlock: its ranks, and what each waits for. The cells must be complete.
void check_waits(const OrderCells& cells, const std::vector<int>& stage_ranks, int microbatches, OrderFaults& faults);

}  // namespace weft
