#include "trainer/inference/load_weights.h"

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/load.h"

namespace weft {

FillWeights weights_of_checkpoint(const std::filesystem::path& folder, const Config& config) {
  const auto reader = std::make_shared<const CheckpointReader>(folder);
  const std::string differing = differing_keys(reader->manifest().model, model_keys(config));
  if (!differing.empty()) fail_request("{} is of another model:\n{}", folder.string(), differing);
  LoadRules rules;
  rules.weights_only = true;
  const LoadPlan plan = plan_load(reader->manifest(), expected_tensors(config, rules.weights_only), rules);
  return
      [reader, plan](RankStages& stages, Stream& stream) { load_rows(*reader, plan, parameter_rows(stages), stream); };
}

}  // namespace weft
