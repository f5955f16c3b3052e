#include "trainer/tokenizer/bpe_training.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/bpe_model.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/pattern.h"
#include "trainer/tokenizer/tokenizer_file.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

struct CountedWord {
  std::vector<std::int32_t> ids;  // of its tokens
  std::int64_t count = 0;
};

struct LearnedMerges {
  std::vector<std::string> tokens;                            // by id: the first ones, then the merged ones
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // in the order of their ranks
};

using TokenPair = std::pair<std::int32_t, std::int32_t>;

struct TokenPairHash {
  std::size_t operator()(const TokenPair& pair) const {
    const auto key =
        std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32 | static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15 >> 16);
  }
};

using WordNumbers = std::vector<std::uint32_t>;

struct QueuedPair {
  TokenPair pair;
  std::int64_t count;
  WordNumbers words;
};

bool comes_later(const QueuedPair& a, const QueuedPair& b) {
  return a.count != b.count ? a.count < b.count : a.pair > b.pair;
}

// Merges the most frequent pair, of several the one with the lowest ids, until there are `vocab_size` tokens or no pair
// is left. Follows BpeTrainer::do_train of `tokenizers` step by step, since details decide about equal counts. An entry
// of the queue keeps the words in which its pair arose, and its count is refreshed when it comes up. A merge may give a
// token that is present already, such as a special token that stands in the texts.
class MergeLearner {
 public:
  // `tokens`: the texts of the first ids.
  MergeLearner(std::vector<CountedWord> words, std::vector<std::string> tokens)
      : words_(std::move(words)), learned_{std::move(tokens), {}} {
    for (std::size_t id = 0; id < learned_.tokens.size(); ++id) {
      ids_.emplace(learned_.tokens[id], static_cast<std::int32_t>(id));
    }
    for (std::uint32_t number = 0; number < words_.size(); ++number) {
      const CountedWord& word = words_[number];
      for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) {
        change({word.ids[i], word.ids[i + 1]}, word.count, number);
      }
    }
    queue_changed();
  }

  LearnedMerges run(std::int64_t vocab_size) {
    while (static_cast<std::int64_t>(learned_.tokens.size()) < vocab_size && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), comes_later);
      QueuedPair best = std::move(queue_.back());
      queue_.pop_back();
      const std::int64_t count = counts_[best.pair];
      if (best.count != count) {
        best.count = count;
        push(std::move(best));
        continue;
      }
      if (count < 1) break;
      const std::int32_t id = id_of_merge(best.pair);
      learned_.merges.push_back(best.pair);
      for (const std::uint32_t number : best.words) merge_in(number, best.pair, id);
      queue_changed();
    }
    return std::move(learned_);
  }

 private:
  void push(QueuedPair entry) {
    queue_.push_back(std::move(entry));
    std::push_heap(queue_.begin(), queue_.end(), comes_later);
  }

  void change(TokenPair pair, std::int64_t by, std::uint32_t number) {
    counts_[pair] += by;
    if (by <= 0) return;
    WordNumbers& numbers = changed_[pair];
    if (numbers.empty() || numbers.back() != number) numbers.push_back(number);
  }

  void queue_changed() {
    for (auto& [pair, numbers] : changed_) {
      const std::int64_t count = counts_[pair];
      if (count > 0) push({pair, count, std::move(numbers)});
    }
    changed_.clear();
  }

  std::int32_t id_of_merge(TokenPair pair) {
    std::string token =
        learned_.tokens[static_cast<std::size_t>(pair.first)] + learned_.tokens[static_cast<std::size_t>(pair.second)];
    const auto [place, is_new] = ids_.emplace(token, static_cast<std::int32_t>(learned_.tokens.size()));
    if (is_new) learned_.tokens.push_back(std::move(token));
    return place->second;
  }

  void merge_in(std::uint32_t number, TokenPair pair, std::int32_t id) {
    std::vector<std::int32_t>& ids = words_[number].ids;
    const std::int64_t count = words_[number].count;
    std::size_t written = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + 1 == ids.size() || ids[i] != pair.first || ids[i + 1] != pair.second) {
        ids[written++] = ids[i];
        continue;
      }
      if (written > 0) {
        change({ids[written - 1], pair.first}, -count, number);
        change({ids[written - 1], id}, count, number);
      }
      ++i;
      if (i + 1 < ids.size()) {
        change({pair.second, ids[i + 1]}, -count, number);
        change({id, ids[i + 1]}, count, number);
      }
      ids[written++] = id;
    }
    ids.resize(written);
  }

  std::vector<CountedWord> words_;
  LearnedMerges learned_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_map<TokenPair, std::int64_t, TokenPairHash> counts_;
  std::unordered_map<TokenPair, WordNumbers, TokenPairHash> changed_;
  std::vector<QueuedPair> queue_;
};

constexpr std::int64_t byte_count = 256;

std::string quoted_json(const std::string& text) {
  return TokenizerJson(text).dump();
}

