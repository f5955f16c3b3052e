#include "tests/parallel/program_interpreter.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace weft {
namespace {

using Value = std::uint64_t;

Value mixed(Value one, Value other) {
  Value x = one * 0x9e3779b97f4a7c15ull + other + 0x632be59bd9b4e019ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
Value input_of(int microbatch) {
  return mixed(7, static_cast<Value>(microbatch));
}
Value loss_gradient(Value output) {
  return mixed(11, output);
}
Value output_of(Value input, std::size_t piece) {
  return mixed(input, 2 * piece);
}
Value input_gradient_of(Value gradient, Value output, std::size_t piece) {
  return mixed(mixed(gradient, output), 2 * piece + 1);
}
Value weight_gradient_of(Value gradient, Value output, std::size_t unit) {
  return mixed(mixed(output, gradient), unit);
}

struct Fault : std::runtime_error {
  using runtime_error::runtime_error;
};
template <typename... Parts>
void demand(bool holds, fmt::format_string<Parts...> text, Parts&&... parts) {
  if (!holds) throw Fault(fmt::format(text, std::forward<Parts>(parts)...));
}

// One microbatch in one piece of the model.
struct Cell {
  std::optional<Value> output, gradient, input_gradient;  // `gradient` of the output, until the weight gradient is made
  std::optional<Value> saved = {};                  // what the backward reads: the output, of a forward that keeps it
  std::optional<Value> checkpoint = {};             // of a region's first piece, its input from forward to R
  std::optional<Value> again = {};                  // inside a region, what R makes for the next piece
  std::optional<Value> leaving = {}, on_host = {};  // what the backward reads, elsewhere
  bool weight_gradient = false;
  // Of a computation in parts that is under way: its kind, parts that have run, and exchanges behind them.
  Op open = Op::forward;
  int parts = 0, exchanges = 0;
};
struct Unit {
  bool gathered = false, in_island = false;
  Value added = 0, scattered = 0, reduced = 0;  // sums of weight gradients
  int reducing = 0;                             // reductions that nobody has waited for
};

class Machine {
 public:
  explicit Machine(const Program& program)
      : program_(program),
        at_(program.ranks.size(), 0),
        met_(program.ranks.size(), 0),
        arrived_(program.ranks.size(), 0),
        units_(program.units.size()) {
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
      first_piece_.push_back(segments_.size());
      for (int segment : program.stages[stage].segments) segments_.push_back(segment);
      if (program.stages[stage].segments.empty()) segments_.push_back(std::nullopt);
    }
    first_piece_.push_back(segments_.size());
    cells_.resize(segments_.size() * static_cast<std::size_t>(program.microbatches));
    run_model();
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (rank_ = 0; rank_ < static_cast<int>(at_.size()); ++rank_) {
        while (here() < list().size() && perform(list()[here()])) {
          ++here();
          moved = true;
        }
      }
    }
    for (rank_ = 0; rank_ < static_cast<int>(at_.size()); ++rank_) {
      demand(here() == list().size(), "rank {} stands still at action {}", rank_, here());
    }
    demand(messages_.empty(), "{} messages were never received", messages_.size());
    require_model();
  }

 private:
  std::size_t& here() { return at_[static_cast<std::size_t>(rank_)]; }
  const std::vector<Action>& list() const { return program_.ranks[static_cast<std::size_t>(rank_)]; }
  int rank_of_stage(int stage) const { return program_.stages.at(static_cast<std::size_t>(stage)).rank; }
  Cell& cell(std::size_t piece, int microbatch) {
    demand(microbatch >= 0 && microbatch < program_.microbatches, "microbatch {}", microbatch);
    return cells_[piece * static_cast<std::size_t>(program_.microbatches) + static_cast<std::size_t>(microbatch)];
  }
  std::size_t begin(int stage) const { return first_piece_.at(static_cast<std::size_t>(stage)); }
  std::size_t end(int stage) const { return first_piece_.at(static_cast<std::size_t>(stage) + 1); }
  const ProgramSegment* segment(std::size_t piece) const {
    return segments_[piece] ? &program_.segments.at(static_cast<std::size_t>(*segments_[piece])) : nullptr;
  }

  // False when it has to wait.
  bool perform(const Action& action) {
    // GRAD_NORM, then STEP, and nothing after them that changes or reads parameters.
    const std::size_t met = met_[static_cast<std::size_t>(rank_)];
    if (action.op == Op::gradient_norm || action.op == Op::optimizer_step) {
      demand(met == (action.op == Op::optimizer_step ? 1u : 0u), "{} at the wrong time", name_of(action.op));
      return meet(action.op);
    }
    demand(met == 0 || is_reshard(action.op), "{} after GRAD_NORM", name_of(action.op));
    demand(action.stage && *action.stage >= 0 && *action.stage < static_cast<int>(program_.stages.size()), "no stage");
    demand(rank_of_stage(*action.stage) == rank_, "stage {} of another rank", *action.stage);
    if (is_send(action.op)) return send(action);
    if (is_receive(action.op)) return receive(action);
    if (action.op == Op::tie_gradient) return tie(action);
    if (is_compute(action.op)) {
      compute(action);
    } else if (is_row_exchange(action.op)) {
      exchange_rows(action);
    } else if (takes_kept(action.op)) {
      move_kept(action);
    } else {
      for_units(action);
    }
    return true;
  }

