// The initial weights of a run, whole, under global names: what a reference in double computes with.
#pragma once

#include <mutex>

#include "tests/layers/model_reference.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/inference/forward_run.h"

namespace weft {

class InitialWeights {
 public:
  // Called on every rank in the place of a loader; changes nothing.
  FillWeights collect() {
    return [this](RankStages& stages, Stream& stream) {
      const std::lock_guard lock(mutex_);
      ++calls_;
      collector_.add(stream, stages);
    };
  }
  int calls() const { return calls_; }
  NamedValues values() {
    LearnedRun whole;
    collector_.finish(whole);
    NamedValues values;
    for (const auto& [name, weights] : whole.weights) values[name] = Values(weights.begin(), weights.end());
    return values;
  }

 private:
  std::mutex mutex_;
  WeightCollector collector_;
  int calls_ = 0;
};

}  // namespace weft
