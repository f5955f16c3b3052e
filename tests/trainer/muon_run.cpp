#include "tests/trainer/muon_run.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "parallel/comm/local.h"
#include "parallel/runtime/random.h"
#include "tests/layers/poison.h"
#include "tests/trainer/planned_stage.h"
#include "trainer/optimizer/update_plan.h"

namespace weft {
namespace {

class CpuMuonMachine final : public MuonMachine {
 public:
  CpuMuonMachine() { use_one_library_thread(); }
  Device& device() override { return *device_; }
  std::unique_ptr<MatrixProducts> make_products(Stream&, MemoryLedger&) override { return make_cpu_matrix_products(); }
  MuonKernels kernels() const override { return cpu_muon_kernels(); }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
};

// One array of a rank's shard. What no matrix owns stays NaN.
class ShardArray {
 public:
  ShardArray(Stream& stream, MemoryLedger& ledger, Bucket bucket, const UnitLayout& layout, DType dtype)
      : stream_(stream), tensor_(ledger.allocate(bucket, dtype, layout.shard_size, 1)) {
    poison(stream, tensor_);
  }
  TensorView rows(const RowBlock& block, std::int64_t columns) {
    return tensor_.view().rows_from(block.offset, block.rows * columns).reshaped(block.rows, columns);
  }

 private:
  Stream& stream_;
  Tensor tensor_;
};

struct Shard {
  ShardArray values, gradients, momentum;
};

using NumberAt = std::function<double(std::int64_t index)>;

void write_rows(Stream& stream, const OwnedRows& owned, TensorView rows, const NumberAt& number) {
  std::vector<float> values;
  const std::int64_t first = owned.row_begin * owned.parameter->columns;
  for (std::int64_t i = 0; i < rows.size(); ++i) values.push_back(static_cast<float>(number(first + i)));
  write<float>(stream, values, rows);
}

std::vector<float> widened_rows(Stream& stream, ConstTensorView rows) {
  if (rows.dtype() == DType::float32) return read<float>(stream, rows);
  const std::vector<bfloat16> narrow = read<bfloat16>(stream, rows);
  return {narrow.begin(), narrow.end()};
}

// Puts whole matrices together from the rows of ranks.
class Whole {
 public:
  void add(Stream& stream, const OwnedRows& owned, ConstTensorView rows, std::vector<std::string>& faults) {
    const ParameterSpec& spec = *owned.parameter;
    auto& whole = values_[spec.name];
    auto& seen = seen_[spec.name];
    whole.resize(static_cast<std::size_t>(spec.global_size()));
    seen.resize(whole.size());
    const std::vector<float> values = widened_rows(stream, rows);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(owned.row_begin * spec.columns) + i;
      if (seen[at] && std::memcmp(&whole[at], &values[i], sizeof(float)) != 0) {
        faults.push_back(fmt::format("{}[{}] differs between its holders", spec.name, at));
      }
      whole[at] = values[i];
      seen[at] = true;
    }
  }
  WholeMatrices finish(std::vector<std::string>& faults) {
    for (const auto& [name, seen] : seen_) {
      if (std::find(seen.begin(), seen.end(), false) != seen.end()) faults.push_back(name + " is not whole");
    }
    return std::move(values_);
  }

 private:
  WholeMatrices values_;
  std::map<std::string, std::vector<bool>> seen_;
};

}  // namespace

std::unique_ptr<MuonMachine> make_cpu_muon_machine() {
  return std::make_unique<CpuMuonMachine>();
}

double first_weight(const std::string& name, std::int64_t index) {
  return 0.1 * RandomStream(1, name).normal(static_cast<std::uint64_t>(index));
}

double gradient_of_step(const std::string& name, std::size_t step, std::int64_t index) {
  return RandomStream(2 + step, name).normal(static_cast<std::uint64_t>(index));
}

