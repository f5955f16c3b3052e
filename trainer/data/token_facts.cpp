#include "trainer/data/token_facts.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"

namespace weft {

std::string format_token_facts(const TokenFacts& facts) {
  nlohmann::ordered_json json = {{"tokenizer", facts.tokenizer},   {"tokenizer_hash", facts.tokenizer_hash},
                                 {"vocab_size", facts.vocab_size}, {"documents", facts.documents},
                                 {"tokens", facts.tokens},         {"document_end", nullptr}};
  if (facts.document_end) json["document_end"] = *facts.document_end;
  return json.dump(2) + "\n";
}

TokenFacts parse_token_facts(const std::string& text, const std::string& file) {
  constexpr std::size_t longest = 1 << 16;  // a text of this length cannot be nested deep enough to matter
  try {
    if (text.size() > longest)
      fail_request("\"{}\": {} bytes are more than the facts of a dataset take", file, text.size());
    const nlohmann::json json = nlohmann::json::parse(text);
    TokenFacts facts{json.at("tokenizer"), json.at("tokenizer_hash"), json.at("vocab_size"),
                     json.at("documents"), json.at("tokens"),         std::nullopt};
    if (const auto& end = json.at("document_end"); !end.is_null()) facts.document_end = end.get<std::int32_t>();
    return facts;
  } catch (const nlohmann::json::exception& error) {
    fail_request("\"{}\": not the facts of a dataset that \"weft data tokenize\" writes: {}", file, error.what());
  }
}

std::optional<TokenFacts> find_token_facts(const std::string& name) {
  std::string prefix = name;
  for (const char* ending : {".bin", ".idx"}) {
    if (prefix.ends_with(ending)) prefix.resize(prefix.size() - 4);
  }
  const std::string file = prefix + ".json";
  std::error_code ignored;
  if (!std::filesystem::exists(prefix + ".idx", ignored) || !std::filesystem::exists(file, ignored))
    return std::nullopt;
  return parse_token_facts(read_whole_file(file), file);
}

}  // namespace weft
