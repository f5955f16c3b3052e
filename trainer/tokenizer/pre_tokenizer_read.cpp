// Reads a pre-tokenizer of tokenizer.json.
#include <fmt/ranges.h>

#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/normalizer.h"
#include "trainer/tokenizer/pattern.h"
#include "trainer/tokenizer/pre_tokenizer.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

// As the library `unicode_categories` of Rust, which `tokenizers` asks: the punctuation of ASCII, symbols included, and
// that of Unicode 8. The excluded characters came later; two have become symbols since.
constexpr std::string_view package_punctuation =
    R"([!-/:-@\[-`{-~\x{166d}\x{111c9}]|(?![\x{61d}\x{9fd}\x{a76}\x{c77}\x{c84}\x{1b7d}-\x{1b7e}\x{2e43}-\x{2e4f})"
    R"(\x{2e52}-\x{2e5d}\x{10ead}\x{10f55}-\x{10f59}\x{10f86}-\x{10f89}\x{1144b}-\x{1144f}\x{1145a}-\x{1145b}\x{1145d})"
    R"(\x{11660}-\x{1166c}\x{116b9}\x{1183b}\x{11944}-\x{11946}\x{119e2}\x{11a3f}-\x{11a46}\x{11a9a}-\x{11a9c})"
    R"(\x{11a9e}-\x{11aa2}\x{11c41}-\x{11c45}\x{11c70}-\x{11c71}\x{11ef7}-\x{11ef8}\x{11fff}\x{12ff1}-\x{12ff2})"
    R"(\x{16e97}-\x{16e9a}\x{16fe2}\x{1e95e}-\x{1e95f}])\p{P})";

template <typename Enum>
Enum read_named(JsonFields& fields, const std::string& name, std::optional<std::string> otherwise) {
  const std::string text = fields.text(name, std::move(otherwise));
  if (const auto value = value_named<Enum>(text)) return *value;
  fail_request("{} is {}; known are {}", fields.place_of(name), shown_value(text), fmt::join(names_of_all<Enum>, ", "));
}

SplitStep read_split(JsonFields& fields, TokenizerJson& meaning) {
  Pattern pattern = read_pattern(fields, meaning);
  const SplitBehavior behavior = read_named<SplitBehavior>(fields, "behavior", std::nullopt);
  return SplitStep{std::move(pattern), behavior, fields.flag("invert", false)};
}

ByteLevelStep read_byte_level(JsonFields& fields) {
  ByteLevelStep step{fields.flag("add_prefix_space", true), std::nullopt};
  if (fields.flag("use_regex", true)) step.pattern = Pattern::regex(gpt2_word_pattern, fields.place());
  fields.ignore("trim_offsets");
  return step;
}

}  // namespace

MetaspaceStep read_metaspace(JsonFields& fields, TokenizerJson& meaning) {
  MetaspaceStep metaspace;
  metaspace.replacement = fields.character("replacement");
  metaspace.scheme = read_named<PrependScheme>(fields, "prepend_scheme", "always");
  const TokenizerJson* prefix = fields.find("add_prefix_space");
  const bool none = prefix != nullptr && !fields.flag("add_prefix_space");
  if (none && metaspace.scheme != PrependScheme::never) {
    fail_request("{} is false, but prepend_scheme is {}", fields.place_of("add_prefix_space"),
                 name_of(metaspace.scheme));
  }
  if (fields.flag("split", true)) metaspace.split = Pattern::literal(metaspace.replacement, fields.place());
  fields.ignore("str_rep");
  meaning.update({{"type", "Metaspace"},
                  {"replacement", metaspace.replacement},
                  {"prepend_scheme", name_of(metaspace.scheme)},
                  {"split", metaspace.split.has_value()}});
  return metaspace;
}

// The scheme "first" asks for the offset of a piece in the text, which is known as long as pieces are parts of it.
void PreTokenizer::check_order(const std::string& place) const {
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&steps_[i]);
    if (metaspace == nullptr || metaspace->scheme != PrependScheme::first) continue;
    if (!std::holds_alternative<SplitStep>(steps_[i - 1])) {
      fail_request("{}: a Metaspace with prepend_scheme first behind a step that changes the text is not supported",
                   place);
    }
  }
}

PreTokenizer::PreTokenizer(const TokenizerJson* json, const std::string& place) {
  meaning_ = read_steps(
      json, place, "pretokenizers", [&](JsonFields& fields, const std::string& type, TokenizerJson& meaning) {
        const auto add_split = [&](std::string_view pattern, SplitBehavior behavior, bool invert) {
          steps_.emplace_back(SplitStep{Pattern::regex(pattern, fields.place()), behavior, invert});
        };
        if (type == "Split") {
          steps_.emplace_back(read_split(fields, meaning));
          meaning.update({{"behavior", fields.meaning()["behavior"]}, {"invert", fields.meaning()["invert"]}});
        } else if (type == "ByteLevel") {
          steps_.emplace_back(read_byte_level(fields));
          meaning.update(fields.meaning());
        } else if (type == "Digits") {
          const bool individual = fields.flag("individual_digits");
          add_split(R"(\p{N})", individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
          meaning.update(fields.meaning());
        } else if (type == "Whitespace") {
          const std::string word_or_rest = fmt::format("[{0}]+|[^{0}\\s]+", rust_word_class);
          add_split(word_or_rest, SplitBehavior::removed, true);
        } else if (type == "WhitespaceSplit") {
          add_split(R"(\s)", SplitBehavior::removed, false);
        } else if (type == "Punctuation") {
          add_split(package_punctuation, read_named<SplitBehavior>(fields, "behavior", "Isolated"), false);
          meaning.update(fields.meaning());
        } else if (type == "Metaspace") {
          steps_.emplace_back(read_metaspace(fields, meaning));
        } else {
          refuse_step(fields, type,
                      "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace and Sequence");
        }
      });
  check_order(place);
  words_are_bytes_ = !steps_.empty() && std::holds_alternative<ByteLevelStep>(steps_.back());
}

}  // namespace weft
