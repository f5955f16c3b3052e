// Tiny runs for comparing layouts: what a run learned, assembled from the rows of all ranks under global names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/trainer/kept_run.h"

namespace weft {

struct LearnedRun {
  std::vector<double> losses, gradient_norms;
  std::map<std::string, std::vector<float>> weights;  // by global name, whole, after the last step
  std::vector<std::string> faults;                    // elements that no rank owns, or replicas that differ
  KeptRun result;
};

// A model of `layers` small enough for hundreds of runs a minute, on a text of its own. Every size that tensor
// parallelism need not divide does not divide.
Config tiny_config(const std::string& layers);

// Assembles whole weights from the rows of ranks, each of which adds its stage once. Not thread-safe.
class WeightCollector {
 public:
  // `stream` is the compute lane of the stage's rank.
  void add(Stream& stream, RankStages& stage);
  // The weights, and what is wrong with them: see LearnedRun.
  void finish(LearnedRun& learned);

 private:
  std::map<std::string, std::vector<float>> weights_;
  std::map<std::string, std::vector<bool>> owned_;
  std::vector<std::string> faults_;
};

// Runs and assembles. `observer` sees the ranks as well; `make_backend` as in run_steps.
LearnedRun learn(const Config& config, const RunObserver& observer = {}, const BackendFactory& make_backend = {});

// Largest difference of two runs: losses and norms relative, weights as norm of the difference over norm, by parameter.
struct RunDifference {
  double loss = 0.0, gradient_norm = 0.0, weights = 0.0;
  std::string worst_parameter;
  bool bitwise_equal = true;
};
RunDifference difference(const LearnedRun& a, const LearnedRun& b);

}  // namespace weft
