#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "trainer/tokenizer/bpe_tokenizer.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/pattern.h"
#include "trainer/tokenizer/tokenizer_file.h"

namespace weft {
namespace {

struct KnownPattern {
  std::string_view name, expression;
  std::int64_t published_ranks;
};

// tiktoken_ext/openai_public.py, and llama_models' tokenizer.py. Newer versions of tiktoken write possessive
// repetitions, which match the same.
constexpr std::array<KnownPattern, 4> known_patterns = {{{"gpt2", gpt2_word_pattern, 50256},
                                                         {"cl100k_base", llama3_word_pattern, 100256},
                                                         {"o200k_base", o200k_word_pattern, 199998},
                                                         {"llama3", llama3_word_pattern, 128000}}};

std::vector<SpecialId> special_tokens_of(const KnownPattern& pattern) {
  if (pattern.name == "gpt2") return {{"<|endoftext|>", 50256}};
  if (pattern.name == "cl100k_base") {
    return {{"<|endoftext|>", 100257},
            {"<|fim_prefix|>", 100258},
            {"<|fim_middle|>", 100259},
            {"<|fim_suffix|>", 100260},
            {"<|endofprompt|>", 100276}};
  }
  if (pattern.name == "o200k_base") return {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
  const auto first = static_cast<std::int32_t>(pattern.published_ranks);
  constexpr std::int32_t all = 256;
  std::vector<SpecialId> tokens;
  for (const char* text : {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                           "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
                           "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"}) {
    tokens.push_back({text, first + static_cast<std::int32_t>(tokens.size())});
  }
  for (int reserved = 2; tokens.size() < all; ++reserved) {
    tokens.push_back(
        {fmt::format("<|reserved_special_token_{}|>", reserved), first + static_cast<std::int32_t>(tokens.size())});
  }
  return tokens;
}

// Nothing for a text that is not base64 with its padding (RFC 4648).
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = i + padding < text.size() ? digits.find(text[i]) : 0;
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xff));
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

// The longest published tokens have 128 bytes. rank_merges() takes quadratic time in the length of a token.
constexpr std::size_t longest_token = 1024;

// Tokens as bytes, with their ranks. Throws Error (request), `"file": why`.
TokenIds read_ranks(std::string_view text, const std::string& file) {
  TokenIds ranks;
  std::int64_t line = 0;
  for (std::string_view row : parts_between(text, '\n')) {
    ++line;
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const std::size_t space = std::min(row.find(' '), row.size());
    const std::optional<std::string> token = from_base64(row.substr(0, space));
    const auto rank = parsed_number<std::int32_t>(row.substr(std::min(space + 1, row.size())));
    if (!token || !rank || *rank < 0 || *rank >= most_token_ids) {
      fail_request("\"{}\": line {} is not a token in base64, a space and a rank", file, line);
    }
    if (token->size() > longest_token) {
      fail_request("\"{}\": line {} has a token of {} bytes; tokens have at most {}", file, line, token->size(),
                   longest_token);
    }
    if (!ranks.emplace(*token, *rank).second) fail_request("\"{}\": line {} repeats a token", file, line);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!ranks.contains(std::string(1, static_cast<char>(byte)))) {
      fail_request("\"{}\" has no token for the byte 0x{:02x}; is it a rank file of tiktoken?", file, byte);
    }
  }
  return ranks;
}

// The ranks of a token and of two that give it together, for any such two.
std::vector<std::array<std::int32_t, 3>> rank_merges(const TokenIds& ranks) {
  std::vector<std::array<std::int32_t, 3>> all;
  for (const auto& [token, rank] : ranks) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(std::string_view(token).substr(0, cut));
      const auto right = left == ranks.end() ? left : ranks.find(std::string_view(token).substr(cut));
      if (right != ranks.end()) all.push_back({rank, left->second, right->second});
    }
  }
  return all;
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tiktoken(std::string_view text, const std::string& file,
                                                const TiktokenRules& rules) {
  const auto& [expression, special] = rules;
  const TokenIds ranks = read_ranks(text, file);
  const std::string quoted = fmt::format("\"{}\"", file);
  TokenIds vocabulary;
  for (const auto& [token, rank] : ranks) vocabulary.emplace(to_byte_characters(token), rank);
  std::string meaning = fmt::format("tiktoken\n{}\n", expression);
  append_vocabulary(ranks, meaning);
  std::vector<AddedToken> added;
  for (const SpecialId& token : special) {
    meaning += fmt::format("special {} {}\n", token.id, token.text);
    added.push_back({token.id, token.text, true});
  }
  const auto all = rank_merges(ranks);
  MergeTable merges(all.size());  // those of the lowest rank first
  for (const auto& [whole, left, right] : all) merges.add(left, right, {static_cast<std::uint32_t>(whole), whole});
  const TextNormalizer none(nullptr, quoted);
  const TokenizerJson byte_level = {{"type", "ByteLevel"}};
  BpeRules merging;
  merging.words_are_bytes = merging.ignore_merges = true;
  return std::make_shared<BpeTokenizer>(
      TokenizerParts{"BPE of tiktoken", file, none, AddedTokens(std::move(added), none, quoted),
                     PreTokenizer::bytes_split_by(Pattern::regex(expression, quoted)),
                     BpeModel(std::move(vocabulary), std::move(merges), merging), TokenDecoder(&byte_level, quoted),
                     TextFrame(), checksum_text(checksum(meaning)), std::nullopt, true});
}

