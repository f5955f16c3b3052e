#include "trainer/config/config.h"

#include <algorithm>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

// The number behind `prefix`, at least 1.
std::optional<int> count_behind(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const auto count = parsed_number<int>(text.substr(prefix.size()));
  return count.value_or(0) >= 1 ? count : std::nullopt;
}

}  // namespace

double Config::expert_rows_per_choice() const {
  const MoeConfig& moe = model.moe;
  if (!moe.drops()) return hardware.expert_load;
  if (!moe.pads()) return std::min(hardware.expert_load, moe.room_of_choice(training.sequence_length));
  const std::int64_t tokens = microbatch_tokens() / (parallelism.context * parallelism.tensor);
  const std::int64_t rows = moe.capacity_rows(tokens, training.microbatch_size, training.sequence_length);
  return static_cast<double>(moe.num_experts * rows) / static_cast<double>(tokens * moe.num_experts_per_tok);
}

ResidencyChoice parse_residency(const std::string& text) {
  if (text == "stage") return {};
  const auto named = value_named<Residency>(text);
  if (named && *named != Residency::window && *named != Residency::island) return {*named};
  for (const auto& [before, now] :
       {std::pair("each_use", Residency::reshard_after_use), std::pair("visit", Residency::while_on_stage)}) {
    if (text == before) fail_request("residency \"{}\" is called \"{}\" now", before, name_of(now));
  }
  if (const auto stages = count_behind("window ", text)) return {Residency::window, *stages};
  if (const auto ranks = count_behind("", text)) return {Residency::island, *ranks};
  fail_request(
      "residency \"{}\" is not \"stage\", \"reshard_after_use\", \"keep_after_forward\", \"keep_after_backward\", "
      "\"while_on_stage\", "
      "\"step\", \"auto\", \"window K\" (K stages, at least 1), or a number of ranks that keep parts after a forward",
      text);
}

std::string to_string(const ResidencyChoice& choice) {
  if (!choice.kind) return "stage";
  if (*choice.kind == Residency::island) return fmt::format("{}", choice.amount);
  if (*choice.kind == Residency::window) return fmt::format("window {}", choice.amount);
  return std::string(name_of(*choice.kind));
}

ReductionChoice parse_reduction(const std::string& text) {
  if (const auto period = count_behind("every ", text)) return {ReductionKind::every, *period};
  const auto kind = value_named<ReductionKind>(text);
  if (kind && *kind != ReductionKind::every) return {*kind};
  fail_request("reduction \"{}\" is not auto, each_microbatch, last_microbatch or \"every N\"", text);
}

std::string to_string(const ReductionChoice& choice) {
  const std::string_view name = name_of(choice.kind);
  return choice.kind == ReductionKind::every ? fmt::format("{} {}", name, choice.period) : std::string(name);
}

int ShardPolicy::reduce_every() const {
  // Under shard_grad_op, gradients are not kept whole from one microbatch to the next.
  if (reduction.kind == ReductionKind::by_strategy) {
    return strategy == ShardStrategy::shard_grad_op && accumulation != Accumulation::sharded ? 1 : 0;
  }
  return reduction.kind == ReductionKind::each_microbatch ? 1 : reduction.period;
}

std::string_view name_of(const ComputeType& type) {
  return type.products == ProductFormat::as_stored ? name_of(type.dtype) : name_of(type.products);
}

ProductFormat product_format(const Config& config, Family family) {
  const bool in_use = family == Family::dense || config.model.has(BlockKind::moe);
  return in_use && offers_float8(family) ? config.precision_of(family).compute.products : ProductFormat::as_stored;
}

bool uses_format(const Config& config, ProductFormat format) {
  return product_format(config, Family::dense) == format || product_format(config, Family::experts) == format;
}

bool uses_float16(const Config& config) {
  const auto narrow = [](const PrecisionConfig& precision) {
    return precision.compute == DType::float16 || precision.reduction == DType::float16;
  };
  if (config.model.has(BlockKind::moe) && narrow(config.precision_of(Family::experts))) return true;
  // Units of the root family hold parameters of these families, in the same precision.
  return std::ranges::any_of(std::array{Family::dense, Family::embedding, Family::head},
                             [&](Family family) { return narrow(config.precision_of(family)); });
}

}  // namespace weft
