// Tiny runs that leave their directory behind for a diagnosis, as `weft train` does. Faults come from overridden keys
// or from the acts of a rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/diagnosis/diagnose.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/run/run_steps.h"

namespace weft {

// Base configurations without a fault on the modelled CPU: 16-bit gathers, units that outweigh their latency, tokens
// that hide the exchange; traced.
inline constexpr const char* sharded_dense = R"([run]
steps = 5
[model]
layers = "d*4"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 16
[parallelism]
data_shard = 4
[precision]
compute = "bfloat16"
[training]
sequence_length = 16
microbatch_size = 4
global_batch_size = 64
[profiling]
first_step = 4
last_step = 5
)";
inline const Overrides pipelined_dense = {"parallelism.pipeline=2", "parallelism.data_shard=2"};
inline const Overrides mixture = {"model.layers=\"d e*3\"", "model.moe.num_experts=4",
                                  "model.moe.num_experts_per_tok=2", "model.moe.moe_intermediate_size=64"};
inline Overrides operator+(Overrides one, const Overrides& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}
// Experts over two ranks; wide enough for attention alone to outweigh its latency between four ranks.
inline const Overrides sharded_hybrid = mixture + Overrides{"parallelism.expert=2", "model.hidden_size=128"};
inline const Overrides pipelined_hybrid = sharded_hybrid + pipelined_dense;

struct RunFaults {
  std::string text = "warp and weft on a loom, thread by thread, the shuttle flies and the cloth grows; ";  // repeated
  // How many times as long as its peers a rank computes.
  std::function<double(int rank)> slowness = [](int) { return 1.0; };
  std::function<void(RankRun&)> before_first_step = [](RankRun&) {};
  std::function<void(RankRun&)> after_last_step = [](RankRun&) {};
};

// Trains sharded_dense with these keys changed. Computation lasts as long as its operations say, a block about 2 ms, so
// that what the traces tell does not depend on the machine.
void leave_run(const TemporaryFolder& folder, const Overrides& overrides, const RunFaults& faults = {});

// The run as if each lane had been its own, as on a GPU: its clocks are those of a simulated step on this hardware.
// Returns the simulation of each rank's step.
std::vector<Simulation> retimed_on_own_lanes(RunOutputs& run, const HardwareConfig& hardware);

// Rates of the CPU's row, with lanes of their own.
inline const HardwareConfig cpu_rates{.name = "cpu"};

struct Diagnosed {
  std::vector<std::string> names;  // of the rules that found a fault
  Diagnosis diagnosis;
  std::string text;
};
Diagnosed diagnosed(RunOutputs run, const HardwareConfig& hardware = {});
// Of a run that leave_run() makes.
Diagnosed diagnosed(const Overrides& overrides, const HardwareConfig& hardware = {}, const RunFaults& faults = {});

// The proposed changes as overrides.
Overrides changes_of(const DiagnosedFault& finding);

}  // namespace weft
