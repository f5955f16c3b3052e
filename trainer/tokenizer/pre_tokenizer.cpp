#include "trainer/tokenizer/pre_tokenizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/normalizer.h"
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

SplitStep read_split(JsonFields& fields) {
  Pattern pattern = read_pattern(fields);
  const SplitBehavior behavior = read_named<SplitBehavior>(fields, "behavior", std::nullopt);
  return SplitStep{std::move(pattern), behavior, fields.flag("invert", false)};
}

ByteLevelStep read_byte_level(JsonFields& fields) {
  ByteLevelStep step{fields.flag("add_prefix_space", true), std::nullopt};
  if (fields.flag("use_regex", true)) step.pattern = Pattern::regex(gpt2_word_pattern, fields.place());
  fields.ignore("trim_offsets");
  return step;
}

bool asks_for_offset(const PreTokenizerStep& step) {
  const auto* metaspace = std::get_if<MetaspaceStep>(&step);
  return metaspace != nullptr && metaspace->scheme == PrependScheme::first;
}

struct TextRange {
  std::size_t begin, end;
  bool is_match;
};

// The pieces of a text, as ranges. The library `tokenizers` folds matches like this in NormalizedString::split.
std::vector<TextRange> behaved_ranges(std::vector<TextRange> ranges, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::merged_with_next;
  if (backwards) std::reverse(ranges.begin(), ranges.end());
  std::vector<TextRange> pieces;
  bool previous = false;
  for (const TextRange& range : ranges) {
    const bool joins = behavior == SplitBehavior::contiguous ? range.is_match == previous : range.is_match && !previous;
    if (!joins || pieces.empty()) {
      pieces.push_back(range);
    } else if (backwards) {
      pieces.back().begin = range.begin;
    } else {
      pieces.back().end = range.end;
    }
    previous = range.is_match;
  }
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

struct SplitPiece {
  std::string_view text;
  bool begins_text;
};

// Runs the steps from `step` on for one piece. Pieces go through all steps one after the other, so none is stored.
class WordSplitter {
 public:
  // For pieces of `bytes` together.
  WordSplitter(const std::vector<PreTokenizerStep>& steps, bool words_are_bytes, std::size_t bytes,
               PatternScratch& scratch, const PreTokenizer::WordSink& sink)
      : steps_(steps),
        words_are_bytes_(words_are_bytes),
        most_(most_grown_bytes(bytes)),
        scratch_(scratch),
        sink_(sink) {}

  void run(SplitPiece piece, std::size_t step) {
    if (piece.text.empty()) return;
    if (step == steps_.size()) return sink_(piece.text);
    std::visit([&](const auto& each) { apply(each, piece, step + 1); }, steps_[step]);
  }

 private:
  // Counts what steps have written, because each may write more than the one before it.
  std::string_view grown(const std::string& text) {
    grown_ += text.size();
    check_grown_text(grown_, most_);
    return text;
  }

  void apply(const SplitStep& step, SplitPiece piece, std::size_t next) {
    split(step.pattern, step.behavior, step.invert, piece, next);
  }

  void apply(const ByteLevelStep& step, SplitPiece piece, std::size_t next) {
    std::string prefixed;
    if (step.add_prefix_space && !piece.text.starts_with(' ')) {
      prefixed = " " + std::string(piece.text);
      piece.text = grown(prefixed);
    }
    const bool mapped = !words_are_bytes_ || next < steps_.size();
    const auto hand_on = [&](std::string_view text, bool begins_text) {
      if (!mapped) return run({text, begins_text}, next);
      const std::string characters = to_byte_characters(text);
      run({grown(characters), begins_text}, next);
    };
    if (!step.pattern) return hand_on(piece.text, piece.begins_text);
    step.pattern->each_range(piece.text, scratch_, [&](std::size_t begin, std::size_t end, bool) {
      hand_on(piece.text.substr(begin, end - begin), piece.begins_text && begin == 0);
    });
  }

  void apply(const MetaspaceStep& step, SplitPiece piece, std::size_t next) {
    std::string replaced;
    const bool prefix =
        step.scheme == PrependScheme::always || (step.scheme == PrependScheme::first && piece.begins_text);
    if (prefix && !piece.text.starts_with(' ') && !piece.text.starts_with(step.replacement))
      replaced = step.replacement;
    replaced += with_replaced(piece.text, " ", step.replacement);
    const SplitPiece whole{grown(replaced), piece.begins_text};
    if (!step.split) return run(whole, next);
    split(*step.split, SplitBehavior::merged_with_next, false, whole, next);
  }

  void split(const Pattern& pattern, SplitBehavior behavior, bool invert, SplitPiece piece, std::size_t next) {
    const auto hand_on = [&](std::size_t begin, std::size_t end) {
      run({piece.text.substr(begin, end - begin), piece.begins_text && begin == 0}, next);
    };
    if (behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed) {
      return pattern.each_range(piece.text, scratch_, [&](std::size_t begin, std::size_t end, bool is_match) {
        if (behavior == SplitBehavior::isolated || is_match == invert) hand_on(begin, end);
      });
    }
    std::vector<TextRange> ranges;
    pattern.each_range(piece.text, scratch_, [&](std::size_t begin, std::size_t end, bool is_match) {
      ranges.push_back({begin, end, is_match != invert});
    });
    for (const TextRange& range : behaved_ranges(std::move(ranges), behavior)) hand_on(range.begin, range.end);
  }

  const std::vector<PreTokenizerStep>& steps_;
  bool words_are_bytes_;
  std::size_t most_, grown_ = 0;  // bytes that steps may write, and have written
  PatternScratch& scratch_;
  const PreTokenizer::WordSink& sink_;
};

}  // namespace

