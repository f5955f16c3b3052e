// The coefficient of the load-balancing loss, which is another number in transformers for the same pull on a router. Of
// E experts, K choices a token and B MoE blocks, with f_be the choices of expert e in block b a token (their sum over e
// is K) and p_be its mean probability:
//
//   transformers  E * sum_e (mean_b f_be) * (mean_b p_be)         load_balancing_loss_func: K where routing is uniform
//   Weft          sum_b E / K * sum_e f_be * p_be, by sequence    load_balance.h: B where routing is uniform
//
// Where all blocks and sequences have the same f and p, Weft's is B / K times that of transformers, and so is the
// gradient of each block. Elsewhere transformers lets an expert that one block neglects be made up for by another block
// or another sequence, which no factor expresses.
#pragma once

#include <string>

#include "layers/model_config.h"

namespace weft {

// router_aux_loss_coef of Weft for that of a folder's config.json: x K / B.
double coefficient_from_folder(double of_folder, const ModelConfig& model);
// And back: x B / K, rounded to 15 digits, so that what came from a folder returns to it as it was.
double coefficient_for_folder(const ModelConfig& model);

// The conversion in a line, for those who run it; empty where there is no such loss.
std::string coefficient_text(const ModelConfig& model);

}  // namespace weft
