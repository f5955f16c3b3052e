#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "trainer/tokenizer/bpe_tokenizer.h"
#include "trainer/tokenizer/tokenizer_file.h"

namespace weft {
namespace {

bool is_token_id(const TokenizerJson& json) {
  return json.is_number_unsigned() && json.get<std::uint64_t>() < most_token_ids;
}

TokenIds read_vocabulary(JsonFields& model) {
  const TokenizerJson* json = model.find("vocab");
  const std::string place = model.place_of("vocab");
  if (json == nullptr || !json->is_object()) fail_request("{} is no object of tokens and ids", place);
  if (json->empty()) fail_request("{} is empty", place);
  TokenIds vocabulary;
  vocabulary.reserve(json->size());
  for (const auto& [token, id] : json->items()) {
    if (!is_token_id(id)) {
      fail_request("{}: the token {} has the id {}; ids are integers in 0 .. {}", place, token, shown_value(id),
                   most_token_ids - 1);
    }
    vocabulary.emplace(token, id.get<std::int32_t>());
  }
  return vocabulary;
}

using MergeHalves = std::pair<std::string, std::string>;

// Files have "a b", and since version 0.20 of `tokenizers` ["a", "b"].
MergeHalves read_merge(const TokenizerJson& json, const std::string& place) {
  MergeHalves halves;
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    halves = {json[0].get<std::string>(), json[1].get<std::string>()};
  } else if (json.is_string()) {
    const std::string both = json.get<std::string>();
    const std::size_t space = both.find(' ');
    if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
      fail_request("{} is {}, not two tokens with one space between them", place, shown_value(json));
    }
    halves = {both.substr(0, space), both.substr(space + 1)};
  } else {
    fail_request("{} is {}, neither \"a b\" nor [\"a\", \"b\"]", place, shown_value(json));
  }
  if (halves.first.empty() || halves.second.empty()) fail_request("{} has an empty half", place);
  return halves;
}

std::int32_t id_in_vocabulary(const TokenIds& vocabulary, const std::string& token, const std::string& place) {
  const auto found = vocabulary.find(token);
  if (found == vocabulary.end()) fail_request("{}: {} is not in the vocabulary", place, token);
  return found->second;
}

