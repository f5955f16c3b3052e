#include "trainer/huggingface/router_coefficient.h"

#include <fmt/format.h>

#include <string>

namespace weft {
namespace {

double moe_blocks(const ModelConfig& model) {
  return static_cast<double>(model.count(BlockKind::moe));
}
double choices(const ModelConfig& model) {
  return static_cast<double>(model.moe.num_experts_per_tok);
}

}  // namespace

double coefficient_from_folder(double of_folder, const ModelConfig& model) {
  return moe_blocks(model) == 0.0 ? 0.0 : of_folder * choices(model) / moe_blocks(model);
}

double coefficient_for_folder(const ModelConfig& model) {
  const double exact = model.moe.router_aux_loss_coef * moe_blocks(model) / choices(model);
  return std::stod(fmt::format("{:.15g}", exact));
}

std::string coefficient_text(const ModelConfig& model) {
  if (model.moe.router_aux_loss_coef == 0.0 || moe_blocks(model) == 0.0) return {};
  return fmt::format("router_aux_loss_coef: {} in transformers is {:.6g} in Weft: x {} choices / {} MoE blocks",
                     coefficient_for_folder(model), model.moe.router_aux_loss_coef, choices(model), moe_blocks(model));
}

}  // namespace weft