void check_special_tokens(std::span<const std::string> special_tokens) {
  for (std::size_t i = 0; i < special_tokens.size(); ++i) {
    const std::string& token = special_tokens[i];
    if (token.empty() || replace_malformed(token)) fail_request("special token {} is empty or no UTF-8", i);
    if (code_point_at(token, 0).bytes == token.size()) {
      fail_request("the special token {} is one character, which may be a byte's; give it a longer name", token);
    }
    if (std::find(special_tokens.begin(), special_tokens.begin() + static_cast<std::ptrdiff_t>(i), token) !=
        special_tokens.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail_request("the special token {} is given twice", token);
    }
  }
}

}  // namespace

// Written part by part: an object of the JSON library that keeps the order of ids takes quadratic time.
std::string byte_level_file(const std::string& pattern, std::span<const std::string> tokens,
                            std::span<const std::int32_t> special,
                            std::span<const std::pair<std::int32_t, std::int32_t>> merges, bool ignore_merges) {
  const auto token_of = [&](std::int32_t id) -> const std::string& { return tokens[static_cast<std::size_t>(id)]; };
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  const auto comma = [&] { return text.ends_with('[') || text.ends_with('{') ? "" : ","; };
  for (const std::int32_t id : special) {
    text += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
        "\"normalized\": false, \"special\": true}}",
        comma(), id, quoted_json(token_of(id)));
  }
  const char* byte_level =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})";
  text += fmt::format(
      "{}],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {{\"type\": \"Sequence\", \"pretokenizers\": [\n"
      "    {{\"type\": \"Split\", \"pattern\": {{\"Regex\": {}}}, \"behavior\": \"Isolated\", \"invert\": false}},\n"
      "    {}]}},\n  \"post_processor\": null,\n  \"decoder\": {},\n  \"model\": {{\n    \"type\": \"BPE\",\n"
      "    \"dropout\": null,\n    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
      "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"
      "    \"ignore_merges\": {},\n    \"vocab\": {{",
      special.empty() ? "" : "\n  ", quoted_json(pattern), byte_level, byte_level, ignore_merges);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) text += fmt::format("{}\n      {}: {}", comma(), quoted_json(tokens[id]), id);
  }
  text += "\n    },\n    \"merges\": [";
  for (const auto& [left, right] : merges) {
    text += fmt::format("{}\n      {}", comma(), quoted_json(token_of(left) + " " + token_of(right)));
  }
  return text + "\n    ]\n  }\n}\n";
}

BpeTraining::BpeTraining(std::string pattern)
    : pattern_(std::move(pattern)), compiled_(Pattern::regex(pattern_, "training of a tokenizer")) {}

void BpeTraining::add(std::string_view text) {
  const std::optional<std::string> replaced = replace_malformed(text);
  const std::string_view whole = replaced ? *replaced : text;
  compiled_.each_range(whole, scratch_, [&](std::size_t begin, std::size_t end, bool) {
    const std::string_view word = whole.substr(begin, end - begin);
    if (word.empty()) return;
    const auto found = counts_.find(word);
    if (found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(word, 1);
    }
  });
}

void BpeTraining::check(std::int64_t vocab_size, std::span<const std::string> special_tokens) {
  check_special_tokens(special_tokens);
  const auto first_byte = static_cast<std::int64_t>(special_tokens.size());
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (vocab_size > most) fail_request("a vocabulary of {} tokens has more than {}", vocab_size, most);
  if (vocab_size <= first_byte + byte_count) {
    fail_request("a vocabulary of {} tokens has no room for {} special tokens, {} bytes and a merge; give at least {}",
                 vocab_size, first_byte, byte_count, first_byte + byte_count + 1);
  }
}

std::string BpeTraining::train(std::int64_t vocab_size, std::span<const std::string> special_tokens) const {
  check(vocab_size, special_tokens);
  std::vector<std::string> tokens(special_tokens.begin(), special_tokens.end());
  // In the order of their characters, as the trainer of `tokenizers` numbers them.
  std::array<std::size_t, byte_count> bytes{};
  std::iota(bytes.begin(), bytes.end(), std::size_t{0});
  std::ranges::sort(bytes, {}, [](std::size_t byte) { return byte_alphabet[byte]; });
  std::array<std::int32_t, byte_count> id_of_byte{};
  for (const std::size_t byte : bytes) {
    id_of_byte[byte] = static_cast<std::int32_t>(tokens.size());
    append_code_point(tokens.emplace_back(), byte_alphabet[byte]);
  }
  std::vector<CountedWord> words;
  for (const auto& [text, count] : counts_) {
    CountedWord& word = words.emplace_back();
    word.count = count;
    for (const char byte : text) word.ids.push_back(id_of_byte[static_cast<unsigned char>(byte)]);
  }
  const LearnedMerges learned = MergeLearner(std::move(words), std::move(tokens)).run(vocab_size);
  if (learned.merges.empty()) fail_request("the texts have no word of two bytes, so there is nothing to learn");
  std::vector<std::int32_t> special(special_tokens.size());
  std::iota(special.begin(), special.end(), 0);
  return byte_level_file(pattern_, learned.tokens, special, learned.merges, false);
}

}  // namespace weft
