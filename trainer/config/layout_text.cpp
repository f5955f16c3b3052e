#include "trainer/config/layout_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

constexpr std::size_t most_symbols = 100'000;  // more are a typing error, not a model
constexpr int deepest_group = 64;
constexpr std::size_t most_faults = 10;  // with more, the text is no layout at all
constexpr std::string_view accepted =
    "E (embedding), d (dense block), e (MoE block), t (any block), m (predictor), L (head), | or (";

bool is_digit(char symbol) {
  return symbol >= '0' && symbol <= '9';
}

// The character at `offset`, for a message.
std::string character_at(std::string_view text, std::size_t offset) {
  std::size_t end = offset + 1;
  while (end < text.size() && continues_character(text[end])) ++end;
  const auto code = static_cast<unsigned char>(text[offset]);
  return code < 0x20 || code == 0x7f ? fmt::format("the control character {}", code)
                                     : fmt::format("'{}'", text.substr(offset, end - offset));
}

// The text around `offset` with a caret below it, in one line each.
std::string marked(std::string_view text, std::size_t offset) {
  constexpr std::size_t around = 48;
  std::size_t begin = offset > around ? offset - around : 0;
  while (begin > 0 && continues_character(text[begin])) --begin;
  std::size_t end = std::min(text.size(), offset + around);
  while (end < text.size() && continues_character(text[end])) ++end;
  std::string line(text.substr(begin, end - begin));
  for (char& symbol : line) {
    const auto code = static_cast<unsigned char>(symbol);
    if (code < 0x20 || code == 0x7f) symbol = ' ';
  }
  const auto before =
      static_cast<std::size_t>(std::count_if(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(offset - begin),
                                             [](char symbol) { return !continues_character(symbol); }));
  const std::string_view left = begin > 0 ? "..." : "", right = end < text.size() ? "..." : "";
  return fmt::format("\n    {}{}{}\n    {:{}}^", left, line, right, "", left.size() + before);
}

// Recursive descent. A symbol without meaning is noted and skipped. Parsing stops at wrong brackets or counts, since
// the text behind them cannot be understood.
class Parser {
 public:
  Parser(LayoutText& layout, std::size_t text) : layout_(layout), index_(text), text_(layout.texts[text]) {}

  std::vector<LayoutSymbol> parse() { return sequence(0); }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && std::string_view(" ,\t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char symbol) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != symbol) return false;
    ++at_;
    return true;
  }
  void note(std::size_t offset, const std::string& what) {
    layout_.faults.push_back(layout_.fault_at({'|', index_, offset}, what));
    if (layout_.faults.size() >= most_faults) stop_ = true;
  }
  void give_up(std::size_t offset, const std::string& what) {
    note(offset, what);
    stop_ = true;
  }

  std::vector<LayoutSymbol> sequence(int depth) {
    const std::size_t opened = at_ - (depth > 0 ? 1 : 0);
    std::vector<LayoutSymbol> symbols;
    while (!stop_) {
      skip_spaces();
      if (at_ == text_.size()) {
        if (depth > 0) give_up(opened, "this ( is not closed");
        break;
      }
      if (depth > 0 && take(')')) break;
      const std::size_t begin = at_;
      const std::vector<LayoutSymbol> item = read_item(depth);
      const std::size_t times = stop_ ? 0 : repeats(begin);
      if (item.size() * times > most_symbols - symbols.size()) {
        give_up(begin, fmt::format("with its repeats the layout has more than {} symbols", most_symbols));
        break;
      }
      for (std::size_t i = 0; i < times && !item.empty(); ++i) symbols.insert(symbols.end(), item.begin(), item.end());
    }
    return symbols;
  }

  std::vector<LayoutSymbol> read_item(int depth) {
    const std::size_t begin = at_;
    const char symbol = text_[at_++];
    if (std::string_view("EdetmL|").find(symbol) != std::string_view::npos) return {{symbol, index_, begin}};
    if (symbol == '(') return read_group(begin, depth);
    if (symbol == ')') {
      give_up(begin, "this ) closes nothing");
    } else if (symbol == '*') {
      give_up(begin, "a * stands right behind what it repeats, and only once: e*3, (de)*2, ((de)*2)*3");
    } else if (is_digit(symbol)) {
      give_up(begin, "a number stands behind a *: e*3");
    } else {
      while (at_ < text_.size() && continues_character(text_[at_])) ++at_;
      note(begin, fmt::format("{} is no symbol of a layout; accepted: {}", character_at(text_, begin), accepted));
    }
    return {};
  }

