// Configurations with experts drawn at random. Each is a model with its data, a layout of it, and the run of one rank
// that any layout must repeat.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/trainer/layout_draw.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/config/config_schema.h"
#include "trainer/data/indexed_writer.h"

namespace weft {

// A dataset of 259 tokens. No two tokens of a sequence that see themselves alone are equal, whatever is masked. Of
// equal weights a rounding would decide which a capacity drops. Of documents that are `counted` the losses count from
// the third token on, as those of answers; without `counted` all losses count.
inline void write_documents(const std::string& prefix, const std::vector<std::int64_t>& lengths,
                            const std::vector<bool>& counted = {}) {
  LayoutDraw draw(lengths.size());
  IndexedWriter writer(prefix, 259);
  std::string losses;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    std::vector<std::int32_t> tokens = {static_cast<std::int32_t>(d % 128)};
    while (std::ssize(tokens) < lengths[d]) {
      const auto next = static_cast<std::int32_t>(128 + draw.below(131));
      if (next != tokens.back()) tokens.push_back(next);
    }
    writer.add_document(tokens);
    for (std::int64_t t = 0; t < lengths[d] && !counted.empty(); ++t) losses += counted[d] && t > 1 ? '\1' : '\0';
  }
  writer.finish();
  if (!counted.empty()) std::ofstream(prefix + ".loss", std::ios::binary) << losses;
}

constexpr std::int64_t routed_sequence_length = 16;

inline void write_routed_data(const std::filesystem::path& folder) {
  LayoutDraw draw(1);
  std::vector<std::int64_t> uneven, scarce;
  std::vector<bool> answers, few;
  for (int d = 0; d < 200; ++d) {
    uneven.push_back(1 + draw.below(14));
    answers.push_back(d % 3 != 0);
    // Packed, two do not fit into a sequence: its last tokens are padding, and all that some ranks have.
    scarce.push_back(d % 16 == 0 ? 2 : 10 + d % 3);
    // One sequence of eight has targets: most ranks have none in a microbatch, and some in a step.
    few.push_back(d % 8 == 0);
  }
  write_documents(folder / "uneven", uneven);
  write_documents(folder / "answers", uneven, answers);
  write_documents(folder / "few", std::vector<std::int64_t>(few.size(), routed_sequence_length), few);
  write_documents(folder / "scarce", scarce);
}

inline void draw_data(LayoutDraw& draw, const std::filesystem::path& folder, Config& config) {
  struct Data {
    const char* name;
    Documents documents;
  };
  const Data data =
      draw.from(Data{"uneven", Documents::join}, Data{"uneven", Documents::mask}, Data{"uneven", Documents::pack},
                Data{"answers", Documents::mask}, Data{"answers", Documents::pack}, Data{"few", Documents::mask},
                Data{"scarce", Documents::pack}, Data{"scarce", Documents::pack});
  config.data.train = {(folder / data.name).string()};
  config.data.tokenizer = "none";
  config.data.padded_vocab = false;
  config.data.documents = data.documents;
  config.training.sequence_length = routed_sequence_length;
  config.training.global_batch_size = draw.from(4, 8, 16, 16);
  if (draw.once_in(3)) config.validation = {.data = {(folder / "uneven").string()}, .interval = 2, .batches = 1};
}

inline void draw_router(LayoutDraw& draw, MoeConfig& moe) {
  moe.num_experts = draw.from(4, 8, 8, 12);
  moe.num_experts_per_tok = draw.from(1, 2, 2, 3, 4);
  moe.scoring = draw.from(Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus);
  moe.norm_topk_prob = !draw.once_in(3);
  moe.routed_scaling_factor = draw.from(1.0, 2.5);
  moe.real_fraction = draw.from(1.0, 1.0, 0.5, 0.8, 0.3);
  moe.n_group = draw.from(1, 1, 2, 4);
  moe.topk_group = 1 + draw.below(moe.n_group);
  moe.capacity_factor = draw.from(0.0, 0.0, 0.75, 1.0, 1.5, 1e9);
  moe.drop_policy = draw.from(DropPolicy::probability, DropPolicy::position);
  moe.pad_to_capacity = draw.once_in(2);
  moe.router_aux_loss_coef = draw.from(0.0, 0.02, 0.02, 0.02);
  moe.aux_loss = draw.from(AuxiliaryLoss::sequence, AuxiliaryLoss::microbatch, AuxiliaryLoss::global);
  moe.router_z_loss_coef = draw.from(0.0, 0.001);
  moe.selection_bias = !draw.once_in(3);
  moe.bias_update = draw.from(BiasUpdate::sign, BiasUpdate::proportional);
  moe.bias_update_rate = 0.01;
  moe.bias_schedule = draw.from(BiasSchedule::constant, BiasSchedule::learning_rate);
  moe.shared_expert_intermediate_size = draw.from(0, 8);
  moe.shared_expert_gate = draw.once_in(2);
  moe.router_jitter_noise = draw.from(0.0, 0.0, 0.1);
  moe.force_balance = draw.once_in(10);
}

// A model, its data and what it learns.
inline Config draw_routed_model(LayoutDraw& draw, const std::filesystem::path& folder) {
  const char* layers = draw.from("d e", "e*2", "d e d e", "e d e:6", "d e:12 e d");
  Config config = tiny_config(layers + std::string(draw.from("", "", " m", " m*2")));
  draw_router(draw, config.model.moe);
  draw_data(draw, folder, config);
  config.model.tie_word_embeddings = draw.once_in(4);
  config.model.sliding_window = draw.from(0, 0, 0, 5);
  if (draw.once_in(6)) {
    config.training.frozen = {draw.from(Family::routing, Family::routing, Family::experts, Family::dense)};
  }
  config.lr_scheduler.decay = draw.from(Decay::constant, Decay::linear);
  // Batches of this seed have no tokens of nearly equal values.
  config.run.seed = 1;
  config.run.steps = 3;
  return config;
}

