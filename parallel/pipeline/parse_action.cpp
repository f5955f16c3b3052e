// The strict reader of one cell. A regular expression anchored at the start alone would take `0BW0` for a backward of
// no microbatch; here every character has a meaning or the cell is refused.
#include <algorithm>
#include <array>
#include <charconv>

#include "parallel/pipeline/exchange.h"
#include "parallel/pipeline/text.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::array all_ops = {Op::forward,          Op::backward,         Op::backward_input, Op::backward_weight,
                                Op::unshard,          Op::unshard_island,   Op::reshard,        Op::reshard_island,
                                Op::scatter_gradient, Op::reduce_gradient,  Op::send_forward,   Op::receive_forward,
                                Op::send_backward,    Op::receive_backward, Op::gradient_norm,  Op::optimizer_step};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_kind_letter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

bool takes_stage(Op op) {
  return op != Op::gradient_norm && op != Op::optimizer_step;
}
bool takes_microbatch(Op op) {
  return is_compute(op) || is_send(op) || is_receive(op);
}
bool takes_unit(Op op) {
  return is_gather(op) || is_reshard(op) || is_reduction(op);
}

// cell := [stage] kind [microbatch] ['(' name ')']
class CellReader {
 public:
  CellReader(const ProgramTables& tables, std::string_view cell) : tables_(tables), cell_(cell), rest_(cell) {}

  Action read() {
    if (cell_.empty()) wrong("it is empty");
    if (cell_.find("OVERLAP") != std::string_view::npos) wrong("overlapped pairs are not supported");
    const std::optional<int> stage = number("stage");
    action_.op = kind();
    action_.microbatch = number("microbatch");
    const std::optional<std::string_view> name = parenthesis();
    if (!rest_.empty()) wrong(fmt::format("\"{}\" is left over behind the action", rest_));
    require_shape(stage.has_value(), name.has_value());
    if (stage) set_stage(*stage);
    if (name) set_name(*name);
    set_payload();
    return action_;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const { fail_request("cell \"{}\": {}", cell_, what); }

  template <typename Predicate>
  std::string_view take_while(Predicate predicate) {
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), predicate);
    const auto taken = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::optional<int> number(const char* what) {
    const std::string_view digits = take_while(is_digit);
    if (digits.empty()) return std::nullopt;
    int value = 0;
    if (std::from_chars(digits.begin(), digits.end(), value).ec != std::errc()) {
      wrong(fmt::format("{} {} is too large", what, digits));
    }
    if (digits.size() > 1 && digits.front() == '0') wrong(fmt::format("{} {} has a leading zero", what, digits));
    return value;
  }

  Op kind() {
    const std::string_view letters = take_while(is_kind_letter);
    if (letters.empty()) {
      wrong(rest_.empty() ? "a kind such as F is missing" : fmt::format("expected a kind such as F at \"{}\"", rest_));
    }
    std::string known;
    for (Op op : all_ops) {
      if (name_of(op) == letters) return op;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name_of(op));
    }
    wrong(fmt::format("kind \"{}\" is unknown; the kinds are {}", letters, known));
  }

  std::optional<std::string_view> parenthesis() {
    if (rest_.empty() || rest_.front() != '(') return std::nullopt;
    const std::size_t end = rest_.find(')');
    if (end == std::string_view::npos) wrong("the parenthesis is not closed");
    const std::string_view name = rest_.substr(1, end - 1);
    if (name.empty()) wrong("the parenthesis names nothing");
    rest_.remove_prefix(end + 1);
    return name;
  }

  void require_shape(bool has_stage, bool has_name) const {
    const std::string_view kind = name_of(action_.op);
    if (takes_stage(action_.op) != has_stage) {
      wrong(has_stage ? fmt::format("{} takes no stage", kind)
                      : fmt::format("{} needs its stage in front, as in 0{}", kind, kind));
    }
    if (takes_microbatch(action_.op) != action_.microbatch.has_value()) {
      wrong(action_.microbatch ? fmt::format("{} takes no microbatch", kind)
                               : fmt::format("{} needs its microbatch behind it, as in 0{}0", kind, kind));
    }
    if (has_name && !is_compute(action_.op) && !takes_unit(action_.op)) {
      wrong(fmt::format("{} takes no name in parentheses", kind));
    }
  }

  void set_stage(int stage) {
    if (stage >= static_cast<int>(tables_.stages.size())) {
      wrong(fmt::format("stage {} does not exist; there are {} stages, counted from 0", stage, tables_.stages.size()));
    }
    action_.stage = stage;
  }

  template <typename Entry>
  int index_of(const std::vector<Entry>& entries, std::string_view name, const char* what) const {
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
    if (entry == entries.end()) wrong(fmt::format("there is no {} named \"{}\"", what, name));
    if (entry->stage != *action_.stage) {
      wrong(fmt::format("{} {} belongs to stage {}, not {}", what, name, entry->stage, *action_.stage));
    }
    return static_cast<int>(entry - entries.begin());
  }

  void set_name(std::string_view name) {
    if (is_compute(action_.op)) {
      action_.segment = index_of(tables_.segments, name, "segment");
    } else {
      action_.unit = index_of(tables_.units, name, "unit");
    }
  }

  // Peers and bytes are not written: the tables say them.
  void set_payload() {
    if (is_send(action_.op) || is_receive(action_.op)) {
      const int other = other_stage(action_.op, *action_.stage);
      if (other < 0 || other >= static_cast<int>(tables_.stages.size())) {
        wrong(fmt::format("stage {} has no neighbour on that side", *action_.stage));
      }
      action_ = exchange_action(tables_, action_.op, *action_.stage, *action_.microbatch);
      if (*action_.peer == tables_.stages[static_cast<std::size_t>(*action_.stage)].rank) {
        wrong(fmt::format("stages {} and {} run on one rank, which needs no exchange", *action_.stage, other));
      }
    }
    if (!takes_unit(action_.op) || is_reshard(action_.op)) return;
    for (std::size_t i = 0; i < tables_.units.size(); ++i) {
      const ProgramUnit& unit = tables_.units[i];
      const bool meant = action_.unit ? *action_.unit == static_cast<int>(i) : unit.stage == *action_.stage;
      if (!meant) continue;
      if (is_reduction(action_.op) && !unit.frozen) action_.bytes += unit.reduce_bytes;
      if (is_gather(action_.op) && !unit.replicated) action_.bytes += unit.gather_bytes;
    }
  }

  const ProgramTables& tables_;
  std::string_view cell_, rest_;
  Action action_;
};

}  // namespace

Action parse_action(const ProgramTables& tables, std::string_view cell) {
  return CellReader(tables, cell).read();
}

}  // namespace weft
