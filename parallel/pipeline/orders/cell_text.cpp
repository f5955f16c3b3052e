// The strict reader of one cell, before the tables give meaning to its numbers and names. A regular expression anchored
// only at the start would take `0BW0` for a backward without microbatch. Here every character has a meaning, or the
// cell is refused.
#include "parallel/pipeline/orders/order_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

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
  return is_compute(op) || is_message(op) || is_row_exchange(op) || takes_kept(op);
}

constexpr std::string_view pair_kind = "OVERLAP_F_B";

// action := [stage] kind [microbatch ['.' part '/' parts]] ['(' name ')']
class ActionReader {
 public:
  explicit ActionReader(std::string_view text) : text_(text), rest_(text) {}

  CellAction read() {
    if (text_.empty()) wrong("it is empty");
    CellAction result{.text = text_};
    Action& action = result.action;
    action.stage = number("stage");
    action.op = kind();
    action.microbatch = number("microbatch");
    action.part = part();
    result.name = parenthesis();
    if (!rest_.empty()) wrong(fmt::format("\"{}\" is left over behind the action", rest_));
    require_shape(action, result.name.has_value());
    return result;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const { fail_cell(text_, what); }

  template <typename Predicate>
  std::string_view take_while(Predicate predicate) {
    const auto end = std::ranges::find_if_not(rest_, predicate);
    const auto taken = rest_.substr(0, end - rest_.begin());
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

  ComputePart part() {
    if (!rest_.starts_with('.')) return {};
    rest_.remove_prefix(1);
    const std::optional<int> index = number("part");
    const bool slash = rest_.starts_with('/');
    if (slash) rest_.remove_prefix(1);
    const std::optional<int> count = slash ? number("number of parts") : std::nullopt;
    if (!index || !count || *index < 1 || *index > *count || *count < 2 || *count > most_parts) {
      wrong("a part of a computation is written .1/3 behind the microbatch");
    }
    return {static_cast<std::uint8_t>(*index - 1), static_cast<std::uint8_t>(*count)};
  }

  Op kind() {
    const std::string_view letters = take_while(is_kind_letter);
    if (letters.empty()) {
      wrong(rest_.empty() ? "a kind such as F is missing" : fmt::format("expected a kind such as F at \"{}\"", rest_));
    }
    if (const auto op = value_named<Op>(letters)) return *op;
    wrong(fmt::format("kind \"{}\" is unknown; the kinds of an order are F, B, I, W and {}{}", letters, pair_kind,
                      letters == "BW" ? " (PyTorch once wrote BW for B, and B for I)" : ""));
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

  void require_shape(const Action& action, bool has_name) const {
    const std::string_view kind = name_of(action.op);
    const bool has_stage = action.stage.has_value();
    if (takes_stage(action.op) != has_stage) {
      wrong(has_stage ? fmt::format("{} takes no stage", kind)
                      : fmt::format("{} needs its stage in front, as in 0{}", kind, kind));
    }
    if (takes_microbatch(action.op) != action.microbatch.has_value()) {
      wrong(action.microbatch ? fmt::format("{} takes no microbatch", kind)
                              : fmt::format("{} needs its microbatch behind it, as in 0{}0", kind, kind));
    }
    if (action.part.count > 1 ? !has_name || (!is_compute(action.op) && !is_row_exchange(action.op))
                              : is_row_exchange(action.op)) {
      wrong(fmt::format("parts are those of a segment's computation or of its exchanges of rows, which {} is not",
                        text_));
    }
    if (has_name && (is_message(action.op) || !takes_stage(action.op))) {
      wrong(fmt::format("{} takes no name in parentheses", kind));
    }
  }

  static constexpr int most_parts = 255;

  std::string_view text_, rest_;
};

// pair := '(' action [';' action] ')' OVERLAP_F_B
std::vector<CellAction> read_pair(std::string_view cell) {
  const std::string_view inside = cell.substr(1, cell.size() - pair_kind.size() - 2);
  const std::size_t semicolon = inside.find(';');
  std::vector<CellAction> both = {ActionReader(trimmed(inside.substr(0, semicolon))).read()};
  if (semicolon != std::string_view::npos) both.push_back(ActionReader(trimmed(inside.substr(semicolon + 1))).read());
  for (CellAction& half : both) {
    half.action.overlapped = true;
    if (hands_on(half.action.op) || (half.action.op == Op::recompute && both.size() == 1)) continue;
    fail_cell(cell, fmt::format("{} cannot be overlapped; F, B and I can", name_of(half.action.op)));
  }
  if (both.size() == 2 && !may_overlap(both[0].action, both[1].action)) {
    fail_cell(cell, "a pair is a forward and then a backward of another microbatch, as in (0F3;3B1)OVERLAP_F_B");
  }
  return both;
}

}  // namespace

void fail_cell(std::string_view cell, const std::string& what) {
  fail_request("cell \"{}\": {}", cell, what);
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<CellAction> read_cell(std::string_view cell) {
  if (!cell.starts_with('(')) return {ActionReader(cell).read()};
  if (!cell.ends_with(fmt::format("){}", pair_kind))) {
    fail_cell(cell, "an overlapped pair is written (0F3;3B1)OVERLAP_F_B");
  }
  return read_pair(cell);
}

}  // namespace weft
