#include "trainer/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/normalizer.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

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
    replaced.reserve(piece.text.size() * 2);
    const bool prefix =
        step.scheme == PrependScheme::always || (step.scheme == PrependScheme::first && piece.begins_text);
    if (prefix && !piece.text.starts_with(' ') && !piece.text.starts_with(step.replacement))
      replaced = step.replacement;
    for (const char byte : piece.text) {
      if (byte == ' ') {
        replaced += step.replacement;
      } else {
        replaced.push_back(byte);
      }
    }
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

PreTokenizer PreTokenizer::bytes_split_by(Pattern pattern) {
  PreTokenizer made;
  made.steps_.emplace_back(SplitStep{std::move(pattern)});
  made.words_are_bytes_ = true;
  made.steps_.emplace_back(ByteLevelStep{false, std::nullopt});
  return made;
}

bool PreTokenizer::asks_for_beginning() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&step);
    return metaspace != nullptr && metaspace->scheme == PrependScheme::first;
  });
}

void PreTokenizer::each_word(std::string_view piece, bool begins_text, PatternScratch& scratch,
                             const WordSink& sink) const {
  WordSplitter(steps_, words_are_bytes_, piece.size(), scratch, sink).run({piece, begins_text}, 0);
}

}  // namespace weft
