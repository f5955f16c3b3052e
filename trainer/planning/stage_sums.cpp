#include "trainer/planning/stage_sums.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "parallel/pipeline/orders/orders.h"
#include "trainer/plan/unit_policy.h"

namespace weft {
namespace {

const ModelPiece& piece_of(const ModelPieces& pieces, const Config& config, int block) {
  return pieces.blocks.at(config.model.blocks[static_cast<std::size_t>(block)]);
}

// The pieces of a stage, in forward order.
std::vector<const ModelPiece*> pieces_of(const ModelPieces& pieces, const Config& config, const StageBlocks& stage) {
  std::vector<const ModelPiece*> list;
  const bool tied = config.model.tie_word_embeddings && stage.embedding && stage.head;
  if (stage.embedding) list.push_back(tied ? &pieces.both : &pieces.embedding);
  for (int block = stage.first; block < stage.first + stage.count; ++block) {
    if (block < config.model.layers()) list.push_back(&piece_of(pieces, config, block));
  }
  if (stage.predicts(config.model)) list.push_back(&pieces.predictors);
  if (stage.head && !tied) list.push_back(&pieces.head);
  return list;
}

double reductions_of(const UnitPolicy& policy, std::int64_t microbatches) {
  const bool every = policy.reduce_every > 0 && policy.residency != Residency::solved;
  return every ? static_cast<double>((microbatches + policy.reduce_every - 1) / policy.reduce_every) : 1.0;
}

// Whether units have parameters of several blocks, so that those of each block alone tell nothing of their collectives.
bool merges_blocks(const Config& config, Family family) {
  const WrapKind kind = config.shard_by_family.at(family).wrap.kind;
  return kind != WrapKind::parameter && kind != WrapKind::block && kind != WrapKind::half_block;
}

// Of a stage with so many blocks, whether every forward and every backward gathers all of them except one. Between a
// forward and the next backward that is the block at the turn. A unit also stays if its next gather would begin right
// behind its last use. With a lookahead of 1 that happens where two units alternate, with larger ones more often. In
// overlapped pairs forwards and backwards also meet in the middle of a stage.
bool gathers_again(const Config& config, const UnitPolicy& policy, std::int64_t blocks) {
  return policy.residency == Residency::reshard_after_use && policy.lookahead <= 1 && blocks >= policy.lookahead + 2 &&
         !hides_rows(config);
}

}  // namespace

bool hides_rows(const Config& config) {
  return config.pipeline.own_order || find_schedule(config.pipeline.schedule).overlaps;
}

StageSums sums_of(const Config& config, const ModelPieces& pieces, const StageBlocks& blocks, int stage) {
  StageSums sums;
  const std::int64_t microbatches = config.microbatches();
  // Seconds of one gather of blocks' units, by family.
  struct Gathers {
    double all = 0.0, most = 0.0;
    std::int64_t blocks = 0;
  };
  std::map<std::pair<Family, UnitSeconds*>, Gathers> of_blocks;
  double last_again = 0.0, routing = 0.0;
  for (const ModelPiece* piece : pieces_of(pieces, config, blocks)) {
    ModelPiece& sum = sums.sum;
    sum.static_bytes += piece->static_bytes;
    sum.kept_bytes += piece->kept_bytes;
    sum.kept_parted_bytes += piece->kept_parted_bytes;
    sum.forward += piece->forward;
    sum.backward_input += piece->backward_input;
    sum.backward_weight += piece->backward_weight;
    sum.again += piece->again;
    sum.forward_rows += piece->forward_rows;
    sum.rows += piece->rows;
    sum.on_adapters += piece->on_adapters;
    if (piece->again > 0.0) last_again = piece->again;
    const bool is_block = piece != &pieces.embedding && piece != &pieces.head && piece != &pieces.both;
    for (const auto& [family, units] : piece->units) {
      const UnitPolicy policy = resolve_policy(config, family, stage);
      const double times = reductions_of(policy, microbatches);
      // The routing helpers of a stage are one unit; it takes at least as long as those of any block.
      if (is_replicated(family)) {
        routing = std::max(routing, units.seconds.reductions * times);
        continue;
      }
      for (const auto& [once, step] :
           {std::pair(&units.seconds, &sums.units), std::pair(&units.on_adapters, &sums.on_adapters)}) {
        if (merges_blocks(config, family)) continue;
        step->reductions += once->reductions * times;
        step->gathers += once->gathers;
        if (!is_block) continue;
        Gathers& gathers = of_blocks[{family, step}];
        gathers.all += once->gathers;
        gathers.most = std::max(gathers.most, once->gathers);
        ++gathers.blocks;
      }
      // The backward of the embedding does not read the unit.
      const bool read_last = piece != &pieces.embedding;
      if (policy.residency == Residency::step && read_last) sums.parameters += units.unsharded_bytes;
      if (policy.reduce_every == 0 && !policy.accumulate_sharded && policy.residency != Residency::solved) {
        sums.gradients += units.gradient_bytes;
      }
    }
  }
  for (const auto& [key, gathers] : of_blocks) {
    if (!gathers_again(config, resolve_policy(config, key.first, stage), gathers.blocks)) continue;
    const double turns = 2.0 * static_cast<double>(microbatches) * (gathers.all - gathers.most);
    key.second->gathers += std::max(turns - gathers.all, 0.0);
  }
  sums.units.reductions += routing;
  sums.alike = sums.sum.again - last_again;
  return sums;
}

// Of each stage, a forward or a backward does not gather its longest blocks again. Without a lookahead that is one, and
// with a lookahead of 1 up to two (gathers_again).
UnitsOfModel units_of_model(const Config& config, const ModelPieces& pieces, int stages) {
  std::vector<const ModelPiece*> all;
  for (const auto& [kind, piece] : pieces.blocks) all.push_back(&piece);
  const std::size_t blocks = all.size();
  if (!config.model.tie_word_embeddings) all.insert(all.end(), {&pieces.embedding, &pieces.head});
  const auto microbatches = static_cast<double>(config.microbatches());
  UnitsOfModel units;
  for (const auto& [family, shard] : config.shard_by_family) {
    if (is_replicated(family)) continue;
    const UnitPolicy policy = resolve_policy(config, family, 0);
    const bool known = shard.residency_by_stage.empty();
    const bool again = known && gathers_again(config, policy, policy.lookahead + 2);
    const double reductions = reductions_of(policy, config.microbatches());
    for (const auto& [of_piece, sum] :
         {std::pair(&PieceUnits::seconds, &units.seconds), std::pair(&PieceUnits::on_adapters, &units.on_adapters)}) {
      if (merges_blocks(config, family)) continue;
      double once = 0.0, longest = 0.0, of_blocks = 0.0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto found = all[i]->units.find(family);
        if (found == all[i]->units.end()) continue;
        const UnitSeconds& seconds = found->second.*of_piece;
        sum->reductions += all[i]->count * seconds.reductions * reductions;
        once += all[i]->count * seconds.gathers;
        if (i >= blocks) continue;
        of_blocks += all[i]->count * seconds.gathers;
        longest = std::max(longest, seconds.gathers);
      }
      const double most_kept = (policy.lookahead + 1) * stages * longest;
      const double turns = 2.0 * microbatches * (of_blocks - most_kept);
      sum->gathers += once + (again ? std::max(0.0, turns - of_blocks) : 0.0);
    }
    if (!known || policy.residency != Residency::step) continue;
    // The backward of the embedding does not read the unit.
    for (const ModelPiece* piece : all) {
      const auto found = piece->units.find(family);
      if (piece == &pieces.embedding || found == piece->units.end()) continue;
      units.parameters += piece->count * found->second.unsharded_bytes;
    }
  }
  return units;
}

}  // namespace weft
