#include "parallel/comm/nccl/nccl_world.h"

#include <nccl.h>

#include <cstring>
#include <numeric>

#include "parallel/comm/lone_communicator.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::string unique_id(const ProcessPlace& place, Rendezvous& rendezvous) {
  ncclUniqueId id{};
  if (place.rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    // The other ranks learn of the failure from the rendezvous, because rank 0 leaves it.
    if (result != ncclSuccess) fail("rank 0: NCCL gives no unique id: {}", describe_nccl(result));
  }
  return rendezvous.meet("unique id of NCCL", {id.internal, sizeof id.internal});
}

}  // namespace

std::vector<std::pair<std::string, std::string>> nccl_settings(const ProcessPlace& place, const NcclOptions& options) {
  // Kernels of different communicators start in the order in which the host queues them. That order is the same on all
  // ranks.
  std::vector<std::pair<std::string, std::string>> settings = {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}};
  if (options.ranks_per_device > 1) {
    // NCCL refuses two ranks on one GPU of one machine. Each rank therefore poses as a separate machine, and only
    // sockets remain.
    settings.insert(settings.end(), {{"NCCL_HOSTID", "rank" + std::to_string(place.rank)},
                                     {"NCCL_NET", "Socket"},
                                     {"NCCL_IB_DISABLE", "1"},
                                     {"NCCL_P2P_DISABLE", "1"},
                                     {"NCCL_SHM_DISABLE", "1"},
                                     {"NCCL_MNNVL_ENABLE", "0"},
                                     {"NCCL_NVLS_ENABLE", "0"},
                                     {"NCCL_RAS_ENABLE", "0"},
                                     {"NCCL_PROTO", "Simple"},
                                     {"NCCL_ALGO", "Ring"}});
    if (place.local_world == place.world) settings.emplace_back("NCCL_SOCKET_IFNAME", "lo");
  }
  return settings;
}

std::unique_ptr<Communicator> make_nccl_world(const ProcessPlace& place, Rendezvous& rendezvous, Stream& stream,
                                              const NcclOptions& options, NcclWatch& watch,
                                              CommunicationCounters& counters, PhaseClock& clock) {
  if (place.world == 1) return std::make_unique<LoneCommunicator>("world", stream, counters, clock);
  const std::string bytes = unique_id(place, rendezvous);
  ncclUniqueId id{};
  require(bytes.size() == sizeof id.internal, "the unique id of NCCL has its size");
  std::memcpy(id.internal, bytes.data(), bytes.size());

  auto members = std::make_unique<NcclMembers>();
  members->group = "world";
  members->rank = place.rank;
  members->world_ranks.resize(place.world);
  std::iota(members->world_ranks.begin(), members->world_ranks.end(), 0);

  auto handle = std::make_unique<NcclHandle>(watch);
  ncclConfig_t config = nccl_config(options, members->group);
  {
    auto entered = watch.enter();
    const ncclResult_t result = ncclCommInitRankConfig(handle->address(), place.world, id, place.rank, &config);
    if (*handle->address() != nullptr) handle->watched(*members);
    if (!accepted(result)) {
      watch.give_up(entered, fmt::format("group world, rank {}: NCCL cannot be set up: {}", place.rank,
                                         describe_nccl(result, handle->get())));
    }
    watch.finish(handle->get(), {members.get(), "the setup of NCCL"});
  }
  return std::make_unique<NcclCommunicator>(std::move(members), std::move(handle), options, stream, watch, counters,
                                            clock);
}

}  // namespace weft
