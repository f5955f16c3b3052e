#include "trainer/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

bool is_all_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
}

struct ApplyStep {
  std::string_view text;
  std::size_t most;  // bytes of the result
  PatternScratch& scratch;

  std::optional<std::string> operator()(NormalForm form) const {
    if (is_all_ascii(text)) return std::nullopt;
    return to_normal_form(text, form);
  }
  std::optional<std::string> operator()(const LowerCaseText&) const { return to_lower_case(text); }
  std::optional<std::string> operator()(const PrependText& step) const {
    if (text.empty()) return std::nullopt;
    return step.text + std::string(text);
  }
  std::optional<std::string> operator()(const StripText& step) const {
    const std::string_view left = step.left ? without_leading(text, is_white_space) : text;
    return std::string(step.right ? without_trailing(left, is_white_space) : left);
  }
  std::optional<std::string> operator()(const ReplaceText& step) const {
    return replaced_text(text, step, most, scratch);
  }
};

}  // namespace

Pattern read_pattern(JsonFields& fields) {
  const std::string place = fields.place_of("pattern");
  const TokenizerJson* json = fields.find("pattern");
  if (json == nullptr) fail_request("{} is missing", place);
  JsonFields kinds(*json, place);
  if (json->size() != 1 || (!json->contains("String") && !json->contains("Regex"))) {
    fail_request("{} is neither {{\"String\": ...}} nor {{\"Regex\": ...}}", place);
  }
  const bool literal = json->contains("String");
  const std::string text = kinds.text(literal ? "String" : "Regex");
  fields.set_meaning("pattern", kinds.meaning());
  return literal ? Pattern::literal(text, place) : Pattern::regex(text, place);
}

ReplaceText read_replacement(JsonFields& fields) {
  return {read_pattern(fields), fields.text("content")};
}

void check_grown_text(std::size_t bytes, std::size_t most) {
  if (bytes > most) {
    fail_request("the steps of the tokenizer would lengthen a part of the text to more than {} bytes", most);
  }
}

std::string replaced_text(std::string_view text, const ReplaceText& replacement, std::size_t most,
                          PatternScratch& scratch) {
  std::string result;
  result.reserve(text.size());
  replacement.pattern.each_range(text, scratch, [&](std::size_t begin, std::size_t end, bool is_match) {
    result.append(is_match ? std::string_view(replacement.content) : text.substr(begin, end - begin));
    check_grown_text(result.size(), most);
  });
  return result;
}

TextNormalizer::TextNormalizer(const TokenizerJson* json, const std::string& place) {
  meaning_ = read_steps(json, place, "normalizers", [&](JsonFields& fields, const std::string& type) {
    if (const auto form = value_named<NormalForm>(type)) {
      steps_.emplace_back(*form);
    } else if (type == "Lowercase") {
      steps_.emplace_back(LowerCaseText{});
    } else if (type == "Prepend") {
      steps_.emplace_back(PrependText{fields.text("prepend")});
    } else if (type == "Strip") {
      const bool left = fields.flag("strip_left"), right = fields.flag("strip_right");
      steps_.emplace_back(StripText{left, right});
    } else if (type == "Replace") {
      steps_.emplace_back(read_replacement(fields));
    } else {
      refuse_step(fields, type, "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence");
    }
  });
}

std::optional<std::string> TextNormalizer::normalized(std::string_view text, PatternScratch& scratch) const {
  const std::size_t most = most_grown_bytes(text.size());
  std::optional<std::string> result;
  for (const NormalizerStep& step : steps_) {
    std::optional<std::string> changed = std::visit(ApplyStep{result ? *result : text, most, scratch}, step);
    if (!changed) continue;
    check_grown_text(changed->size(), most);
    result = std::move(changed);
  }
  return result;
}

}  // namespace weft
