#include "trainer/rank/launch.h"

#include <algorithm>
#include <chrono>

#include "parallel/comm/local.h"
#include "parallel/comm/process_environment.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/spread_work.h"

namespace weft {

GpuKernelOptions gpu_kernel_options(const Config& config) {
  // Ranks that share a GPU would time each other's products, and the choice is kept for later runs.
  const bool alone = config.run.ranks_per_device == 1;
  return {.attention = config.run.attention,
          .deterministic = config.run.deterministic,
          .measured_products = config.run.measured_products && alone,
          .float8 = uses_format(config, ProductFormat::float8),
          .float8_blocks = uses_format(config, ProductFormat::float8_blocks),
          .captured_regions = config.run.captured_regions};
}

std::unique_ptr<Backend> make_cpu_backend() {
  use_one_library_thread();
  return std::make_unique<Backend>(Backend{make_cpu_device(), cpu_layer_kernels(), cpu_optimizer_kernels(),
                                           [](Stream&, MemoryLedger&) { return make_cpu_matrix_products(); }});
}

BackendFactory backend_of(const Config& config) {
  if (config.run.device == DeviceKind::cpu) return [](int) { return make_cpu_backend(); };
  return [options = gpu_kernel_options(config)](int) { return make_cuda_backend(0, options); };
}

int host_threads_of(int local_ranks) {
  return std::max(1, static_cast<int>(host_cores()) / local_ranks);
}

void run_ranks(const Config& config, const BackendFactory& make_backend, const RankMain& rank_main,
               const Admission& admit) {
  if (config.run.launch == LaunchKind::processes) return run_process_rank(config, rank_main, admit);
  first_rank_of_process(config);  // throws if this process is one of several
  if (admit) admit();
  const int ranks = config.parallelism.world();
  run_local_ranks(
      ranks,
      [&](Communicator& world) {
        const std::unique_ptr<Backend> backend = make_backend(world.rank());
        rank_main({*backend, world, {}, host_threads_of(ranks)});
      },
      std::chrono::seconds(config.run.communication_timeout_seconds));
}

void admit_everywhere(Rendezvous& rendezvous, int rank, const Admission& admit) {
  std::string refusal;
  if (rank == 0 && admit) refusal = refusal_of(admit).value_or("");
  refusal = rendezvous.meet("admission", refusal);
  if (!refusal.empty()) throw Error(ErrorKind::request, refusal);
}

int first_rank_of_process(const Config& config) {
  if (config.run.launch == LaunchKind::threads) {
    if (const auto siblings = find_siblings()) {
      fail_request(
          "run.launch is \"threads\", all ranks in one process, but {} say that this process is one of several; each "
          "would run all ranks: start the command once, without the launcher{}",
          *siblings,
          config.run.device == DeviceKind::cpu ? ": on the CPU it runs all ranks by itself"
                                               : ", or set run.launch = \"processes\" with a GPU for each rank");
    }
    return 0;
  }
  const auto place = find_process_place();
  if (!place) {
    fail_request(
        "run.launch is \"processes\", but nothing says which rank this process is: start it with "
        "weft launch --ranks {} -- COMMAND, or with torchrun, mpirun or srun",
        config.parallelism.world());
  }
  const Degrees& d = config.parallelism;
  if (place->world != d.world()) {
    fail_request(
        "{} processes were started, but the configuration has {} ranks = pipeline {} x data_replicate {} x "
        "data_shard {} x context {} x tensor {}",
        place->world, d.world(), d.pipeline, d.data_replicate, d.data_shard, d.context, d.tensor);
  }
  return place->rank;
}

}  // namespace weft
