#include "parallel/runtime/error.h"
#include "trainer/config/update_groups.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

// `check` returns the faults of a tied weight. They are shown at the first written key of `keys`.
ConfigRule tied_rule(std::vector<std::string> keys, Messages (*check)(const Config& config)) {
  keys.push_back("model.tie_word_embeddings");
  return {std::move(keys), [=](const Config& c) {
            Messages messages = c.model.tie_word_embeddings ? check(c) : Messages{};
            for (std::string& text : messages)
              text = "tie_word_embeddings makes embedding and head one weight, " + text;
            return messages;
          }};
}

// The sum of all copies is rounded once, so it must be whole when it is reduced.
ConfigRule copies_rule(Family family, const std::string& section) {
  std::vector<std::string> keys;
  for (const char* key : {".reduction", ".accumulation", ".residency"}) keys.push_back(section + key);
  for (const char* key : {"shard.reduction", "shard.accumulation", "shard.residency", "precision.reduction",
                          "model.tie_word_embeddings", "model.layers"}) {
    keys.emplace_back(key);
  }
  return {std::move(keys), [=](const Config& c) {
            const DType reduction = c.precision_of(family).reduction;
            if (reduction == DType::float32 || !has_copies(c, family) || c.training.frozen.contains(family)) {
              return Messages{};
            }
            const UnitPolicy policy = resolve_policy(c, family, 0);
            const bool solved = policy.residency == Residency::solved, sharded = policy.accumulate_sharded;
            const std::string copies =
                c.model.tie_word_embeddings
                    ? "tie_word_embeddings makes embedding and head one weight, of which two"
                    : fmt::format("predictors (m) share the weight of {}, of which two", name_of(family));
            const std::string both = c.model.tie_word_embeddings
                                         ? "precision.embedding.reduction and precision.head.reduction"
                                         : fmt::format("precision.{}.reduction", name_of(family));
            return none_or(policy.reduce_every == 0 && !solved && !sharded,
                           "{} stages have a copy: their sum is reduced in \"{}\" once a step, but {} has {}: write "
                           "that key with {}, or {} \"float32\"",
                           copies, name_of(reduction), section,
                           solved    ? "residency \"auto\""
                           : sharded ? "accumulation \"sharded\""
                                     : "a reduction every few microbatches",
                           solved    ? "another value"
                           : sharded ? "\"unsharded\""
                                     : "reduction \"last_microbatch\"",
                           both);
          }};
}

std::string text_of(const PrecisionConfig& precision) {
  return fmt::format("parameters \"{}\", compute \"{}\", reduction \"{}\"", name_of(precision.parameters),
                     name_of(precision.compute), name_of(precision.reduction));
}

}  // namespace

// One weight has one precision and one rule, and is trained or frozen. Copies on two stages are units of their own.
std::vector<ConfigRule> tied_rules() {
  return {
      tied_rule({"precision.embedding.parameters", "precision.embedding.compute", "precision.embedding.reduction",
                 "precision.head.parameters", "precision.head.compute", "precision.head.reduction"},
                [](const Config& c) {
                  const PrecisionConfig &one = c.precision_of(Family::embedding), &other = c.precision_of(Family::head);
                  return none_or(one == other,
                                 "but precision.embedding has {} and precision.head {}: write the same for both",
                                 text_of(one), text_of(other));
                }),
      tied_rule({"training.frozen"},
                [](const Config& c) {
                  const bool embedding = c.training.frozen.contains(Family::embedding);
                  return none_or(embedding == c.training.frozen.contains(Family::head),
                                 "but training.frozen has {} alone: write both or neither",
                                 embedding ? "embedding" : "head");
                }),
      tied_rule({"optimizer.head.name", "optimizer.head.learning_rate", "optimizer.head.weight_decay"},
                [](const Config& c) {
                  const OptimizerConfig standard = inherited_options(c.optimizer, UpdateGroup::head);
                  return none_or(resolved_groups(c)[UpdateGroup::head] == standard,
                                 "which optimizer.embedding steps, and optimizer.head nothing: leave it out");
                }),
      tied_rule({"shard.embedding.wrap", "parallelism.pipeline", "pipeline.chunks"},
                [](const Config& c) {
                  return none_or(
                      c.shard_by_family.at(Family::embedding).wrap.kind != WrapKind::root || c.stages() == 1,
                      "of which two stages have a copy, but shard.embedding.wrap \"root\" puts each into a unit of its "
                      "stage with other parameters: write wrap \"block\"");
                }),
      copies_rule(Family::embedding, "shard.embedding"),
      copies_rule(Family::head, "shard.head"),
  };
}

}  // namespace weft
