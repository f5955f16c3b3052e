#include "trainer/data/token_facts.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"

namespace weft {

std::string format_token_facts(const TokenFacts& facts) {
  nlohmann::ordered_json json = {{"tokenizer", facts.tokenizer},   {"tokenizer_hash", facts.tokenizer_hash},
                                 {"vocab_size", facts.vocab_size}, {"documents", facts.documents},
                                 {"tokens", facts.tokens},         {"document_end", nullptr}};
  if (facts.losses) json["losses"] = true;
  if (facts.document_end) json["document_end"] = *facts.document_end;
  // A path in `tokenizer` need not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TokenFacts parse_token_facts(const std::string& text, const std::string& file) {
  constexpr std::size_t longest = 1 << 16;  // a text of this length cannot be nested deep enough to matter
  try {
    if (text.size() > longest)
      fail_request("\"{}\": {} bytes are more than the facts of a dataset take", file, text.size());
    const nlohmann::json json = nlohmann::json::parse(text);
    const auto number = [&](const char* key, std::int64_t first, std::int64_t last) {
      const nlohmann::json& value = json.at(key);
      const bool fits = value.is_number_integer() && value <= last && value >= first;
      if (!fits) fail_request("\"{}\": {} is {}; it is an integer in {} .. {}", file, key, value.dump(), first, last);
      return value.get<std::int64_t>();
    };
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t most_ids = std::int64_t{1} << 31;
    TokenFacts facts{json.at("tokenizer"),         json.at("tokenizer_hash"), number("vocab_size", 1, most_ids),
                     number("documents", 0, most), number("tokens", 0, most), std::nullopt,
                     json.value("losses", false)};
    if (!json.at("document_end").is_null()) {
      facts.document_end = static_cast<std::int32_t>(number("document_end", 0, facts.vocab_size - 1));
    }
    return facts;
  } catch (const nlohmann::json::exception& error) {
    fail_request(
        "\"{}\": not the facts of a dataset that \"weft data tokenize\" writes: {}. If it is another file, "
        "give it another name",
        file, error.what());
  }
}

std::optional<TokenFacts> find_token_facts(const std::string& name) {
  std::string prefix = name;
  for (const char* ending : {".bin", ".idx"}) {
    if (!prefix.ends_with(ending)) continue;
    prefix.resize(prefix.size() - 4);
    break;
  }
  const std::string file = prefix + ".json";
  std::error_code ignored;
  if (!std::filesystem::exists(prefix + ".idx", ignored) || !std::filesystem::exists(file, ignored))
    return std::nullopt;
  return parse_token_facts(read_whole_file(file), file);
}

}  // namespace weft