  std::vector<LayoutSymbol> read_group(std::size_t begin, int depth) {
    if (depth == deepest_group) {
      give_up(begin, fmt::format("groups are nested more than {} deep", deepest_group));
      return {};
    }
    const std::size_t faults = layout_.faults.size();
    std::vector<LayoutSymbol> group = sequence(depth + 1);
    if (group.empty() && layout_.faults.size() == faults) note(begin, "this group is empty");
    return group;
  }

  // Repeats of the item that began at `item`; 1 if none are written.
  std::size_t repeats(std::size_t item) {
    if (!take('*')) return 1;
    skip_spaces();
    const std::size_t begin = at_;
    std::size_t value = 0;
    while (at_ < text_.size() && is_digit(text_[at_])) {
      value = std::min(most_symbols + 1, value * 10 + static_cast<std::size_t>(text_[at_++] - '0'));
    }
    const std::string repeated = fmt::format("{}", text_[item] == '(' ? "the group" : character_at(text_, item));
    if (at_ == begin) {
      give_up(begin, fmt::format("a number is missing: how often {} is repeated, at least 1", repeated));
    } else if (value == 0) {
      give_up(begin, fmt::format("0 repeats would lose {}: at least 1", repeated));
    } else if (value > most_symbols) {
      give_up(begin, fmt::format("more than {} repeats of {}", most_symbols, repeated));
    }
    return stop_ ? 0 : value;
  }

  LayoutText& layout_;
  std::size_t index_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool stop_ = false;
};

// Checks that the embedding comes first and the head last, each once.
void check_ends(LayoutText& layout) {
  const auto note = [&](const LayoutSymbol& place, const std::string& what) {
    if (layout.faults.size() < most_faults) layout.faults.push_back(layout.fault_at(place, what));
  };
  std::vector<LayoutSymbol> symbols;
  for (const WrittenStage& stage : layout.stages) {
    symbols.insert(symbols.end(), stage.symbols.begin(), stage.symbols.end());
  }
  const auto embedding = std::ranges::find(symbols, 'E', &LayoutSymbol::symbol);
  const auto head = std::ranges::find(symbols, 'L', &LayoutSymbol::symbol);
  for (auto symbol = symbols.begin(); symbol != symbols.end(); ++symbol) {
    if (symbol->symbol == 'E' && symbol != embedding) note(*symbol, "a second E: the model has one embedding");
    if (symbol->symbol == 'L' && symbol != head) note(*symbol, "a second L: the model has one head");
  }
  const WrittenStage &first = layout.stages.front(), &last = layout.stages.back();
  if (embedding == symbols.end()) {
    note(symbols.empty() ? first.opened_by : symbols.front(), "no E before this: a layout begins with the embedding");
  } else if (embedding != symbols.begin()) {
    note(symbols.front(), fmt::format("{} stands before the embedding: E comes first", symbols.front().symbol));
  } else if (first.symbols.empty()) {
    note(first.opened_by,
         "stage 0 is empty and stands before the embedding, where there is nothing to pass on: E comes "
         "first");
  }
  if (head == symbols.end()) {
    note(layout.end(), "no L up to here: a layout ends with the head");
  } else if (const auto behind = head + 1; behind != symbols.end() && behind->symbol != 'L') {
    note(*behind, fmt::format("{} stands behind the head: L comes last", behind->symbol));
  } else if (last.symbols.empty()) {
    note(last.opened_by, fmt::format("stage {}, which begins here, is empty and stands behind the head, where there is "
                                     "nothing to pass on: L comes last",
                                     layout.stages.size() - 1));
  }
}