inline ShardPolicy draw_policy(LayoutDraw& draw) {
  return {.strategy = draw.from(ShardStrategy::full_shard, ShardStrategy::full_shard, ShardStrategy::shard_grad_op,
                                ShardStrategy::optimizer, ShardStrategy::no_shard),
          .residency = parse_residency(draw.from("stage", "stage", "reshard_after_use", "keep_after_forward",
                                                 "keep_after_backward", "while_on_stage", "step", "2")),
          .lookahead = draw.from(0, 1, 1, 2),
          .reduction = parse_reduction(draw.from("auto", "last_microbatch", "each_microbatch", "every 3")),
          .accumulation = draw.from(Accumulation::by_strategy, Accumulation::by_strategy, Accumulation::sharded),
          .wrap = parse_wrap(draw.from("block", "block", "half_block", "blocks 2", "parameter"))};
}

inline void draw_order(LayoutDraw& draw, Config& config) {
  struct Order {
    const char* schedule;
    int chunks;
  };
  const Order order = draw.from(Order{"1f1b", 1}, Order{"gpipe", 1}, Order{"zb_h1", 1}, Order{"interleaved", 2},
                                Order{"interleaved", 3}, Order{"looped_bfs", 2}, Order{"zb1p", 2}, Order{"zbv", 2},
                                Order{"v_half", 2}, Order{"v_min", 2}, Order{"dualpipev", 2}, Order{"dualpipev", 2},
                                Order{"combined_1f1b", 1}, Order{"combined_1f1b", 2});
  const bool alone = config.parallelism.pipeline == 1;
  config.pipeline = {.schedule = alone ? "1f1b" : order.schedule, .chunks = alone ? 1 : order.chunks};
  if (!draw.once_in(3)) return;
  const auto counts = any_stages(draw, config.model.layers(), config.stages());
  config.pipeline.layout = counts;
  if (config.model.mtp_depth > 0) {
    config.pipeline.layout = with_predictors(config.model, counts, static_cast<std::uint64_t>(draw.below(8)));
  }
}

// A layout of the model, legal or not, in the place of another.
inline void draw_routed_layout(LayoutDraw& draw, Config& config) {
  Degrees& degrees = config.parallelism;
  degrees = {.pipeline = draw.from(1, 1, 2, 2, 3, 4),
             .data_replicate = draw.from(1, 1, 1, 2),
             .data_shard = draw.from(1, 1, 2, 4),
             .context = draw.from(1, 1, 2, 4),
             .tensor = draw.from(1, 1, 2, 4),
             .expert = draw.from(1, 2, 2, 4, 8),
             .expert_tensor = draw.from(1, 1, 2),
             .expert_dispatch =
                 draw.from(ExpertDispatch::all_to_all, ExpertDispatch::all_gather, ExpertDispatch::hierarchical)};
  degrees.expert_nodes = degrees.expert_dispatch == ExpertDispatch::hierarchical ? draw.from(2, 4) : 1;
  draw_order(draw, config);
  TrainingConfig& training = config.training;
  training.microbatch_size = draw.from(1, 1, 2);
  training.recompute =
      draw.from(Recompute::none, Recompute::selective, Recompute::experts, Recompute::keep_dispatch, Recompute::full);
  const bool blocks = recomputes_blocks(training.recompute);
  training.recompute_every = blocks ? draw.from(1, 1, 2) : 1;
  training.recompute_last_block = !blocks || draw.once_in(2);
  training.weights_at_experts = draw.once_in(2);
  config.shard = draw_policy(draw);
  for (auto& [family, policy] : config.shard_by_family) policy = config.shard;
  config.shard_by_family[Family::experts] = draw_policy(draw);
  config.reduce_inputs = draw.from(0, 1, 1, 2);
  config.replicate.clear();
  if (draw.once_in(6)) config.replicate = {"*norm.weight"};
}

// The run of one rank with the same losses: its microbatches hold what the balance loss counts together
// (docs/experts.md).
inline Config on_one_rank(const Config& config) {
  Config one = config;
  one.parallelism = {};
  one.pipeline = {};
  const MoeConfig& moe = config.model.moe;
  if (moe.router_aux_loss_coef == 0.0 || moe.aux_loss == AuxiliaryLoss::sequence) one.training.microbatch_size = 1;
  if (moe.aux_loss == AuxiliaryLoss::global) one.training.microbatch_size *= config.parallelism.data();
  one.training.recompute = Recompute::none;
  one.training.recompute_every = 1;
  one.training.recompute_last_block = true;
  one.training.weights_at_experts = false;
  one.model.moe.pad_to_capacity = false;
  one.shard = {};
  one.replicate.clear();
  for (auto& [family, policy] : one.shard_by_family) policy = one.shard;
  return one;
}

// The keys that were drawn.
inline std::string drawn_text(const Config& config) {
  const auto text = [](const Config& written) {
    return write_config(written, config_schema(), [](const ConfigKey&) { return std::string(); });
  };
  return fmt::format("{}", fmt::join(changed_values(text(tiny_config("d")), text(config)), "\n"));
}

}  // namespace weft
