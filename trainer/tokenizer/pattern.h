// Regular expressions of tokenizers, matched by PCRE2. Files write them for Oniguruma in Ruby's syntax; to_pcre2()
// (pattern_dialect.cpp) rewrites one for PCRE2 and refuses any part that PCRE2 would match differently. Classes of
// characters follow the version of Unicode in PCRE2: a code point assigned later counts as unassigned.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "parallel/runtime/outside_text.h"

struct pcre2_real_code_8;

namespace weft {

struct PatternMatch {
  std::size_t begin = 0, end = 0;  // bytes
};

// Memory of one match. One thread at a time.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class Pattern;
  struct State;
  std::unique_ptr<State> state_;
};

// Immutable. Several threads may match at the same time, each with its own scratch.
class Pattern {
 public:
  // Throws Error (request) that begins with `place`: for a faulty expression, and naming a part that PCRE2 would match
  // differently from Oniguruma.
  static Pattern regex(std::string_view expression, const std::string& place);
  // Matches `text` itself.
  static Pattern literal(std::string_view text, const std::string& place);

  // The first match from byte `from` on. The text before `from` is seen by lookbehind. Requires well-formed text.
  // Throws Error (request), naming the expression, if the match takes more steps or memory than PCRE2 allows.
  std::optional<PatternMatch> find(std::string_view text, std::size_t from, PatternScratch& scratch) const;

  // Calls visit(begin, end, is_match) for ranges that cover the text in order: matches, and the text between them.
  // An empty match right behind a match is left out.
  template <typename Visit>
  void each_range(std::string_view text, PatternScratch& scratch, Visit&& visit) const;

 private:
  Pattern(std::shared_ptr<const pcre2_real_code_8> code, std::string shown)
      : code_(std::move(code)), shown_(std::move(shown)) {}
  static Pattern compile(std::string_view expression, unsigned options, const std::string& shown,
                         const std::string& place);

  std::shared_ptr<const pcre2_real_code_8> code_;
  std::string shown_;  // the expression as the file has it
};

// The expression in the syntax of PCRE2. Throws as Pattern::regex.
std::string to_pcre2(std::string_view expression, const std::string& place);

// \w of the library `regex` of Rust: Alphabetic, marks, decimal digits, connectors, joiners.
inline constexpr std::string_view rust_word_class = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}";

template <typename Visit>
void Pattern::each_range(std::string_view text, PatternScratch& scratch, Visit&& visit) const {
  std::size_t from = 0, done = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const std::optional<PatternMatch> match = find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      ++from;
      while (from < text.size() && continues_character(text[from])) ++from;
      continue;
    }
    if (done != match->begin) visit(done, match->begin, false);
    visit(match->begin, match->end, true);
    from = done = match->end;
    last_end = match->end;
  }
  if (done != text.size()) visit(done, text.size(), false);
}

// Published patterns that split a text into words, in the syntax of tokenizer.json.

// GPT-2's, also of ByteLevel: a shortened word, letters, numbers or other characters with one space before, white
// space.
inline constexpr std::string_view gpt2_word_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Of Llama 3 and of cl100k_base: letters with any one character before, at most three digits, ends of lines by
// themselves.
inline constexpr std::string_view llama3_word_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Of o200k_base: as above, and a new word where a capital letter follows a small one.
inline constexpr std::string_view o200k_word_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace weft
