// Reads XML as strictly as tests of pictures need: throws where a parser would refuse the document. Elements in the
// order in which they open.
#pragma once

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct MarkupElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;    // of the element itself, references resolved
  std::size_t parent;  // place in the list; of the root its own
  double number(const std::string& attribute) const { return std::stod(attributes.at(attribute)); }
};

class MarkupReader {
 public:
  explicit MarkupReader(std::string_view text) : text_(text) {}

  std::vector<MarkupElement> read() {
    while (at_ < text_.size()) {
      if (text_[at_] == '<') {
        tag();
        continue;
      }
      const std::string content = characters('<');
      if (!open_.empty()) {
        elements_[open_.back()].text += content;
      } else if (content.find_first_not_of(" \n") != std::string::npos) {
        refuse("text outside the root");
      }
    }
    if (!open_.empty()) refuse(fmt::format("<{}> is not closed", elements_[open_.back()].name));
    if (elements_.empty()) refuse("no element");
    return elements_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error(fmt::format("{} at {}: {}", what, at_, text_.substr(at_, 60)));
  }

  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-')) ++at_;
    if (begin == at_) refuse("no name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Up to `end`, which is not taken.
  std::string characters(char end) {
    std::string result;
    while (at_ < text_.size() && text_[at_] != end) {
      const char c = text_[at_];
      if (c == '<' || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')) refuse("a character");
      if (c != '&') {
        result += c;
        ++at_;
      } else if (take("&amp;")) {
        result += '&';
      } else if (take("&lt;")) {
        result += '<';
      } else if (take("&gt;")) {
        result += '>';
      } else if (take("&quot;")) {
        result += '"';
      } else if (take("&#39;")) {
        result += '\'';
      } else {
        refuse("a reference");
      }
    }
    return result;
  }

  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  void tag() {
    if (take("</")) {
      const std::string closed = name();
      if (open_.empty() || elements_[open_.back()].name != closed || !take(">")) refuse("a closing tag");
      open_.pop_back();
      return;
    }
    take("<");
    if (open_.empty() && !elements_.empty()) refuse("a second root");
    elements_.push_back({name(), {}, "", open_.empty() ? 0 : open_.back()});
    const std::size_t own = elements_.size() - 1;
    for (blanks(); !take(">"); blanks()) {
      if (take("/>")) return;
      const std::string attribute = name();
      if (!take("=\"")) refuse("an attribute");
      if (!elements_[own].attributes.emplace(attribute, characters('"')).second) refuse("an attribute twice");
      if (!take("\"")) refuse("the end of an attribute");
    }
    open_.push_back(own);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<MarkupElement> elements_;
  std::vector<std::size_t> open_;
};

}  // namespace weft
