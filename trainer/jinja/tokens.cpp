#include "trainer/jinja/tokens.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft::jinja {
namespace {

constexpr std::string_view digits = "0123456789";
constexpr std::string_view letters = "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

constexpr std::pair<std::string_view, int> operators[] = {{"or", 0}, {"and", 1}, {"+", 2},  {"-", 2}, {"~", 3},
                                                          {"*", 4},  {"/", 4},   {"//", 4}, {"%", 4}, {"**", 4}};

bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (!source.substr(i).starts_with("\r\n")) source_ += source[i] == '\r' ? '\n' : source[i];
    }
    if (source_.ends_with('\n')) source_.pop_back();
    if (replace_malformed(source_)) refuse("the template is no UTF-8");
  }

  std::vector<Token> all() {
    while (at_ < source_.size()) {
      std::size_t open = at_;
      while (open < source_.size() && !at(open, "{{") && !at(open, "{%") && !at(open, "{#")) ++open;
      data(open);
      if (at_ == source_.size()) break;
      const bool output = at(at_, "{{"), comment = at(at_, "{#");
      if (!comment) add(output ? TokenKind::open_output : TokenKind::open_tag);
      go_to(at_ + (at(at_ + 2, "-") || at(at_ + 2, "+") ? 3 : 2));
      if (comment) {
        while (!skip_end("#}")) next();
      } else {
        tag(output);
      }
    }
    add(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { fail_request("{}:{}: {}", name_, line_, why); }
  std::string_view from(std::size_t place) const { return std::string_view(source_).substr(place); }
  bool at(std::size_t place, std::string_view text) const {
    return place <= source_.size() && from(place).starts_with(text);
  }
  void add(TokenKind kind, std::string_view text = {}) {
    tokens_.push_back({kind, line_, std::string(text)});
    if (kind != TokenKind::name && kind != TokenKind::symbol) return;
    for (const auto& [name, level] : operators) {
      if (name == text) tokens_.back().level = level;
    }
  }
  void go_to(std::size_t place) {
    line_ += static_cast<int>(std::ranges::count(from(at_).substr(0, place - at_), '\n'));
    at_ = place;
  }
  // The next byte of something that ends before the template does.
  char next() {
    if (at_ == source_.size()) refuse("a tag, a comment or a text has no end");
    go_to(at_ + 1);
    return source_[at_ - 1];
  }
  void skip_space(std::size_t place) { go_to(source_.size() - stripped_left(from(place)).size()); }

  // The text before the tag at `open`, without the white space that the tag takes away.
  void data(std::size_t open) {
    std::string_view text = from(at_).substr(0, open - at_);
    if (at(open + 2, "-")) {
      text = stripped_right(text);
    } else if (open < source_.size() && !at(open, "{{") && !at(open + 2, "+")) {
      const std::size_t line = text.rfind('\n') + 1;  // 0 without an end of a line
      const bool begins = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (begins && stripped_left(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::data, text);
    go_to(open);
  }

  // Goes behind the end of a tag, its sign and the white space that it takes away.
  bool skip_end(std::string_view end) {
    const bool output = end == "}}", strips = at(at_, "-"), keeps = !output && at(at_, "+");
    const std::size_t place = at_ + (strips || keeps ? 1 : 0), behind = place + end.size();
    if (!at(place, end)) return false;
    if (strips) {
      skip_space(behind);
    } else {
      go_to(behind + (!output && !keeps && at(behind, "\n") ? 1 : 0));
    }
    return true;
  }

  void tag(bool output) {
    for (int brackets = 0;;) {
      skip_space(at_);
      const int line = line_;
      if (brackets == 0 && skip_end(output ? "}}" : "%}")) {
        tokens_.push_back({output ? TokenKind::close_output : TokenKind::close_tag, line});
        return;
      }
      const std::size_t begin = at_;
      const std::string_view first(&source_[begin], 1);
      const auto run_of = [&](std::string_view characters) {
        go_to(std::min(source_.find_first_not_of(characters, begin), source_.size()));
        return from(begin).substr(0, at_ - begin);
      };
      next();
      brackets += first.find_first_of("([{") == 0 ? 1 : first.find_first_of(")]}") == 0 ? -1 : 0;
      if (first == "\"" || first == "'") {
        text(first[0]);
      } else if (digits.find(first) != std::string_view::npos) {
        add(TokenKind::integer, run_of(digits));
      } else if (letters.find(first) != std::string_view::npos) {
        add(TokenKind::name, run_of(letters));
      } else if (first.find_first_of("+-*/%~()[]{}<>=!.:|,") == 0) {
        const bool two = first.find_first_of("=!<>/*") == 0 && (at(at_, first == "/" || first == "*" ? first : "="));
        if (two) next();
        add(TokenKind::symbol, from(begin).substr(0, two ? 2 : 1));
      } else {
        refuse(fmt::format("'{}' is not expected", from(begin).substr(0, code_point_at(source_, begin).bytes)));
      }
    }
  }

  // The rest of a quoted text.
  void text(char quote) {
    constexpr std::string_view escapes = "nrt\\'\"", meanings = "\n\r\t\\'\"";
    std::string text;
    for (char c = next(); c != quote; c = next()) {
      const std::size_t escape = c == '\\' ? escapes.find(next()) : 0;
      if (escape == std::string_view::npos)
        refuse(fmt::format("a text has an escape that Weft does not know, \\{}", source_[at_ - 1]));
      text += c == '\\' ? meanings[escape] : c;
    }
    add(TokenKind::text, text);
  }

  const std::string& name_;
  std::string source_ = {};
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_ = {};
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& name) {
  return Lexer(source, name).all();
}

std::string_view stripped_left(std::string_view text) {
  return without_leading(text, is_space);
}

std::string_view stripped_right(std::string_view text) {
  return without_trailing(text, is_space);
}

std::string_view up_to_space(std::string_view text) {
  return text.substr(0, text.size() - without_leading(text, [](char32_t c) { return !is_space(c); }).size());
}

}  // namespace weft::jinja
