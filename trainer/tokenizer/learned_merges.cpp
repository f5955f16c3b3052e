// Follows BpeTrainer::do_train of `tokenizers` step by step, since details decide about equal counts. An entry of the
// queue keeps the words in which its pair arose, and its count is refreshed when it comes up. A merge may give a token
// that is present already, such as a special token that stands in the texts.
#include "trainer/tokenizer/learned_merges.h"

#include <algorithm>
#include <unordered_map>

namespace weft {
namespace {

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

class MergeLearner {
 public:
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

}  // namespace

LearnedMerges learn_merges(std::vector<CountedWord> words, std::vector<std::string> tokens, std::int64_t vocab_size) {
  return MergeLearner(std::move(words), std::move(tokens)).run(vocab_size);
}

}  // namespace weft
