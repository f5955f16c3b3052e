#define PCRE2_CODE_UNIT_WIDTH 8
#include "trainer/tokenizer/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR pcre2_text(std::string_view text) {
  // An empty view may have no address, which PCRE2 refuses.
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

// Steps of a match from one beginning. Patterns that tokenizers have go back a few times over a run of characters,
// which may be the whole text. One that goes back more often would hang.
std::uint32_t most_steps(std::size_t text_bytes) {
  constexpr std::size_t any_text = 20'000, each_byte = 16, most = 4'000'000'000;
  return static_cast<std::uint32_t>(std::min(any_text + each_byte * std::min(text_bytes, most / each_byte), most));
}

constexpr std::size_t first_stack = std::size_t{32} << 10, most_stack = std::size_t{64} << 20;

}  // namespace

struct PatternScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(first_stack, most_stack, nullptr);

  State() {
    require(data != nullptr && context != nullptr, "PCRE2 has memory for a match");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

PatternScratch::PatternScratch() : state_(std::make_unique<State>()) {}
PatternScratch::~PatternScratch() = default;

Pattern Pattern::compile(std::string_view expression, unsigned options, const std::string& shown,
                         const std::string& place) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(pcre2_text(expression), expression.size(), options, &error, &at, context.get());
  if (code == nullptr) {
    fail_request("{}: the pattern {} is not understood by PCRE2: {} (at byte {} of {})", place, shown,
                 pcre2_message(error), at, expression);
  }
  // A machine without the compiler of PCRE2 interprets the pattern, with the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Pattern(std::shared_ptr<const pcre2_real_code_8>(
                     code, [](const pcre2_code* owned) { pcre2_code_free(const_cast<pcre2_code*>(owned)); }),
                 shown);
}

Pattern Pattern::regex(std::string_view expression, const std::string& place) {
  // In Ruby's syntax ^ and $ are the beginning and the end of every line.
  return compile(to_pcre2(expression, place), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, std::string(expression), place);
}

Pattern Pattern::literal(std::string_view text, const std::string& place) {
  return compile(text, PCRE2_UTF | PCRE2_LITERAL, std::string(text), place);
}

std::optional<PatternMatch> Pattern::find(std::string_view text, std::size_t from, PatternScratch& scratch) const {
  const PatternScratch::State& state = *scratch.state_;
  pcre2_set_match_limit(state.context, most_steps(text.size()));
  const int count =
      pcre2_match(code_.get(), pcre2_text(text), text.size(), from, PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (count < 0) {
    fail_request("the pattern {} cannot be matched in a text of {} bytes: {}", shown_, text.size(),
                 pcre2_message(count));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.data);
  return PatternMatch{ends[0], ends[1]};
}

}  // namespace weft
