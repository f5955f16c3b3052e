// The outputs of `weft plan`, each as text and as the JSON document that scripts rely on.
#pragma once

#include <string>
#include <vector>

#include "trainer/costs/hardware.h"
#include "trainer/planning/advise.h"
#include "trainer/planning/coarse.h"
#include "trainer/planning/explain.h"
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

// --kernels: the kernels of a step, their bytes and operations, and their calculated times. Both throw Error (request)
// as plan_kernels() does (kernel_plan.h). `measured`: a table of kernels that ran in `steps` steps, to show as well, or
// empty. For each part and phase it adds calls and launches, calculated and measured milliseconds, and the reached
// operations and bytes a second. Throws Error (request) naming a line that is not of the table.
std::string plan_kernels_text(const Config& config, const Hardware& hardware, const std::string& measured, int steps);
// {"hardware", "rank", "world", "product_shares": [...], "rows": [...], "kinds": [...], "seconds": [...], "step_flops",
// "utilisation": [...]}; seconds are of a step, by the shares.
std::string plan_kernels_json(const Config& config, const Hardware& hardware);

// --coarse: formulas by hand (coarse.h). Every line of the text begins with the word "coarse".
std::string plan_coarse_text(const CoarseRequest& request, const Card& card);
std::string plan_coarse_json(const CoarseRequest& request, const Card& card);

}  // namespace weft
