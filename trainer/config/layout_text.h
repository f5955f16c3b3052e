// Stage layouts as users write them: the contents of each stage of the pipeline, in model order.
//
//   layout := item*                 commas and spaces are dropped
//   item   := symbol | '(' item* ')', each optionally followed by '*' count
//   symbol := E embedding | d dense block | e MoE block | t a block of either kind | m a predictor of one more token
//             | L head | '|' the next stage
//
// "Ed|(e|)*3eL" has five stages. A '|' at the very end opens one more stage, as in Megatron-Core. Strings of
// Megatron-Core are read unchanged. Only the text is checked here; stage_layout.h compares it with a model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace weft {

// One symbol where it was written. Repeats share their column.
struct LayoutSymbol {
  char symbol = '|';
  std::size_t text = 0;    // index of the text, if each stage has its own
  std::size_t offset = 0;  // bytes before the symbol
};

struct WrittenStage {
  LayoutSymbol opened_by;  // the stage's '|'; for the first stage, the beginning of the text
  std::vector<LayoutSymbol> symbols;
};

struct LayoutFault {
  std::size_t text = 0;
  std::string message;  // "column 4: ...", with the text and a caret below it
};

struct LayoutText {
  std::vector<std::string> texts;  // one, or one a stage
  std::vector<WrittenStage> stages;
  std::vector<LayoutFault> faults;  // if there are any, `stages` has no meaning

  // The place behind the last symbol.
  LayoutSymbol end() const { return {'|', texts.size() - 1, texts.back().size()}; }
  // The fault `what` at a place in the texts.
  LayoutFault fault_at(const LayoutSymbol& place, const std::string& what) const;
};

// Reads a layout in one text. Faults are symbols and counts without a meaning, and an embedding or head that is
// missing, doubled or not at its end. So are predictors that stand on two stages or in front of a block.
LayoutText read_layout(const std::string& text);
// Reads a layout with one text for each stage; at least one text.
LayoutText read_layout(const std::vector<std::string>& stages);

// The shortest text that this function finds for stages of symbols, such as {"Ed", "e", "e", "e", "eL"}: "Ed|(e|)*3eL".
// read_layout() gives the same stages back.
std::string format_layout(const std::vector<std::string>& stages);

// The symbols of one stage, spaced for display: "E d e*3".
std::string spaced_symbols(const std::string& stage);

}  // namespace weft