MetaspaceStep read_metaspace(JsonFields& fields) {
  MetaspaceStep metaspace;
  metaspace.replacement = fields.character("replacement");
  metaspace.scheme = read_named<PrependScheme>(fields, "prepend_scheme", "always");
  // It tells no more than prepend_scheme, and is not part of the meaning.
  const bool none = !JsonFields(fields).flag("add_prefix_space", true);
  fields.ignore("add_prefix_space");
  if (none && metaspace.scheme != PrependScheme::never) {
    fail_request("{} is false, but prepend_scheme is {}", fields.place_of("add_prefix_space"),
                 name_of(metaspace.scheme));
  }
  if (fields.flag("split", true)) metaspace.split = Pattern::literal(metaspace.replacement, fields.place());
  fields.ignore("str_rep");
  return metaspace;
}

// The scheme "first" asks for the offset of a piece in the text, which is known as long as pieces are parts of it.
void PreTokenizer::check_order(const std::string& place) const {
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    if (asks_for_offset(steps_[i]) && !std::holds_alternative<SplitStep>(steps_[i - 1])) {
      fail_request("{}: a Metaspace with prepend_scheme first behind a step that changes the text is not supported",
                   place);
    }
  }
}

PreTokenizer::PreTokenizer(const TokenizerJson* json, const std::string& place) {
  meaning_ = read_steps(json, place, "pretokenizers", [&](JsonFields& fields, const std::string& type) {
    const auto add_split = [&](std::string_view pattern, SplitBehavior behavior, bool invert) {
      steps_.emplace_back(SplitStep{Pattern::regex(pattern, fields.place()), behavior, invert});
    };
    if (type == "Split") {
      steps_.emplace_back(read_split(fields));
    } else if (type == "ByteLevel") {
      steps_.emplace_back(read_byte_level(fields));
    } else if (type == "Digits") {
      const bool individual = fields.flag("individual_digits");
      add_split(R"(\p{N})", individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
    } else if (type == "Whitespace") {
      const std::string word_or_rest = fmt::format("[{0}]+|[^{0}\\s]+", rust_word_class);
      add_split(word_or_rest, SplitBehavior::removed, true);
    } else if (type == "WhitespaceSplit") {
      add_split(R"(\s)", SplitBehavior::removed, false);
    } else if (type == "Punctuation") {
      add_split(package_punctuation, read_named<SplitBehavior>(fields, "behavior", "Isolated"), false);
    } else if (type == "Metaspace") {
      steps_.emplace_back(read_metaspace(fields));
    } else {
      refuse_step(fields, type,
                  "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace and Sequence");
    }
  });
  check_order(place);
  words_are_bytes_ = !steps_.empty() && std::holds_alternative<ByteLevelStep>(steps_.back());
}

PreTokenizer PreTokenizer::bytes_split_by(Pattern pattern) {
  PreTokenizer made;
  made.steps_.emplace_back(SplitStep{std::move(pattern)});
  made.words_are_bytes_ = true;
  made.steps_.emplace_back(ByteLevelStep{false, std::nullopt});
  return made;
}

bool PreTokenizer::asks_for_beginning() const {
  return std::ranges::any_of(steps_, asks_for_offset);
}

void PreTokenizer::each_word(std::string_view piece, bool begins_text, PatternScratch& scratch,
                             const WordSink& sink) const {
  WordSplitter(steps_, words_are_bytes_, piece.size(), scratch, sink).run({piece, begins_text}, 0);
}

}  // namespace weft
