#include "trainer/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/tokenizer_file.h"

namespace weft {
namespace {

constexpr const char *json_name = "tokenizer.json", *settings_name = "tokenizer_config.json";
constexpr const char* model_name = "tokenizer.model";

class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return 256; }
  void append(std::string_view text, SpecialTokens, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    std::ranges::transform(text, ids.begin() + static_cast<std::ptrdiff_t>(before),
                           [](char byte) { return static_cast<unsigned char>(byte); });
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id > 255) fail_request("the byte tokenizer has no token with the id {}; it has 256", id);
      text.push_back(static_cast<char>(id));
    }
    return text;
  }
  std::string description() const override { return "bytes, 256 tokens"; }
  std::string content_hash() const override { return checksum_text(checksum("byte")); }
  std::optional<std::int32_t> end_of_text() const override { return std::nullopt; }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
};

bool is_file(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(name, ignored);
}

std::optional<std::string> configured_end_of_text(const std::filesystem::path& folder) {
  const std::string name = (folder / settings_name).string(), quoted = fmt::format("\"{}\"", name);
  if (!is_file(name)) return std::nullopt;
  const TokenizerJson json = parse_outside_json(read_whole_file(name), quoted);
  if (const std::string* text = token_text(json, "eos_token")) return *text;
  const auto token = json.find("eos_token");
  if (token == json.end() || token->is_null()) return std::nullopt;
  fail_request("{}: eos_token is {}, not a text", quoted, shown_value(*token));
}

bool has_no_files(const std::string& name) {
  return name == "byte" || name == "none";
}

// FILE of a name, and "#PATTERN" if it has one.
struct NamedFile {
  std::string file, pattern;
};
NamedFile named_file(const std::string& name) {
  const std::size_t hash = name.rfind('#');
  if (hash != std::string::npos && !std::filesystem::exists(name)) return {name.substr(0, hash), name.substr(hash)};
  if (!std::filesystem::is_directory(name)) return {name, ""};
  const std::filesystem::path folder(name);
  const std::string json = (folder / json_name).string(), model = (folder / model_name).string();
  return {!is_file(json) && is_file(model) ? model : json, ""};
}
bool is_json(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{';
}

bool is_rank_file(const NamedFile& name, const std::string& text) {
  return !name.pattern.empty() || (!name.file.ends_with(".model") && !is_json(text));
}

TiktokenRules rules_of_ranks(const NamedFile& name, const std::string& text) {
  const auto& [file, pattern] = name;
  if (!pattern.empty()) return rules_of_pattern(text, file, pattern.substr(1));
  const std::string sidecar = file + ".json", stem = std::filesystem::path(file).stem().string();
  if (is_file(sidecar)) return rules_of_sidecar(file, read_whole_file(sidecar));
  if (is_tiktoken_pattern(stem)) return rules_of_pattern(text, file, stem);
  fail_request(
      "\"{0}\" is no tokenizer.json. If it is a rank file of tiktoken, name its pattern: \"{0}#PATTERN\" with one of "
      "{1}, or write {0}.json with \"pattern\" and \"special_tokens\"",
      file, known_tiktoken_patterns());
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "none") return nullptr;
  if (name == "byte") return std::make_shared<ByteTokenizer>();
  const NamedFile named = named_file(name);
  const std::string& file = named.file;
  const std::string text = InputFile(file).text();
  if (is_rank_file(named, text)) return parse_tiktoken(text, file, rules_of_ranks(named, text));
  if (file.ends_with(".model")) return parse_sentencepiece(text, file);
  return parse_tokenizer_json(text, file, configured_end_of_text(std::filesystem::path(file).parent_path()));
}

std::shared_ptr<const Tokenizer> open_text_tokenizer(const std::string& name) {
  if (auto tokenizer = open_tokenizer(name)) return tokenizer;
  fail_request("the tokenizer \"{}\" has no texts; name byte or the file of a tokenizer", name);
}

std::optional<std::string> tiktoken_as_json(const std::string& name) {
  if (has_no_files(name)) return std::nullopt;
  const NamedFile named = named_file(name);
  const std::string text = InputFile(named.file).text();
  if (!is_rank_file(named, text)) return std::nullopt;
  return tiktoken_as_json(text, named.file, rules_of_ranks(named, text));
}

std::vector<TokenizerPart> tokenizer_parts(const std::string& name) {
  if (has_no_files(name)) return {};
  const auto [file, pattern] = named_file(name);
  const std::filesystem::path path(file);
  if (file.ends_with(".model")) return {{file, model_name}};
  if (!pattern.empty() || !is_json(InputFile(file).text())) {
    std::vector<TokenizerPart> parts = {{file, path.filename().string()}};
    if (is_file(file + ".json")) parts.push_back({file + ".json", path.filename().string() + ".json"});
    return parts;
  }
  std::vector<TokenizerPart> parts = {{file, json_name}};
  for (const char* beside : {settings_name, "chat_template.jinja"}) {
    const std::string part = (path.parent_path() / beside).string();
    if (is_file(part)) parts.push_back({part, beside});
  }
  return parts;
}

std::optional<std::string> kept_tokenizer(const std::string& folder, const std::string& name) {
  const std::filesystem::path kept(folder);
  if (has_no_files(name)) return std::nullopt;
  for (const char* known : {json_name, model_name}) {
    if (const std::string file = (kept / known).string(); is_file(file)) return file;
  }
  const std::size_t hash = name.rfind('#');
  const std::string file = (kept / std::filesystem::path(name.substr(0, hash)).filename()).string();
  if (!is_file(file)) return std::nullopt;
  return hash == std::string::npos ? file : file + name.substr(hash);
}

}  // namespace weft