MuonRun run_muon(const MuonCase& the_case, const MakeMuonMachine& make_machine) {
  const Mesh mesh(the_case.config.parallelism);
  MuonRun result;
  Whole weights, momentum;
  std::mutex mutex;
  run_local_ranks(mesh.world(), [&](Communicator& world) {
    const auto machine = make_machine();
    const auto stream = machine->device().create_stream("compute");
    PoisoningDevice device(machine->device());
    MemoryLedger ledger(device, *stream);
    const auto products = machine->make_products(*stream, ledger);
    const auto stage = world.split(0, world.rank(), "tokens", *stream);

    const Coordinates at = mesh.coordinates(world.rank());
    const PlannedStage planned = plan_stage(the_case.config, mesh, at, 0);
    std::vector<std::unique_ptr<Shard>> shards;
    std::vector<MuonRows> rows;
    for (const PlannedUnit& unit : planned.units) {
      if (unit.plan.replicated()) continue;
      const auto array = [&](Bucket bucket, DType dtype = DType::float32) {
        return ShardArray(*stream, ledger, bucket, unit.layout, dtype);
      };
      Shard& shard = *shards.emplace_back(std::make_unique<Shard>(array(Bucket::sharded_parameters),
                                                                  array(Bucket::sharded_gradients),
                                                                  array(Bucket::optimizer_state, the_case.momentum)));
      const std::vector<int> members = mesh.group_of(unit.shard_group, world.rank());
      const auto position = std::find(members.begin(), members.end(), world.rank()) - members.begin();
      for (const RowBlock& block : unit.layout.rows_of_shard(unit.layout.shards == 1 ? 0 : position)) {
        const ParameterSpec& spec = unit.layout.parameters[block.parameter];
        if (!takes_muon(spec)) continue;
        const OwnedRows owned{&spec,
                              spec.row_begin + block.row_begin,
                              block.rows,
                              shard.values.rows(block, spec.columns),
                              shard.gradients.rows(block, spec.columns),
                              block.offset};
        rows.push_back({owned, shard.momentum.rows(block, spec.columns)});
        write_rows(*stream, owned, owned.values, [&](std::int64_t i) { return first_weight(spec.name, i); });
        fill(*stream, rows.back().momentum, 0.0f);
      }
    }

    const MatrixPlan plan = plan_matrices(matrix_rows_of(the_case.config, mesh, 0), mesh.degrees().stage_ranks());
    Muon muon(plan, the_case.options, rows, *stage, *products, machine->kernels(), ledger);
    Tensor gradient_scale = ledger.allocate(Bucket::workspace, DType::float32, 1, 1);
    const MuonCost announced = muon_costs(plan, the_case.options.newton_schulz)[static_cast<std::size_t>(world.rank())];
    std::vector<std::string> faults;
    for (std::size_t step = 0; step < the_case.gradient_scales.size(); ++step) {
      for (const MuonRows& own : rows) {
        write_rows(*stream, own.owned, own.owned.gradients,
                   [&](std::int64_t i) { return gradient_of_step(own.owned.parameter->name, step, i); });
      }
      write<float>(*stream, std::span(&the_case.gradient_scales[step], 1), gradient_scale);
      const BucketBytes before = ledger.live();
      ledger.reset_peak();
      stage->counters().clear();
      muon.step(the_case.step, gradient_scale);

      BucketBytes expected_peak = before;
      for (Bucket bucket : {Bucket::communication, Bucket::workspace})
        expected_peak[bucket] += announced.at_peak[bucket];
      CommunicationCounters expected_traffic;
      for (const ProgramCollective& collective : announced.collectives) {
        if (collective.count == 0) continue;
        CommunicationCount& count = expected_traffic[{std::string(name_of(collective.group)), collective.op}];
        count.count += collective.count;
        count.bytes += collective.bytes;
      }
      if (ledger.live() != before) faults.emplace_back("a step keeps memory");
      if (ledger.at_peak() != expected_peak) {
        faults.push_back(
            fmt::format("a step holds {}, announced were {}", to_text(ledger.at_peak()), to_text(expected_peak)));
      }
      if (stage->counters() != expected_traffic) faults.emplace_back("a step communicates other than announced");
    }

    const std::lock_guard lock(mutex);
    for (const MuonRows& own : rows) {
      weights.add(*stream, own.owned, own.owned.values, faults);
      momentum.add(*stream, own.owned, own.momentum, faults);
    }
    result.faults.insert(result.faults.end(), faults.begin(), faults.end());
    stream->synchronize();
  });
  result.weights = weights.finish(result.faults);
  result.momentum = momentum.finish(result.faults);
  return result;
}

}  // namespace weft
