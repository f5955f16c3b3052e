// Stage layouts as people write them: what each stage of the pipeline holds, in model order.
//
//   layout := item*                 commas and spaces are dropped
//   item   := symbol | '(' item* ')', each with '*' count behind it or not
//   symbol := E embedding | d dense block | e MoE block | t a block of either kind | L head | '|' the next stage
//
// "Ed|(e|)*3eL" has five stages. A '|' at the very end opens one more stage, as it does for Megatron-Core, whose
// strings are read as they are but for m (multi-token prediction). Only text is judged here: stage_layout.h holds it
// against a model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace weft {

// One symbol where it was written. Repeats share their column.
struct LayoutSymbol {
  char symbol = '|';
  std::size_t text = 0;    // which text, where each stage has its own
  std::size_t offset = 0;  // bytes before it
};

struct WrittenStage {
  LayoutSymbol opened_by;  // its '|'; of the first stage the beginning
  std::vector<LayoutSymbol> symbols;
};

struct LayoutFault {
  std::size_t text = 0;
  std::string message;  // "column 4: ...", with the text and a caret below it
};

struct LayoutText {
  std::vector<std::string> texts;  // one, or one a stage
  std::vector<WrittenStage> stages;
  std::vector<LayoutFault> faults;  // where there are any, stages mean nothing

  // Behind the last symbol.
  LayoutSymbol end() const { return {'|', texts.size() - 1, texts.back().size()}; }
  // `what`, said of a place in the texts.
  LayoutFault fault_at(const LayoutSymbol& place, const std::string& what) const;
};

// Reads a layout in one text. Its faults are symbols and counts that mean nothing, and embedding or head that are
// missing, doubled or not at the ends.
LayoutText read_layout(const std::string& text);
// The same from one text for each stage; at least one.
LayoutText read_layout(const std::vector<std::string>& stages);

// The shortest text this knows for stages of symbols, such as {"Ed", "e", "e", "e", "eL"}: "Ed|(e|)*3eL". read_layout()
// gives the same stages back.
std::string format_layout(const std::vector<std::string>& stages);

// "E d e*3": the symbols of one stage for the eye.
std::string spaced_symbols(const std::string& stage);

}  // namespace weft
