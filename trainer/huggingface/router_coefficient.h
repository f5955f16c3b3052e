// The coefficient of the load-balancing loss. The same pull on a router is another number in transformers than in Weft.
// Let there be E experts, K choices per token and B MoE blocks. f_be is the number of choices of expert e in block b
// per token (summing to K over e), p_be the mean probability of the expert:
//
//   transformers  E * sum_e (mean_b f_be) * (mean_b p_be)         load_balancing_loss_func: K where routing is uniform
//   Weft          sum_b E / K * sum_e f_be * p_be, by sequence    routing.h:      B where routing is uniform
//
// If all blocks and sequences have the same f and p, Weft's loss is B / K times that of transformers, and so is the
// gradient of each block. Otherwise transformers lets another block or sequence make up for a block that neglects an
// expert. No factor expresses this.
#pragma once

#include <string>

#include "layers/model_config.h"

namespace weft {

// Weft's router_aux_loss_coef for the one of a folder's config.json: x K / B.
double coefficient_from_folder(double of_folder, const ModelConfig& model);
// The inverse: x B / K, rounded to 15 digits, so that a folder's value returns to the folder unchanged.
double coefficient_for_folder(const ModelConfig& model);

// The conversion in one line, for the user; empty without such a loss.
std::string coefficient_text(const ModelConfig& model);

}  // namespace weft
