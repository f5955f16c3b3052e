#include "layers/model_config.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Limits on blocks and on nested parentheses; a pattern beyond them is a typing error. The deepest published model,
// DeepNet, has 1,000 blocks (Wang et al. 2022).
constexpr std::size_t largest_model = 1024;
constexpr int deepest_group = 64;
constexpr std::size_t largest_width = 0x7fffffff;

struct BlockSymbol {
  char letter;
  BlockKind kind;
  Mixer mixer;
};
constexpr BlockSymbol symbols[] = {
    {'d', BlockKind::dense, Mixer::attention}, {'e', BlockKind::moe, Mixer::attention},
    {'A', BlockKind::none, Mixer::attention},  {'M', BlockKind::none, Mixer::state_space},
    {'D', BlockKind::dense, Mixer::none},      {'E', BlockKind::moe, Mixer::none}};

std::optional<ModelBlock> find_block(char letter) {
  const auto found = std::ranges::find(symbols, letter, &BlockSymbol::letter);
  if (found == std::ranges::end(symbols)) return std::nullopt;
  return ModelBlock(found->kind, 0, found->mixer);
}

// Recursive descent over: sequence := (item ['*' number | '~' number])*, item := block [':' width] | 'm' | '(' sequence
// ')'. Blocks are the letters of `symbols`.
class LayerPattern {
 public:
  explicit LayerPattern(std::string_view text) : text_(text) {}

  ModelLayers parse() {
    ModelLayers layers;
    for (const Symbol& symbol : sequence(0)) {
      if (symbol.letter == 'm') {
        if (layers.blocks.empty()) wrong(symbol.at, "m predicts behind blocks, and here are none");
        if (!layers.blocks.back().is_whole()) {
          wrong(symbol.at, "m repeats the last block, which is a part alone: end the model with d or e");
        }
        layers.blocks.push_back(layers.blocks.back());
        ++layers.mtp_depth;
      } else {
        if (layers.mtp_depth > 0) wrong(symbol.at, "a block behind m (multi-token prediction), which comes last");
        layers.blocks.push_back(*find_block(symbol.letter));
        layers.blocks.back().width = symbol.width;
      }
    }
    if (layers.blocks.empty()) fail_request("the pattern \"{}\" names no block", text_);
    return layers;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char symbol) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != symbol) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void wrong(std::size_t at, const char* what) {
    constexpr std::size_t readable = 200;
    const std::string_view shown = text_.substr(0, readable);
    fail_request("column {} of \"{}{}\": {}", at + 1, shown, shown.size() < text_.size() ? "..." : "", what);
  }
  [[noreturn]] void wrong(const char* what) { wrong(at_, what); }

  struct Symbol {
    char letter;
    std::size_t at;  // in the text
    std::int64_t width = 0;
  };

  std::vector<Symbol> sequence(int depth) {
    const bool inside = depth > 0;
    if (depth > deepest_group) wrong("more than 64 parentheses inside each other");
    std::vector<Symbol> blocks;
    for (;;) {
      skip_spaces();
      if (at_ == text_.size()) {
        if (inside) wrong("a parenthesis is not closed");
        return blocks;
      }
      std::vector<Symbol> item;
      if (const std::optional<ModelBlock> block = find_block(text_[at_])) {
        item = {{text_[at_], at_}};
        ++at_;
        if (take(':')) {
          if (block->kind == BlockKind::none) wrong("A and M have no width");
          item.front().width = static_cast<std::int64_t>(
              number(largest_width, "a width is less than 2^31", "expected a width, at least 1"));
        }
      } else if (take('m')) {
        item = {{text_[at_ - 1], at_ - 1}};
      } else if (take('(')) {
        item = sequence(depth + 1);
      } else if (inside && take(')')) {
        return blocks;
      } else {
        wrong(
            "expected d (dense), e (experts), m (multi-token prediction), a part alone (A attention, M Mamba-2, "
            "D dense, E experts) or a group in parentheses");
      }
      const std::size_t length = take('~') ? repeats() : item.size() * (take('*') ? repeats() : 1);
      if (blocks.size() + length > largest_model) wrong("more than 1024 blocks");
      if (item.empty() && length > 0) wrong("an empty group fills no blocks");
      for (std::size_t i = 0; i < length; ++i) blocks.push_back(item[i % item.size()]);
    }
  }

  std::size_t repeats() {
    return number(largest_model, "more than 1024 blocks", "expected a number of repeats, at least 1");
  }
  std::size_t number(std::size_t largest, const char* too_large, const char* none) {
    skip_spaces();
    std::size_t value = 0;
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      value = value * 10 + static_cast<std::size_t>(text_[at_++] - '0');
      if (value > largest) wrong(too_large);
    }
    if (at_ == begin || value == 0) wrong(none);
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string block_symbol(const ModelBlock& block) {
  const auto found = std::ranges::find_if(
      symbols, [&](const BlockSymbol& symbol) { return symbol.kind == block.kind && symbol.mixer == block.mixer; });
  require(found != std::ranges::end(symbols), "a block has a letter");
  return block.width > 0 ? fmt::format("{}:{}", found->letter, block.width) : std::string(1, found->letter);
}

std::vector<std::int64_t> ModelConfig::widths(BlockKind kind) const {
  std::vector<std::int64_t> different;
  for (const ModelBlock& block : blocks) {
    if (block == kind && std::ranges::find(different, width(block)) == different.end()) {
      different.push_back(width(block));
    }
  }
  return different;
}

ModelLayers parse_layers(std::string_view pattern) {
  return LayerPattern(pattern).parse();
}

}  // namespace weft