bool is_tiktoken_pattern(std::string_view name) {
  return std::ranges::find(known_patterns, name, &KnownPattern::name) != known_patterns.end();
}

std::string known_tiktoken_patterns() {
  return fmt::format("{}", fmt::join(known_patterns | std::views::transform(&KnownPattern::name), ", "));
}

TiktokenRules rules_of_pattern(std::string_view text, const std::string& file, const std::string& pattern) {
  const auto known = std::ranges::find(known_patterns, pattern, &KnownPattern::name);
  if (known == known_patterns.end()) {
    fail_request("\"{}\": \"{}\" is no pattern of tiktoken; known are {}", file, pattern, known_tiktoken_patterns());
  }
  const auto ranks = std::ranges::count(text, '\n') + (!text.empty() && text.back() != '\n' ? 1 : 0);
  const bool published = ranks == known->published_ranks;
  return {std::string(known->expression), published ? special_tokens_of(*known) : std::vector<SpecialId>()};
}

TiktokenRules rules_of_sidecar(const std::string& file, const std::string& sidecar) {
  const std::string quoted = fmt::format("\"{}.json\"", file);
  const TokenizerJson json = parse_outside_json(sidecar, quoted);
  JsonFields fields(json, quoted);
  const std::string expression = fields.text("pattern");
  std::vector<SpecialId> special;
  if (const TokenizerJson* tokens = fields.find("special_tokens")) {
    JsonFields ids(*tokens, fields.place_of("special_tokens"));
    for (const auto& [token, id] : tokens->items()) {
      const std::int64_t value = ids.integer(token);
      if (token.empty() || value < 0 || value >= most_token_ids) {
        fail_request("{}: {} is no special token with an id in 0 .. {}", ids.place(), shown_value(token),
                     most_token_ids - 1);
      }
      special.push_back({token, static_cast<std::int32_t>(value)});
    }
  }
  fields.finish();
  return {expression, special};
}

std::string tiktoken_as_json(std::string_view text, const std::string& file, const TiktokenRules& rules) {
  const TokenIds ranks = read_ranks(text, file);
  std::vector<std::string> tokens;
  const auto set_token = [&](std::int32_t id, std::string token) {
    if (static_cast<std::size_t>(id) >= tokens.size()) tokens.resize(static_cast<std::size_t>(id) + 1);
    std::string& set = tokens[static_cast<std::size_t>(id)];
    if (!set.empty()) fail_request("\"{}\": the tokens {} and {} both have the id {}", file, set, token, id);
    set = std::move(token);
  };
  for (const auto& [token, rank] : ranks) set_token(rank, to_byte_characters(token));
  std::vector<std::int32_t> special;
  // Published ids leave gaps. `tokenizers` keeps the id of an added token only if the vocabulary has the token too.
  for (const SpecialId& token : rules.special) {
    const std::optional<std::string> bytes = from_byte_characters(token.text);
    if (bytes && ranks.contains(*bytes)) {
      fail_request("\"{}\": the special token {} is spelled as a token of bytes is in tokenizer.json", file,
                   shown_value(token.text));
    }
    set_token(token.id, token.text);
    special.push_back(token.id);
  }
  auto all = rank_merges(ranks);
  std::ranges::sort(all);
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
  for (const auto& [whole, left, right] : all) merges.emplace_back(left, right);
  return byte_level_file(rules.expression, tokens, special, merges, true);
}

}  // namespace weft
