// A second, smaller step loop for tests, each calculation of which can be replaced: faults are made here and not in the
// trainer. With nothing replaced it learns what the trainer learns, bit for bit, which a test verifies.
#pragma once

#include <functional>
#include <span>

#include "tests/trainer/faulty_link.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/plan/gradient_norm.h"

namespace weft {

struct StepCopy {
  // Called once on every rank, whose communication they change.
  std::function<LinkFaults()> link_faults = [] { return LinkFaults(); };
  // Streams are the compute lane of the rank, on which a fault queues its work.
  // Called on every rank when its gradients are reduced, before the norm.
  std::function<void(Stream&, RankStages&)> after_reduction = [](Stream&, RankStages&) {};
  std::function<void(Stream&, const PlannedUnit&, std::span<const OwnedRows>, const Mesh&, int, TensorView)>
      add_squares = add_counted_squares;
  std::function<double(double, double)> clip = [](double norm, double largest) {
    return largest > 0.0 && norm > largest ? largest / norm : 1.0;
  };
  // Whose samples the rank at a place among the data-parallel ranks reads.
  std::function<int(int)> data_rank = [](int own) { return own; };
  // Called on every rank at the end of a step with what it measured alone.
  std::function<void(Stream&, const StepReport&)> report = [](Stream&, const StepReport&) {};
};

// Losses, gradient norms and weights; LearnedRun::result stays empty.
LearnedRun learn_by_copy(const Config& config, const StepCopy& copy = {});

}  // namespace weft
