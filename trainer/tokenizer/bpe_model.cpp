#include "trainer/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

// Up to this length a search through all pairs is faster than a heap.
constexpr std::size_t short_word = 48;
constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();

std::uint32_t rank_of_pair(const MergeTable& merges, std::int32_t left, std::int32_t right) {
  const PairMerge* merge = merges.find(left, right);
  return merge == nullptr ? no_rank : merge->rank;
}

// ranks[i] is the rank of the pair (i, i + 1).
void merge_short(std::vector<std::int32_t>& ids, const MergeTable& merges, std::vector<std::uint32_t>& ranks) {
  ranks.clear();
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) ranks.push_back(rank_of_pair(merges, ids[i], ids[i + 1]));
  while (!ranks.empty()) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == no_rank) return;
    const auto i = static_cast<std::size_t>(lowest - ranks.begin());
    ids[i] = merges.find(ids[i], ids[i + 1])->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(lowest);
    if (i < ranks.size()) ranks[i] = rank_of_pair(merges, ids[i], ids[i + 1]);
    if (i > 0) ranks[i - 1] = rank_of_pair(merges, ids[i - 1], ids[i]);
  }
}

bool merged_later(const MergeScratch::Candidate& a, const MergeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

// With a heap of the pairs.
void merge_long(std::vector<std::int32_t>& ids, const MergeTable& merges, MergeScratch& scratch) {
  std::vector<MergeScratch::Symbol>& symbols = scratch.symbols;
  std::vector<MergeScratch::Candidate>& heap = scratch.heap;
  const auto propose = [&](std::int64_t position) {
    const MergeScratch::Symbol& left = symbols[position];
    const PairMerge* merge = merges.find(left.id, symbols[left.next].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, merge->id, position});
    std::push_heap(heap.begin(), heap.end(), merged_later);
  };
  const auto count = static_cast<std::int64_t>(ids.size());
  symbols.clear();
  heap.clear();
  for (std::int64_t i = 0; i < count; ++i) symbols.push_back({ids[i], i - 1, i + 1 < count ? i + 1 : -1});
  for (std::int64_t i = 0; i + 1 < count; ++i) propose(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), merged_later);
    const MergeScratch::Candidate best = heap.back();
    heap.pop_back();
    MergeScratch::Symbol& left = symbols[best.position];
    if (left.id < 0 || left.next < 0) continue;
    MergeScratch::Symbol& right = symbols[left.next];
    // The pair may have changed since it was proposed.
    const PairMerge* merge = merges.find(left.id, right.id);
    if (merge == nullptr || merge->rank != best.rank) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols[left.next].previous = best.position;
      propose(best.position);
    }
    if (left.previous >= 0) propose(left.previous);
  }
  ids.clear();
  for (std::int64_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

[[noreturn]] void refuse_character(std::string_view character, std::string_view kind) {
  fail_request("the text has the {} {}, for which the vocabulary has neither a token nor an unknown token", kind,
               character);
}

}  // namespace

MergeTable::MergeTable(std::size_t pairs)
    : slots_(std::bit_ceil(2 * pairs + 2), Slot{no_key, {}}), mask_(slots_.size() - 1) {}

void MergeTable::add(std::int32_t left, std::int32_t right, PairMerge merge) {
  require(2 * (size_ + 1) <= slots_.size(), "a table of merges has room");
  const std::uint64_t key = key_of(left, right);
  std::size_t i = slot_of(key);
  while (slots_[i].key != no_key && slots_[i].key != key) i = (i + 1) & mask_;
  if (slots_[i].key == no_key) ++size_;
  slots_[i] = {key, merge};
}

void merge_tokens(std::vector<std::int32_t>& ids, const MergeTable& merges, MergeScratch& scratch) {
  if (ids.size() < 2) return;
  if (ids.size() <= short_word) return merge_short(ids, merges, scratch.ranks);
  merge_long(ids, merges, scratch);
}

void append_vocabulary(const TokenIds& vocabulary, std::string& meaning) {
  std::vector<std::pair<std::int32_t, std::string_view>> sorted;
  for (const auto& [token, id] : vocabulary) sorted.emplace_back(id, token);
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [id, token] : sorted) meaning += fmt::format("{} {} {}\n", id, token.size(), token);
}

BpeModel::BpeModel(TokenIds vocabulary, MergeTable merges, BpeRules rules)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), rules_(std::move(rules)) {
  if (rules_.unk_token) unk_ = find(*rules_.unk_token);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    append_code_point(character, byte_alphabet[byte]);
    byte_ids_[byte] = find(character).value_or(-1);
    fallback_ids_[byte] = find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

std::optional<std::int32_t> BpeModel::find(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) return std::nullopt;
  return found->second;
}

// As BPE::merge_word of `tokenizers`. An unknown token is written when the next known one comes; the tokens of
// byte_fallback do not count as known there.
void BpeModel::begin_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  bool unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = rules_.words_are_bytes ? 1 : code_point_at(word, at).bytes;
    const std::string_view character = word.substr(at, bytes);
    at += bytes;
    const auto known = rules_.words_are_bytes ? byte_ids_[static_cast<unsigned char>(character.front())]
                                              : find(character).value_or(-1);
    if (known >= 0) {
      if (std::exchange(unknown, false)) ids.push_back(*unk_);
      ids.push_back(known);
      continue;
    }
    const std::string spelled = rules_.words_are_bytes ? to_byte_characters(character) : std::string(character);
    const auto fallback = [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)]; };
    if (rules_.byte_fallback &&
        std::all_of(spelled.begin(), spelled.end(), [&](char byte) { return fallback(byte) >= 0; })) {
      std::transform(spelled.begin(), spelled.end(), std::back_inserter(ids), fallback);
      continue;
    }
    if (!unk_) refuse_character(spelled, rules_.words_are_bytes ? "byte of the character" : "character");
    if (unknown && !rules_.fuse_unk) ids.push_back(*unk_);
    unknown = true;
  }
  if (unknown) ids.push_back(*unk_);
}

void BpeModel::encode(std::string_view word, WordScratch& scratch, std::vector<std::int32_t>& ids) const {
  const std::span<const std::int32_t> cached = scratch.cache.find(word);
  if (!cached.empty()) {
    ids.insert(ids.end(), cached.begin(), cached.end());
    return;
  }
  scratch.ids.clear();
  const std::optional<std::int32_t> whole =
      !rules_.ignore_merges ? std::nullopt
                            : find(rules_.words_are_bytes ? to_byte_characters(word) : std::string(word));
  if (whole) {
    scratch.ids.push_back(*whole);
  } else {
    begin_word(word, scratch.ids);
    merge_tokens(scratch.ids, merges_, scratch.merge);
  }
  scratch.cache.add(word, scratch.ids);
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

}  // namespace weft