// The first predictor that stands on a second stage, or block behind one.
std::optional<LayoutFault> predictor_fault(const LayoutText& layout) {
  const WrittenStage* predicts = nullptr;
  for (const WrittenStage& stage : layout.stages) {
    for (const LayoutSymbol& symbol : stage.symbols) {
      const bool ends = symbol.symbol == 'E' || symbol.symbol == 'L';
      if (symbol.symbol == 'm') {
        if (predicts != nullptr && predicts != &stage) {
          return layout.fault_at(symbol, "an m on a second stage: all m stand on one");
        }
        predicts = &stage;
      } else if (predicts != nullptr && !ends) {
        return layout.fault_at(symbol, "a block behind an m: multi-token prediction follows the last block");
      }
    }
  }
  return std::nullopt;
}

LayoutText read_stages(const std::vector<std::string>& texts, bool in_one_text) {
  LayoutText layout{texts, {}, {}};
  for (std::size_t t = 0; t < texts.size(); ++t) {
    layout.stages.push_back({{'|', t, 0}, {}});
    for (const LayoutSymbol& symbol : Parser(layout, t).parse()) {
      if (symbol.symbol != '|') {
        layout.stages.back().symbols.push_back(symbol);
      } else if (in_one_text) {
        layout.stages.push_back({symbol, {}});
      } else {
        layout.faults.push_back(layout.fault_at(symbol, "| parts stages, but each text of a list is one stage"));
        break;
      }
    }
  }
  // The order is judged of symbols that each have a meaning.
  if (layout.faults.empty()) check_ends(layout);
  if (!layout.faults.empty()) return layout;
  if (auto fault = predictor_fault(layout)) layout.faults.push_back(std::move(*fault));
  return layout;
}

// Equal neighbours as x*n if there are at least `least` of them.
std::string runs(const std::string& symbols, std::string_view between, std::size_t least) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < symbols.size(); begin = end) {
    end = std::min(symbols.find_first_not_of(symbols[begin], begin), symbols.size());
    if (!text.empty()) text += between;
    text += end - begin >= least && end - begin > 1 ? fmt::format("{}*{}", symbols[begin], end - begin)
                                                    : symbols.substr(begin, end - begin);
  }
  return text;
}

// Consecutive stages as text, with one '|' behind each.
struct StageRun {
  std::string text;
  std::size_t stages = 0, saved = 0;
};

// The repeat from stage `at` on that saves most characters, if any is not longer than its stages written out. The last
// stage has no '|' behind it and is never part of a repeat.
StageRun longest_repeat(const std::vector<std::string>& stages, std::size_t at) {
  constexpr std::size_t longest_period = 16;
  const std::size_t left = stages.size() - 1 - at;
  StageRun best;
  for (std::size_t period = 1; period <= std::min(longest_period, left / 2); ++period) {
    std::size_t count = period;
    while (count < left && stages[at + count] == stages[at + count - period]) ++count;
    count /= period;
    if (count < 2) continue;
    std::string item;
    for (std::size_t s = at; s < at + period; ++s) item += runs(stages[s], "", 3) + "|";
    const std::string text = fmt::format("({})*{}", item, count);
    if (text.size() > item.size() * count) continue;
    const std::size_t saved = item.size() * count - text.size();
    if (best.stages == 0 || saved > best.saved) best = {text, period * count, saved};
  }
  return best;
}

}  // namespace

LayoutFault LayoutText::fault_at(const LayoutSymbol& place, const std::string& what) const {
  const std::string& text = texts[place.text];
  const auto column = 1 + std::count_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(place.offset),
                                        [](char symbol) { return !continues_character(symbol); });
  const std::string stage = texts.size() > 1 ? fmt::format("stage {}, ", place.text) : "";
  return {place.text, fmt::format("{}column {}: {}{}", stage, column, what, marked(text, place.offset))};
}

LayoutText read_layout(const std::string& text) {
  return read_stages({text}, /*in_one_text=*/true);
}

LayoutText read_layout(const std::vector<std::string>& stages) {
  return read_stages(stages, /*in_one_text=*/false);
}

std::string format_layout(const std::vector<std::string>& stages) {
  std::string text;
  for (std::size_t at = 0; at < stages.size();) {
    const StageRun repeat = longest_repeat(stages, at);
    if (repeat.stages > 0) {
      text += repeat.text;
      at += repeat.stages;
      continue;
    }
    text += runs(stages[at], "", 3);
    if (++at < stages.size()) text += '|';
  }
  return text;
}

std::string spaced_symbols(const std::string& stage) {
  return runs(stage, " ", 2);
}

}  // namespace weft
