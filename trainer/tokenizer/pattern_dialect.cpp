// Oniguruma's expressions in PCRE2's syntax. Both libraries agree on alternatives, groups, lookaround and quantifiers.
// They differ in \s, \w and \v, in the meaning of script names, and in what follows a counted repetition.
#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/tokenizer/pattern.h"

namespace weft {
namespace {

// White_Space. PCRE2's own \s has U+180E too.
constexpr std::string_view oniguruma_space =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
// Oniguruma's \w in a class. PCRE2's own has all of \p{N}, and marks only if they are alphabetic.
constexpr std::string_view oniguruma_word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside a class Oniguruma's \w has six numbers of Latin-1 too.
constexpr std::string_view oniguruma_word_alone =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

constexpr std::array<std::string_view, 41> same_properties = {
    "Any", "Alphabetic", "Uppercase", "Lowercase", "White_Space", "C",  "Cc", "Cf", "Co", "Cs", "L",  "Ll", "Lm", "Lo",
    "Lt",  "Lu",         "M",         "Mc",        "Me",          "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe",
    "Pf",  "Pi",         "Po",        "Ps",        "S",           "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

// In a caseless expression Oniguruma lets one letter match two others ("ss" matches U+00DF); PCRE2 does not.
constexpr std::array<std::string_view, 5> folded_pairs = {"ss", "ff", "fi", "fl", "st"};

class DialectRewriter {
 public:
  DialectRewriter(std::string_view expression, const std::string& place) : in_(expression), place_(place) {}

  std::string rewritten() {
    while (at_ < in_.size()) step();
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::size_t begin, std::size_t length, const char* why) const {
    fail_request("{}: the pattern {} has {} at byte {}: {}", place_, in_, in_.substr(begin, length), begin, why);
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  void step() {
    const char c = in_[at_];
    if (c == '\\') return begin_atom(), escape();
    if (c == '[') return begin_atom(), character_class();
    if (c == '(') return open_group();
    if (c == ')') return close_group();
    if (c == '{') return counted();
    if (c == '*' || c == '+' || c == '?' || c == '|' || c == '^' || c == '$') {
      last_letter_ = 0;
      if (c == '|') atom_ = std::string::npos;
      out_.push_back(c);
      ++at_;
      return;
    }
    begin_atom();
    literal();
  }

  void begin_atom() { atom_ = out_.size(); }

  void literal() {
    const char letter = static_cast<char>(std::tolower(static_cast<unsigned char>(in_[at_])));
    if (caseless_.back() && last_letter_ != 0) {
      const std::array<char, 2> pair{last_letter_, letter};
      const std::string_view both(pair.data(), pair.size());
      if (std::find(folded_pairs.begin(), folded_pairs.end(), both) != folded_pairs.end()) {
        refuse(at_ - 1, 2, "without regard to case it would match a ligature too, which is not supported");
      }
    }
    last_letter_ = letter;
    out_.push_back(in_[at_++]);
    while (at_ < in_.size() && continues_character(in_[at_])) out_.push_back(in_[at_++]);
  }

  void open_group() {
    constexpr std::array<std::string_view, 7> openings = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    last_letter_ = 0;
    bool caseless = caseless_.back();
    std::string_view opening = "(";
    if (next_is("(?i)") && at_ == 0) {
      caseless_.back() = true;
      out_ += "(?i)";
      at_ += 4;
      return;
    }
    if (next_is("(?") || next_is("(*")) {
      const auto known = std::find_if(openings.begin(), openings.end(), [&](auto each) { return next_is(each); });
      if (known == openings.end()) refuse(at_, 4, "this kind of group is not supported");
      opening = *known;
      caseless = caseless || opening == "(?i:";
    }
    group_begins_.push_back(out_.size());
    caseless_.push_back(caseless);
    out_ += opening;
    at_ += opening.size();
    atom_ = std::string::npos;
  }

  void close_group() {
    last_letter_ = 0;
    if (group_begins_.empty()) refuse(at_, 1, "no group is open");
    atom_ = group_begins_.back();
    group_begins_.pop_back();
    caseless_.pop_back();
    out_.push_back(')');
    ++at_;
  }

  // In Ruby's syntax {n,m}+ repeats the repetition, {n}? makes it optional, and {,m} begins at 0.
  void counted() {
    const std::size_t end = in_.find('}', at_);
    const std::string_view counts = in_.substr(at_ + 1, end == std::string_view::npos ? 0 : end - at_ - 1);
    const bool numbers =
        !counts.empty() && counts != "," && std::count(counts.begin(), counts.end(), ',') <= 1 &&
        std::all_of(counts.begin(), counts.end(), [](char c) { return c == ',' || (c >= '0' && c <= '9'); });
    if (!numbers || atom_ == std::string::npos) refuse(at_, 1, "it repeats nothing; write \\{ for the character");
    last_letter_ = 0;
    out_ += counts.front() == ',' ? "{0" : "{";
    out_.append(counts).push_back('}');
    at_ = end + 1;
    const bool once_more = next_is("+"), optional = next_is("?") && counts.find(',') == std::string_view::npos;
    if (!once_more && !optional) return;
    out_.insert(atom_, "(?:");
    out_.append(once_more ? ")+" : ")?");
    ++at_;
    if (next_is("+") || next_is("?")) refuse(at_, 1, "a third repetition is not supported");
  }

  void character_class() {
    const std::size_t begin = at_++;
    last_letter_ = 0;
    out_.push_back('[');
    if (next_is("^")) {
      out_.push_back('^');
      ++at_;
    }
    if (next_is("]")) refuse(begin, at_ + 1 - begin, "a class begins with ]; write \\]");
    in_class_ = true;
    // A class inside adds its members, so its brackets may go, unless a hyphen beside them would make another range.
    bool inside = false;
    while (at_ < in_.size() && (inside || in_[at_] != ']')) {
      const bool opens = in_[at_] == '[', closes = in_[at_] == ']';
      if (opens && (inside || next_is("[^") || next_is("[:") || next_is("[]"))) {
        refuse(at_, 1, "this class inside a class is not supported; write \\[ for the character");
      }
      const bool hyphen = (out_.back() == '-' && !out_.ends_with("\\-")) || in_.substr(at_ + 1).starts_with('-');
      if ((opens || closes) && hyphen) {
        refuse(at_, 1, "a hyphen stands beside a class inside a class; write \\- for the character");
      }
      if (next_is("&&")) refuse(at_, 2, "the intersection of classes is not supported");
      if (opens || closes) {
        inside = opens;
        ++at_;
      } else if (in_[at_] == '\\') {
        escape();
      } else {
        out_.push_back(in_[at_++]);
      }
    }
    in_class_ = false;
    if (at_ == in_.size()) refuse(begin, at_ - begin, "the class is not closed");
    out_.push_back(']');
    ++at_;
  }

  void add_set(std::string_view members, bool negated) {
    if (!in_class_) {
      out_.append(negated ? "[^" : "[").append(members).push_back(']');
    } else if (!negated) {
      out_.append(members);
    } else if (members == oniguruma_space) {
      out_.append("\\P{White_Space}");
    } else {
      refuse(at_ - 2, 2, "it is not supported inside a class");
    }
  }

  void escape() {
    last_letter_ = 0;
    if (at_ + 1 >= in_.size()) refuse(at_, 1, "nothing follows");
    const char c = in_[at_ + 1];
    at_ += 2;
    if (c == 's' || c == 'S') return add_set(oniguruma_space, c == 'S');
    if (c == 'w' || c == 'W') return add_set(in_class_ ? oniguruma_word : oniguruma_word_alone, c == 'W');
    if (c == 'p' || c == 'P') return property(c == 'P');
    if (c == 'x' || c == 'u') return code(c);
    if (c == 'd') return void(out_ += "\\p{Nd}");
    if (c == 'D') return void(out_ += "\\P{Nd}");
    if (c == 'v') return void(out_ += "\\x0b");
    const bool control = c == 'n' || c == 'r' || c == 't' || c == 'f' || c == 'a' || c == 'e';
    const bool anchor = !in_class_ && (c == 'A' || c == 'z' || c == 'Z');
    if (!control && !anchor && std::ispunct(static_cast<unsigned char>(c)) == 0 && c != ' ') {
      refuse(at_ - 2, 2, "this escape is not supported");
    }
    out_.push_back('\\');
    out_.push_back(c);
  }

  void code(char kind) {
    const std::size_t begin = at_ - 2;
    const bool braces = kind == 'x' && next_is("{");
    const std::size_t first = at_ + (braces ? 1 : 0), most = braces ? 8 : kind == 'u' ? 4 : 2;
    std::size_t last = first;
    while (last < in_.size() && last - first < most && std::isxdigit(static_cast<unsigned char>(in_[last])) != 0)
      ++last;
    const bool closed = !braces || (last < in_.size() && in_[last] == '}');
    const unsigned long value =
        last > first ? std::stoul(std::string(in_.substr(first, last - first)), nullptr, 16) : 0;
    // In Ruby's syntax \x80 to \xff are bytes, not characters.
    const bool whole = last > first && (kind != 'u' || last - first == 4) && (kind != 'x' || braces || value < 0x80);
    if (!closed || !whole) refuse(begin, last + 1 - begin, "it is not the code of a character");
    out_ += fmt::format("\\x{{{:x}}}", value);
    at_ = last + (braces ? 1 : 0);
  }

  void property(bool negated) {
    const std::size_t begin = at_ - 2, end = in_.find('}', at_);
    if (!next_is("{") || end == std::string_view::npos) refuse(begin, 3, "the name of a property stands in braces");
    std::string_view name = in_.substr(at_ + 1, end - at_ - 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    if (name.empty() || !std::all_of(name.begin(), name.end(), plain))
      refuse(begin, end + 1 - begin, "it names no property");
    const bool same = std::find(same_properties.begin(), same_properties.end(), name) != same_properties.end();
    // Without "sc:" PCRE2 takes the name of a script for its extensions.
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', same ? "" : "sc:", name);
    at_ = end + 1;
  }

  std::string_view in_;
  const std::string& place_;
  std::string out_;
  std::size_t at_ = 0;
  std::size_t atom_ = std::string::npos;  // the beginning, in out_, of the part that a repetition would repeat
  std::vector<std::size_t> group_begins_;
  std::vector<bool> caseless_ = {false};
  char last_letter_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string to_pcre2(std::string_view expression, const std::string& place) {
  if (expression.find('\0') != std::string_view::npos) fail_request("{}: a pattern has a NUL byte", place);
  return DialectRewriter(expression, place).rewritten();
}

}  // namespace weft
