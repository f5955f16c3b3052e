// The outputs of `weft plan`, each as text and as the JSON document that scripts rely on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/advise.h"
#include "trainer/planning/coarse.h"
#include "trainer/planning/explain.h"
#include "trainer/planning/kernel_plan.h"
#include "trainer/planning/run_plan.h"

namespace weft {

std::string plan_text(const Config& config, const Hardware& hardware, const RunPlan& plan);
// One line after `heading`: the verdict with even and with worst routing. Empty if routing changes no total.
std::string plan_routing_text(std::string_view heading, const RunPlan& plan);
std::string plan_json(const Config& config, const Hardware& hardware, const RunPlan& plan);

// --explain: why a run does not fit and which changes make it fit.
std::string plan_explain_text(const Explanation& explanation, const Hardware& hardware);
// At most three remedies of a plan that does not fit; remedies that suffice alone come first. If none does: the first
// combination that fits, and the fewest ranks where they were searched.
std::string plan_remedies_text(const Explanation& explanation);
std::string plan_explain_json(const Explanation& explanation, const Hardware& hardware);

// --compare: ways to shard a model's state beside each other, and the recommended one. Throws Error (request) as
// compare_strategies does.
std::string plan_compare_text(const Config& config, const Hardware& hardware, const ReadWith& read);
// {"hardware", "node_bytes_per_second", "compute_seconds", "tokens_per_rank", "certainty", "tie_factor",
//  "strategies": [...], "recommendation"}; bytes are per step. A strategy that does not apply has "refused" and no
// figures.
std::string plan_compare_json(const Config& config, const Hardware& hardware, const ReadWith& read);

// --advise: every value that was tried, the gain of each kept one, and the keys. `file` and `given` are CONFIG and the
// overrides of the command line. The text is a TOML file, for the current folder, with all but the keys in comments.
std::string plan_advise_text(const std::vector<AdvisedStep>& steps, const std::string& file, const Overrides& given);
// {"hardware", "certainty", "tie_factor", "steps": [{"what", "tried": [...], "kept"}], "words", "toml"}; a value that
// is refused has "refused" and no figures.
std::string plan_advise_json(const std::vector<AdvisedStep>& steps, const std::string& file, const Overrides& given);

// Measured kernels beside the calculated kernels of a step: the rates that products, attention and element-wise kernels
// reached, by part of the model and phase. The kind of a kernel follows from its name.
enum class RanAs : std::uint8_t { product, attention, elementwise, communication };
constexpr auto enum_names(RanAs) {
  return name_list("product", "attention", "element-wise", "communication");
}

// One line of the table of kernels (tools/profile/kernel_table.cpp).
struct RanKernel {
  std::string part, phase;  // as in KernelRow
  RanAs kind = RanAs::elementwise;
  double seconds = 0.0, launches = 0.0;  // per step
};
// Reads the table of kernels of this many steps. Throws Error (request) naming a line that is not of the table.
std::vector<RanKernel> read_kernel_table(const std::string& file, int steps);

// For each part and phase: calls and launches, calculated and measured milliseconds, and the reached operations and
// bytes a second.
std::string reached_text(const KernelPlan& plan, const std::vector<RanKernel>& ran);

// --kernels: the kernels of a step, their bytes and operations, and their calculated times. Both throw Error (request)
// as plan_kernels() does (kernel_plan.h). `ran`: measured kernels to show as well; may be empty.
std::string plan_kernels_text(const Config& config, const Hardware& hardware, const std::vector<RanKernel>& ran);
// {"hardware", "rank", "world", "product_shares": [...], "rows": [...], "kinds": [...], "seconds": [...], "step_flops",
// "utilisation": [...]}; seconds are of a step, by the shares.
std::string plan_kernels_json(const Config& config, const Hardware& hardware);

// --coarse: formulas by hand (coarse.h). Every line of the text begins with the word "coarse".
std::string plan_coarse_text(const CoarseRequest& request, const Card& card);
std::string plan_coarse_json(const CoarseRequest& request, const Card& card);

}  // namespace weft
