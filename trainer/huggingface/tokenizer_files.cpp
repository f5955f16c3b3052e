#include "trainer/huggingface/model_folder.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::int64_t> id_in(const Tokenizer& tokenizer, const std::string& token) {
  return token.empty() ? std::nullopt : std::optional<std::int64_t>(tokenizer.token_id(token));
}

// The class of Llama reads a tokenizer.model. Unless told, it puts a begin in front of each text, which Weft does not.
// It also adds the tokens <s> and </s> where the model lacks them.
TokenizerSettings of_sentencepiece(const std::string& name, const Tokenizer* tokenizer) {
  Json json = {{"tokenizer_class", "LlamaTokenizer"},
               {"legacy", true},
               {"add_bos_token", false},
               {"add_eos_token", false},
               {"clean_up_tokenization_spaces", false}};
  if (tokenizer == nullptr) return {json.dump(2) + "\n"};
  json["add_prefix_space"] = tokenizer->decode(tokenizer->encode("a")).starts_with(' ');
  const SentencePieceMarks marks = sentencepiece_marks(name);
  for (const auto& [key, piece] : {std::pair{"unk_token", &marks.unknown}, std::pair{"bos_token", &marks.begin},
                                   std::pair{"eos_token", &marks.end}, std::pair{"pad_token", &marks.padding}}) {
    json[key] = piece->empty() ? Json() : Json(*piece);
  }
  // A ligature and two spaces, which the usual rules of SentencePiece make two letters and one space.
  const std::string read = tokenizer->decode(tokenizer->encode("a  \ufb01"));
  return {json.dump(2) + "\n",
          tokenizer->vocab_size() - 1,
          id_in(*tokenizer, marks.begin),
          id_in(*tokenizer, marks.end),
          id_in(*tokenizer, marks.padding),
          read.ends_with("fi") || read.find("a  ") == std::string::npos};
}

namespace fs = std::filesystem;
using SortedJson = nlohmann::json;

constexpr const char* names[] = {"tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
                                 "added_tokens.json", "tokenizer.model",       "vocab.json",
                                 "merges.txt",        "chat_template.jinja"};

SortedJson read_json(const fs::path& path) {
  return parse_outside_json(read_whole_file(path.string()), path.string());
}

// Empty files are skipped.
template <typename Names>
std::vector<fs::path> files_called(const Names& wanted, const fs::path& folder) {
  std::vector<fs::path> found;
  for (const char* name : wanted) {
    std::error_code ignored;
    const fs::path file = folder / name;
    if (fs::is_regular_file(file, ignored) && fs::file_size(file, ignored) > 0) found.push_back(file);
  }
  return found;
}

// Ids by token, of `model.vocab` and `added_tokens`.
std::map<std::string, std::int64_t> read_ids(const SortedJson& tokenizer) {
  std::map<std::string, std::int64_t> ids;
  const SortedJson vocabulary = tokenizer.value("/model/vocab"_json_pointer, SortedJson::object());
  if (vocabulary.is_object()) {
    for (const auto& [text, id] : vocabulary.items()) ids[text] = id.get<std::int64_t>();
  } else {  // pieces with their scores, by id
    for (std::size_t id = 0; id < vocabulary.size(); ++id) {
      ids[vocabulary[id].at(0).get<std::string>()] = static_cast<std::int64_t>(id);
    }
  }
  for (const SortedJson& added : tokenizer.value("added_tokens", SortedJson::array())) {
    ids[added.at("content").get<std::string>()] = added.at("id").get<std::int64_t>();
  }
  return ids;
}

// The id of a token that tokenizer_config.json names.
std::optional<std::int64_t> id_of(const SortedJson& config, const char* key,
                                  const std::map<std::string, std::int64_t>& ids) {
  const std::string* text = token_text(config, key);
  const auto found = text == nullptr ? ids.end() : ids.find(*text);
  return found == ids.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

TokenizerSettings settings_of(const std::string& name) {
  std::shared_ptr<const Tokenizer> tokenizer;
  // A part that only others compute is copied all the same.
  const auto unknown = refusal_of([&] { tokenizer = open_tokenizer(name); });
  if (name.ends_with(".model")) return of_sentencepiece(name, tokenizer.get());
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto end = unknown ? std::nullopt : tokenizer->end_of_text();
  if (end) json["eos_token"] = tokenizer->decode(std::array{*end});
  return {json.dump(2) + "\n", unknown ? std::nullopt : std::optional(tokenizer->vocab_size() - 1), std::nullopt, end};
}

TokenizerFiles find_tokenizer_files(const fs::path& folder) {
  TokenizerFiles tokenizer;
  tokenizer.files = files_called(names, folder);
  const auto has = [&](const char* name) {
    return std::ranges::find(tokenizer.files, folder / name) != tokenizer.files.end();
  };
  if (!has("tokenizer.json")) return tokenizer;
  try {
    const auto ids = read_ids(read_json(folder / "tokenizer.json"));
    for (const auto& [text, id] : ids) tokenizer.largest_id = std::max(tokenizer.largest_id.value_or(id), id);
    if (!has("tokenizer_config.json")) return tokenizer;
    const SortedJson config = read_json(folder / "tokenizer_config.json");
    if (!config.is_object()) fail_request("{} is no JSON object", (folder / "tokenizer_config.json").string());
    tokenizer.bos_token_id = id_of(config, "bos_token", ids);
    tokenizer.eos_token_id = id_of(config, "eos_token", ids);
    tokenizer.pad_token_id = id_of(config, "pad_token", ids);
  } catch (const SortedJson::exception& error) {
    fail_request("the tokenizer in {} is not written as one: {}", folder.string(), error.what());
  }
  return tokenizer;
}

std::vector<fs::path> find_companions(const fs::path& folder) {
  std::vector<fs::path> found = files_called(std::array{model_json_name, generation_json_name}, folder);
  for (fs::path& file : files_called(names, folder)) found.push_back(std::move(file));
  return found;
}

void expect_vocabulary(std::optional<std::int64_t> largest_id, std::int64_t vocab_size, const std::string& name) {
  if (largest_id.value_or(-1) < vocab_size) return;
  fail_request("the tokenizer{} has ids up to {}, but the model a vocabulary of {}",
               name.empty() ? "" : fmt::format(" \"{}\"", name), *largest_id, vocab_size);
}

}  // namespace weft
