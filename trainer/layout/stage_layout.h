// Which blocks stand on which stage, from `pipeline.layout` and its neighbours. Stages are numbered in model order;
// which rank runs one is the schedule's placement (placement.h).
#pragma once

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/layout/automatic_layout.h"
#include "trainer/plan/stage_blocks.h"

namespace weft {

// Matrix-product operations of a block for one token in forward, attention scores at half the sequence (causal).
double block_flops(const ModelConfig& model, BlockKind kind, std::int64_t sequence_length);
double head_flops(const ModelConfig& model);

// Every stage of the configuration, pipeline x chunks of them. Throws Error (request) with layout_faults(), and for
// "auto" with what keeps the schedule from having an order.
std::vector<StageBlocks> stage_layout(const Config& config);

// All that keeps what is written from being a layout of the model, with the place in its text and what would do. Empty
// for "auto", which always is one.
std::vector<std::string> layout_faults(const Config& config);
// The same of pipeline.first_stage_blocks and last_stage_blocks.
std::vector<std::string> end_stage_faults(const Config& config);

// A layout that can be run and yet is hardly meant, a sentence each.
std::vector<std::string> layout_warnings(const Config& config);

// "Ede": the symbols of layout_text.h.
std::string stage_symbols(const StageBlocks& stage, const ModelConfig& model);
// The same configuration with these stages written out where it leaves them to be dealt: whoever looks at many of its
// stages then has them dealt once.
Config with_layout(Config config, const std::vector<StageBlocks>& layout);

// "Ed|(e|)*3eL". As pipeline.layout it gives the same stages.
std::string to_string(const std::vector<StageBlocks>& layout, const ModelConfig& model);

}  // namespace weft