// Appends the merges to `meaning`.
MergeTable read_merges(JsonFields& model, const TokenIds& vocabulary, std::string& meaning) {
  const TokenizerJson& list = model.list("merges");
  if (list.empty())
    fail_request("{} is empty; every word would fall apart into single characters", model.place_of("merges"));
  MergeTable merges(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", model.place_of("merges"), i);
    if (list[i].is_string() && list[i].get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(list[i], place);
    const PairMerge merge{static_cast<std::uint32_t>(i), id_in_vocabulary(vocabulary, left + right, place)};
    const std::int32_t left_id = id_in_vocabulary(vocabulary, left, place);
    const std::int32_t right_id = id_in_vocabulary(vocabulary, right, place);
    merges.add(left_id, right_id, merge);
    meaning += fmt::format("{} {}\n", left_id, right_id);
  }
  return merges;
}

BpeModel read_model(const TokenizerJson& json, const std::string& place, bool words_are_bytes, std::string& meaning) {
  JsonFields fields(json, place);
  const std::string type = fields.text("type", "BPE");
  if (type != "BPE") fail_request("{} is {}; Weft reads the model BPE", fields.place_of("type"), shown_value(type));
  fields.refuse("dropout", "encodings would be random");
  fields.refuse("continuing_subword_prefix", "it is not supported");
  fields.refuse("end_of_word_suffix", "it is not supported");
  BpeRules rules;
  rules.words_are_bytes = words_are_bytes;
  rules.ignore_merges = fields.flag("ignore_merges", false);
  rules.byte_fallback = fields.flag("byte_fallback", false);
  rules.fuse_unk = fields.flag("fuse_unk", false);
  if (fields.find("unk_token") != nullptr) rules.unk_token = fields.text("unk_token");
  TokenIds vocabulary = read_vocabulary(fields);
  append_vocabulary(vocabulary, meaning);
  MergeTable merges = read_merges(fields, vocabulary, meaning);
  fields.finish();
  meaning += fields.meaning().dump();
  return BpeModel(std::move(vocabulary), std::move(merges), std::move(rules));
}

void read_template(JsonFields& fields, TextFrame& frame) {
  const TokenizerJson* tokens = fields.find("special_tokens");
  bool behind_text = false;
  const TokenizerJson& single = fields.list("single");
  for (std::size_t i = 0; i < single.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", fields.place_of("single"), i);
    JsonFields piece(single[i], place);
    if (const TokenizerJson* text = piece.find("Sequence")) {
      if (std::exchange(behind_text, true)) fail_request("{} is a second text", place);
      if (!text->is_object() || text->value("id", TokenizerJson()) != "A") fail_request("{} is no sequence A", place);
      continue;
    }
    const TokenizerJson* special = piece.find("SpecialToken");
    if (special == nullptr) fail_request("{} is neither Sequence nor SpecialToken", place);
    const std::string name = JsonFields(*special, place).text("id");
    if (tokens == nullptr || !tokens->is_object() || !tokens->contains(name)) {
      fail_request("{}: special_tokens has no {}", place, name);
    }
    JsonFields token((*tokens)[name], place + ": " + name);
    for (const TokenizerJson& id : token.list("ids")) {
      if (!is_token_id(id)) fail_request("{}: {} is no id", place, shown_value(id));
      (behind_text ? frame.after : frame.before).push_back(id.get<std::int32_t>());
    }
  }
  if (!behind_text) fail_request("{} has no place for the text", fields.place_of("single"));
  fields.ignore("pair");
}

// [text, id], as RobertaProcessing has its tokens.
std::int32_t read_text_and_id(JsonFields& fields, const char* key) {
  const TokenizerJson& pair = fields.list(key);
  if (pair.size() == 2 && pair[0].is_string() && is_token_id(pair[1])) return pair[1].get<std::int32_t>();
  fail_request("{} is {}, not a token and its id", fields.place_of(key), shown_value(pair));
}

void read_post_processor(JsonFields& fields, const std::string& type, TextFrame& frame) {
  if (type == "ByteLevel") {  // trims offsets, which Weft does not compute
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(key);
  } else if (type == "TemplateProcessing" || type == "RobertaProcessing") {
    if (!frame.before.empty() || !frame.after.empty()) {
      fail_request("{}: a second template is not supported", fields.place());
    }
    if (type == "TemplateProcessing") {
      read_template(fields, frame);
    } else {
      frame = {{read_text_and_id(fields, "cls")}, {read_text_and_id(fields, "sep")}};
      for (const char* key : {"add_prefix_space", "trim_offsets"}) fields.ignore(key);  // of offsets too
    }
  } else {
    refuse_step(fields, type, "ByteLevel, TemplateProcessing, RobertaProcessing and Sequence");
  }
}

// `tokenizers` numbers added tokens itself, whatever the file says. A file that disagrees is refused.
void check_added_ids(const std::vector<AddedToken>& added, const TokenIds& vocabulary, const std::string& place) {
  auto next = static_cast<std::int32_t>(vocabulary.size());
  for (const AddedToken& token : added) {
    const auto known = vocabulary.find(token.content);
    const std::int32_t expected = known != vocabulary.end() ? known->second : next++;
    if (token.id != expected) {
      fail_request("{}: the added token {} has the id {}; {}, so it would be {}", place, token.content, token.id,
                   known != vocabulary.end() ? "it is in the vocabulary too" : "ids continue behind the vocabulary",
                   expected);
    }
  }
}

TokenizerJson meaning_of(const std::vector<AddedToken>& added) {
  TokenizerJson list = TokenizerJson::array();
  for (const AddedToken& t : added) {
    list.push_back({t.id, t.content, t.special, t.single_word, t.lstrip, t.rstrip, t.normalized});
  }
  return list;
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tokenizer_json(const std::string& text, const std::string& file,
                                                      std::optional<std::string> end_of_text) {
  const std::string quoted = fmt::format("\"{}\"", file);
  const TokenizerJson json = parse_outside_json(text, quoted);
  JsonFields fields(json, quoted);
  const std::string version = fields.text("version", "1.0");
  if (version != "1.0") fail_request("{}: version is {}; Weft reads 1.0", quoted, shown_value(version));
  fields.refuse("truncation", "it would cut off texts; remove it from the file");
  fields.refuse("padding", "it would lengthen texts; remove it from the file");

  TextNormalizer normalizer(fields.find("normalizer"), fields.place_of("normalizer"));
  PreTokenizer pre_tokenizer(fields.find("pre_tokenizer"), fields.place_of("pre_tokenizer"));
  TokenDecoder decoder(fields.find("decoder"), fields.place_of("decoder"));
  TextFrame frame;
  read_steps(fields.find("post_processor"), fields.place_of("post_processor"), "processors",
             [&](JsonFields& step, const std::string& type) { read_post_processor(step, type, frame); });
  const TokenizerJson* model_json = fields.find("model");
  if (model_json == nullptr) fail_request("{} has no model", quoted);
  std::string meaning;
  BpeModel model = read_model(*model_json, fields.place_of("model"), pre_tokenizer.words_are_bytes(), meaning);
  std::vector<AddedToken> added;
  if (fields.find("added_tokens") != nullptr) added = read_added_tokens(fields.list("added_tokens"), quoted);
  fields.finish();
  check_added_ids(added, model.vocabulary(), quoted);
  for (const TokenizerJson& part : {meaning_of(added), normalizer.meaning(), pre_tokenizer.meaning(), decoder.meaning(),
                                    TokenizerJson{frame.before, frame.after}}) {
    meaning += part.dump();
  }
  const std::string kind = pre_tokenizer.words_are_bytes() ? "byte-level BPE" : "BPE";
  AddedTokens added_tokens(std::move(added), normalizer, quoted);
  return std::make_shared<BpeTokenizer>(TokenizerParts{
      kind, file, std::move(normalizer), std::move(added_tokens), std::move(pre_tokenizer), std::move(model),
      std::move(decoder), std::move(frame), checksum_text(checksum(meaning)), std::move(end_of_text)});
}

}  // namespace weft
