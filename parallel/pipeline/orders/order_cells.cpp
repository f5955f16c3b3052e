#include "parallel/pipeline/orders/order_cells.h"

#include <algorithm>
#include <map>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

class CellsReader {
 public:
  explicit CellsReader(OrderFaults& faults) : faults_(faults) {}

  OrderCells read(std::string_view text) {
    for (const std::string_view line : parts_between(text, '\n')) {
      line_ = line;
      ++line_number_;
      if (trimmed(line_).starts_with('#')) continue;
      if (trimmed(line_).empty()) {
        if (first_blank_ == 0) first_blank_ = line_number_;
        continue;
      }
      if (first_blank_ > 0) faults_.add({first_blank_, 1}, without_cells);
      first_blank_ = 0;
      read_line();
    }
    if (cells_.empty()) faults_.add({}, "there is no rank; a schedule has one line of cells for each");
    if (uncompiled_ > 0) {
      faults_.add(
          first_uncompiled_,
          fmt::format("gathers, reductions, messages and R are added by weft; give the compute-only form, with F, "
                      "B, I, W and OVERLAP_F_B alone ({} other cells here)",
                      uncompiled_));
    }
    return std::move(cells_);
  }

 private:
  static constexpr const char* without_cells = "a line without cells is a rank that runs no stage, and every rank does";

  OrderPlace place_of(std::string_view part) const {
    return {line_number_, static_cast<std::size_t>(part.data() - line_.data()) + 1, part};
  }

  void read_line() {
    RankCells& rank = cells_.emplace_back();
    bool any = false;
    for (const std::string_view part : parts_between(line_, ',')) {
      const std::string_view cell = trimmed(part);
      if (cell.empty()) continue;
      any = true;
      read_one(cell, rank);
    }
    rank.end = {line_number_, line_.size() + 1};
    if (!any) faults_.add({line_number_, 1}, without_cells);
  }

  void read_one(std::string_view cell, RankCells& rank) {
    std::vector<CellAction> actions;
    try {
      actions = read_cell(cell);
    } catch (const Error& error) {
      OrderPlace place = place_of(cell);
      place.cell = {};  // the error names the cell
      faults_.add(place, error.what());
      return;
    }
    if (actions.size() == 1 && actions.front().action.overlapped) {
      faults_.add(place_of(cell), "an overlapped pair is two actions, as in (0F3;3B1)OVERLAP_F_B");
      return;
    }
    for (const CellAction& part : actions) {
      if (!is_compute(part.action.op) || part.action.op == Op::recompute) {
        if (uncompiled_++ == 0) first_uncompiled_ = place_of(cell);
      } else if (part.name) {
        faults_.add(place_of(part.text), "an order speaks of whole stages; leave the name in parentheses out");
      } else if (*part.action.stage >= order_number_bound || *part.action.microbatch >= order_number_bound) {
        faults_.add(place_of(part.text),
                    fmt::format("stages and microbatches are numbered from 0 to {}", order_number_bound - 1));
      } else {
        rank.cells.push_back({part.action, place_of(part.text)});
      }
    }
  }

  std::string_view line_;
  std::size_t line_number_ = 0;
  std::size_t first_blank_ = 0;  // line number of the first of the blank lines right before this one; 0: none. Blank
                                 // lines at the end are allowed
  OrderFaults& faults_;
  OrderCells cells_;
  std::size_t uncompiled_ = 0;  // cells with actions that weft adds itself
  OrderPlace first_uncompiled_;
};

}  // namespace

void OrderFaults::add(const OrderPlace& place, const std::string& message) {
  if (full()) {
    more_ = true;
  } else {
    faults_.push_back({place, message});
  }
}

void OrderFaults::throw_if_any() const {
  if (faults_.empty()) return;
  std::vector<Fault> sorted = faults_;
  std::ranges::stable_sort(sorted, {},
                           [](const Fault& fault) { return std::pair(fault.place.line, fault.place.column); });
  std::string text;
  for (const Fault& fault : sorted) {
    text += fmt::format("{}line {}, column {}: ", text.empty() ? "" : "\n", fault.place.line, fault.place.column);
    if (!fault.place.cell.empty()) text += fmt::format("cell \"{}\": ", fault.place.cell);
    text += fault.message;
  }
  if (more_) text += "\nand more";
  fail_request("{}", text);
}

OrderCells read_order_cells(std::string_view text, OrderFaults& faults) {
  return CellsReader(faults).read(text);
}

}  // namespace weft