  // Each rank leaves what its copies have when it comes, and goes on with the sum when all others have come too.
  bool tie(const Action& action) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const ProgramUnit& entry = program_.units[unit];
      if (action.unit ? *action.unit != static_cast<int>(unit) : entry.stage != *action.stage || entry.copies.empty())
        continue;
      demand(entry.stage == *action.stage, "a unit of another stage");
      demand(!entry.copies.empty(), "{} has no copy", entry.name);
      const auto value = entry.tied_unreduced ? &Unit::added : &Unit::reduced;
      const auto here = [&](int copy) {
        return rank_of_stage(program_.units[static_cast<std::size_t>(copy)].stage) == rank_;
      };
      Value sum = 0;
      bool all = true;
      for (const int copy : entry.copies) {
        const auto place = static_cast<std::size_t>(copy);
        if (here(copy)) left_.try_emplace(place, units_[place].*value);
        all = all && left_.contains(place);
        if (all) sum += left_.at(place);
      }
      if (!all) return false;
      for (const int copy : entry.copies) {
        if (here(copy)) units_[static_cast<std::size_t>(copy)].*value = sum;
      }
    }
    return true;
  }

  // All ranks do it together, and the same.
  bool meet(Op op) {
    const auto me = static_cast<std::size_t>(rank_);
    const std::size_t turn = met_[me];
    if (meetings_.size() == turn) meetings_.push_back(op);
    demand(meetings_[turn] == op, "{} meets {}", name_of(op), name_of(meetings_[turn]));
    if (arrived_[me] == turn) {
      require_reduced();
      ++arrived_[me];
    }
    for (std::size_t arrived : arrived_) {
      if (arrived <= turn) return false;
    }
    ++met_[me];
    return true;
  }

  void compute(const Action& action) {
    demand(action.microbatch.has_value(), "no microbatch");
    std::vector<std::size_t> pieces;
    for (std::size_t piece = begin(*action.stage); piece < end(*action.stage); ++piece) {
      if (!action.segment || segments_[piece] == action.segment) pieces.push_back(piece);
    }
    demand(!pieces.empty(), "no such segment in the stage");
    const bool again = action.op == Op::recompute;
    if (action.op != Op::forward && !again) pieces.assign(pieces.rbegin(), pieces.rend());
    if (again && !action.segment) std::erase_if(pieces, [&](std::size_t piece) { return !region(piece); });
    for (std::size_t piece : pieces) {
      Cell& own = cell(piece, *action.microbatch);
      demand(own.parts == action.part.index && own.exchanges == own.parts, "part {} is out of turn", action.part.index);
      if (own.parts > 0) demand(own.open == action.op, "{} interrupts {}", name_of(action.op), name_of(own.open));
      own.open = action.op;
      own.parts = action.part.last() ? 0 : own.parts + 1;
      if (!action.part.last()) {
        const bool reads = !makes_input_gradient(action.op) || segment(piece)->reads_weights_backward;
        if (reads) read_parameters(piece);
        continue;
      }
      own.exchanges = 0;
      if (action.op == Op::forward) forward(piece, *action.stage, *action.microbatch);
      if (again) recompute(piece, *action.stage, *action.microbatch);
      if (makes_input_gradient(action.op)) backward_input(piece, *action.stage, *action.microbatch);
      if (makes_weight_gradient(action.op)) backward_weight(piece, *action.microbatch);
    }
  }

  void exchange_rows(const Action& action) {
    for (std::size_t piece = begin(*action.stage); piece < end(*action.stage); ++piece) {
      if (segments_[piece] != action.segment) continue;
      Cell& own = cell(piece, *action.microbatch);
      demand(own.parts == own.exchanges + 1 && own.parts == action.part.index + 1 &&
                 row_exchange_of(own.open) == action.op,
             "an exchange of rows that no part made");
      ++own.exchanges;
      return;
    }
    demand(false, "no such segment in the stage");
  }

  // From the place where the backward reads it, out of device memory and back.
  void move_kept(const Action& action) {
    for (std::size_t piece = begin(*action.stage); piece < end(*action.stage); ++piece) {
      if (segments_[piece] != action.segment) continue;
      demand(segment(piece)->offload_bytes > 0, "nothing may leave");
      Cell& own = cell(piece, *action.microbatch);
      std::optional<Value>& device = region(piece) ? own.checkpoint : own.saved;
      std::optional<Value>& from = action.op == Op::offload        ? device
                                   : action.op == Op::wait_offload ? own.leaving
                                                                   : own.on_host;
      std::optional<Value>& to = action.op == Op::offload        ? own.leaving
                                 : action.op == Op::wait_offload ? own.on_host
                                                                 : device;
      demand(!own.input_gradient, "it was read before");
      to = there(std::exchange(from, std::nullopt));
      return;
    }
    demand(false, "no such segment in the stage");
  }

  void read_parameters(std::size_t piece) const {
    if (!segment(piece)) return;
    for (int unit : segment(piece)->units) {
      const auto index = static_cast<std::size_t>(unit);
      demand(program_.units[index].replicated || units_[index].gathered, "{} is not gathered",
             program_.units[index].name);
    }
  }

  // What came in a message is used up; what stays on the rank is looked at.
  Value taken(bool forward, int stage, int microbatch) {
    const auto found = inbox_.find({forward, stage, microbatch});
    demand(found != inbox_.end(), "stage {} has not got microbatch {}", stage, microbatch);
    const Value value = found->second;
    inbox_.erase(found);
    return value;
  }
  static Value there(const std::optional<Value>& value) {
    demand(value.has_value(), "it was not made yet");
    return *value;
  }

  void forward(std::size_t piece, int stage, int microbatch) {
    read_parameters(piece);
    Value input = input_of(microbatch);
    if (piece > begin(stage) || (stage > 0 && rank_of_stage(stage - 1) == rank_)) {
      input = there(cell(piece - 1, microbatch).output);
    } else if (stage > 0) {
      input = taken(true, stage, microbatch);
    }
    Cell& own = cell(piece, microbatch);
    demand(!own.output, "forward twice");
    own.output = output_of(input, piece);
    if (!region(piece)) own.saved = own.output;
    if (region(piece) && begins_region(piece, stage)) own.checkpoint = input;
  }

  std::optional<int> region(std::size_t piece) const { return segment(piece) ? segment(piece)->region : std::nullopt; }
  bool begins_region(std::size_t piece, int stage) const {
    return piece == begin(stage) || region(piece - 1) != region(piece);
  }
  void recompute(std::size_t piece, int stage, int microbatch) {
    demand(region(piece).has_value(), "piece {} keeps what it saves", piece);
    read_parameters(piece);
    Cell& own = cell(piece, microbatch);
    demand(!own.saved, "saved twice");
    std::optional<Value>& from = begins_region(piece, stage) ? own.checkpoint : cell(piece - 1, microbatch).again;
    own.saved = own.again = output_of(there(from), piece);
    from.reset();
  }

  void backward_input(std::size_t piece, int stage, int microbatch) {
    if (!segment(piece) || segment(piece)->reads_weights_backward) read_parameters(piece);
    const int last = static_cast<int>(program_.stages.size()) - 1;
    Cell& own = cell(piece, microbatch);
    const Value output = there(own.saved);
    Value gradient = loss_gradient(output);
    if (piece + 1 < end(stage) || (stage < last && rank_of_stage(stage + 1) == rank_)) {
      gradient = there(cell(piece + 1, microbatch).input_gradient);
    } else if (stage < last) {
      gradient = taken(false, stage, microbatch);
    }
    demand(!own.input_gradient, "input gradient twice");
    own.gradient = gradient;
    own.input_gradient = input_gradient_of(gradient, output, piece);
  }

  void backward_weight(std::size_t piece, int microbatch) {
    Cell& own = cell(piece, microbatch);
    const Value gradient = there(own.gradient);
    own.gradient.reset();
    own.weight_gradient = true;
    if (!segment(piece)) return;
    for (int unit : segment(piece)->units) {
      const auto index = static_cast<std::size_t>(unit);
      units_[index].added += weight_gradient_of(gradient, *own.saved, index);
    }
  }

  bool send(const Action& action) {
    const bool forward = action.op == Op::send_forward;
    demand(action.peer && action.microbatch, "no peer or microbatch");
    if (messages_.contains({rank_, *action.peer, forward})) return false;
    const Cell& own = cell(forward ? end(*action.stage) - 1 : begin(*action.stage), *action.microbatch);
    messages_[{rank_, *action.peer, forward}] = there(forward ? own.output : own.input_gradient);
    return true;
  }

  bool receive(const Action& action) {
    const bool forward = action.op == Op::receive_forward;
    demand(action.peer && action.microbatch, "no peer or microbatch");
    const auto message = messages_.find({*action.peer, rank_, forward});
    if (message == messages_.end()) return false;
    demand(inbox_.try_emplace({forward, *action.stage, *action.microbatch}, message->second).second, "received twice");
    messages_.erase(message);
    return true;
  }

  void for_units(const Action& action) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const ProgramUnit& entry = program_.units[unit];
      const bool meant = action.unit
                             ? *action.unit == static_cast<int>(unit)
                             : entry.stage == *action.stage &&
                                   !(is_gather(action.op) || is_reshard(action.op) ? entry.replicated : entry.frozen);
      if (!meant) continue;
      demand(entry.stage == *action.stage, "a unit of another stage");
      perform_on(units_[unit], entry, action.op);
    }
  }

  static void perform_on(Unit& unit, const ProgramUnit& entry, Op op) {
    if (is_reduction(op)) {
      demand(!entry.frozen, "{} is frozen", entry.name);
      ++unit.reducing;
      unit.scattered += unit.added;
      unit.added = 0;
      if (op == Op::scatter_gradient) return;
      unit.reduced += unit.scattered;
      unit.scattered = 0;
      return;
    }
    if (op == Op::wait_reduction) {
      demand(unit.reducing-- > 0, "nothing of {} is being reduced", entry.name);
      return;
    }
    demand(!entry.replicated, "{} is replicated", entry.name);
    demand(unit.gathered == is_reshard(op), "{} is {}gathered", entry.name, unit.gathered ? "" : "not ");
    if (is_gather(op)) demand(unit.in_island == (op == Op::unshard_secondary), "{} and its island", entry.name);
    unit.gathered = is_gather(op);
    unit.in_island = op == Op::reshard_secondary;
  }

  // The norm and the step see the sums as they will stay.
  void require_reduced() const {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (rank_of_stage(program_.units[unit].stage) == rank_) require_reduced(unit);
    }
  }
  void require_reduced(std::size_t unit) const {
    Value model = model_units_[unit];
    for (const int copy : program_.units[unit].copies) {
      if (static_cast<std::size_t>(copy) != unit) model += model_units_[static_cast<std::size_t>(copy)];
    }
    demand(program_.units[unit].frozen || units_[unit].reduced == model, "the gradient of {} is not the model's",
           program_.units[unit].name);
  }

  // What comes out in the end: microbatch by microbatch, all pieces there and back.
  void run_model() {
    model_units_.resize(units_.size(), 0);
    for (int microbatch = 0; microbatch < program_.microbatches; ++microbatch) {
      std::vector<Value> outputs;
      for (std::size_t piece = 0; piece < segments_.size(); ++piece) {
        outputs.push_back(output_of(piece == 0 ? input_of(microbatch) : outputs.back(), piece));
      }
      Value gradient = loss_gradient(outputs.back());
      for (std::size_t piece = segments_.size(); piece-- > 0;) {
        for (int unit : segment(piece) ? segment(piece)->units : std::vector<int>{}) {
          const auto index = static_cast<std::size_t>(unit);
          model_units_[index] += weight_gradient_of(gradient, outputs[piece], index);
        }
        gradient = input_gradient_of(gradient, outputs[piece], piece);
      }
      model_ends_.push_back(gradient);
    }
  }

  // The last gradient of a microbatch is a hash of everything before it.
  void require_model() {
    for (int microbatch = 0; microbatch < program_.microbatches; ++microbatch) {
      demand(cell(0, microbatch).input_gradient == model_ends_[static_cast<std::size_t>(microbatch)],
             "microbatch {}: not the model's gradient", microbatch);
      for (std::size_t piece = 0; piece < segments_.size(); ++piece) {
        demand(cell(piece, microbatch).weight_gradient, "microbatch {}: a weight gradient is missing", microbatch);
      }
    }
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const std::string& name = program_.units[unit].name;
      demand(!units_[unit].gathered && !units_[unit].in_island, "{} is gathered at the end", name);
      require_reduced(unit);
    }
  }

  const Program& program_;
  int rank_ = 0;
  std::vector<std::size_t> at_;
  std::vector<std::optional<int>> segments_;              // by piece; nothing for a stage that names none
  std::vector<std::size_t> first_piece_;                  // by stage, and the end
  std::vector<Cell> cells_;                               // by piece, then microbatch
  std::vector<Op> meetings_;                              // of all ranks
  std::vector<std::size_t> met_, arrived_;                // by rank: meetings it is through, and those it has come to
  std::map<std::tuple<int, int, bool>, Value> messages_;  // under way: from, to, forward
  std::map<std::tuple<bool, int, int>, Value> inbox_;     // received: forward, stage, microbatch
  std::vector<Unit> units_;
  std::map<std::size_t, Value> left_;            // by unit: what its tie found of it
  std::vector<Value> model_units_, model_ends_;  // gradients by unit, of the input by microbatch
};

}  // namespace

std::string fault_when_run(const Program& program) {
  try {
    Machine(program).run();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}

}  // namespace weft
