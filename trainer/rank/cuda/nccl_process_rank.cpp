// A rank that is a process of its own, computes on a GPU and communicates over NCCL.
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include "parallel/comm/nccl/nccl_buffers.h"
#include "parallel/comm/nccl/nccl_world.h"
#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/error.h"
#include "trainer/rank/launch.h"

namespace weft {
namespace {

// Says what is missing if run.ranks_per_device consecutive ranks of this machine share each of `devices` GPUs.
std::optional<std::string> too_few_gpus(const ProcessPlace& place, int ranks_per_device, int devices) {
  const int needed = (place.local_world + ranks_per_device - 1) / ranks_per_device;
  if (needed <= devices || devices == 0) return std::nullopt;
  return fmt::format(
      "{} ranks on this machine at ranks_per_device {} need {} GPUs, but it shows {}; for a trial set "
      "ranks_per_device {}",
      place.local_world, ranks_per_device, needed, devices, (place.local_world + devices - 1) / devices);
}

std::string meeting_place() {
  if (auto address = environment_variable("WEFT_RENDEZVOUS")) return *address;
  if (auto address = default_rendezvous_address()) return *address;
  fail_request(
      "the processes of the run do not know where to meet: set WEFT_RENDEZVOUS to tcp://host:port, "
      "file:///folder/name or mpi://, or MASTER_ADDR and MASTER_PORT");
}

}  // namespace

void run_process_rank(const Config& config, const RankMain& rank_main, const Admission& admit) {
  first_rank_of_process(config);  // throws if the processes do not match the configuration
  const ProcessPlace place = *find_process_place();
  const int sharing = config.run.ranks_per_device, devices = cuda::device_count();
  const auto missing = too_few_gpus(place, sharing, devices);
  // A launcher may show each process a GPU of its own alone (srun --gpus-per-task=1).
  if (missing && devices > 1) fail_request("{}", *missing);
  const std::unique_ptr<Backend> backend =
      make_cuda_backend(missing ? 0 : place.local_rank / sharing, gpu_kernel_options(config));
  const auto stream = backend->device->create_stream("world");
  NcclOptions options{.ranks_per_device = sharing};
  for (const auto& [name, value] : nccl_settings(place, options)) setenv(name.c_str(), value.c_str(), 0);
  CommunicationCounters counters;
  PhaseClock clock;
  NcclWatch watch(*backend->device, std::chrono::seconds(config.run.communication_timeout_seconds));
  std::optional<NcclBuffers> buffers;
  if (config.run.registered_buffers) {
    options.buffers = &buffers.emplace(*backend->device, std::string(name_of(Lane::gather)));
  }
  const auto rendezvous = make_rendezvous(meeting_place(), {.rank = place.rank,
                                                            .world = place.world,
                                                            .run = run_identity(),
                                                            .token = run_token(),
                                                            .timeout = watch.timeout()});
  bool connecting = false;
  try {
    admit_everywhere(*rendezvous, place.rank, admit);
    connecting = true;
    const auto world = make_nccl_world(place, *rendezvous, *stream, options, watch, counters, clock);
    connecting = false;
    rank_main({*backend, *world, [&](std::string_view action) { watch.set_action(action); },
               host_threads_of(place.local_world)});
  } catch (const Error& error) {
    // NCCL refuses ranks that see the same GPU. Other reasons stand for themselves.
    const std::string hint =
        missing && connecting ? fmt::format("; if these ranks see the same GPU: {}", *missing) : "";
    throw Error(error.kind(), fmt::format("rank {}: {}{}", place.rank, error.what(), hint));
  }
}

}  // namespace weft
