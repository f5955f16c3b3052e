// Muon alone, without a model, for any layout and any device. Every rank of a stage has its shards, and gradients are
// functions of global names and places. The weights that the ranks made are put together under global names.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/tiny_layout.h"
#include "trainer/optimizer/muon.h"

namespace weft {

// What a rank of such a run computes with.
class MuonMachine {
 public:
  virtual ~MuonMachine() = default;
  virtual Device& device() = 0;
  virtual std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger) = 0;
  virtual MuonKernels kernels() const = 0;
};
// Made by each rank's thread.
using MakeMuonMachine = std::function<std::unique_ptr<MuonMachine>()>;
std::unique_ptr<MuonMachine> make_cpu_muon_machine();

struct MuonCase {
  Config config;  // its mesh and units; one pipeline stage
  OptimizerConfig options;
  DType momentum = DType::float32;  // as it is kept
  GroupStep step{.learning_rate = 0.01, .weight_decay = 0.1, .momentum = 0.95};
  std::vector<float> gradient_scales = {0.5f, 2.0f, 1.0f};  // one a step
};

// By global name, whole.
using WholeMatrices = std::map<std::string, std::vector<float>>;
struct MuonRun {
  WholeMatrices weights, momentum;
  std::vector<std::string> faults;  // elements of no rank, holders that differ, memory or traffic not as announced
};
MuonRun run_muon(const MuonCase& the_case, const MakeMuonMachine& make_machine = make_cpu_muon_machine);

// The number at a place of a matrix: of its first weights, or of its gradient in a step from 0 on.
double first_weight(const std::string& name, std::int64_t index);
double gradient_of_step(const std::string& name, std::size_t step, std::int64_t index);

}  // namespace weft
