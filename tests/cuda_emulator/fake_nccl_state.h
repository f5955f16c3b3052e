// The state of the emulator's NCCL (fake_nccl.h), and how the calls of ranks meet. They are matched by the order in
// which each rank makes them, and carried out once all have come. Calls that do not fit together are errors.
//
// Locks: operations run under the machine's lock and take the fake's; so nothing here calls the machine while it holds
// the fake's.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/fake_nccl.h"

namespace weft::cuda_emulator {

enum class Kind { collective, send, receive };

struct Communicator;

// What a call of NCCL says, whichever it is.
struct Arguments {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduce = ncclSum;
  int root = 0;  // or the peer
};

// One call, or one of those between ncclGroupStart and ncclGroupEnd.
struct Part : Arguments {
  Kind kind = Kind::collective;
  std::string function;
  std::uint64_t number = 0;  // of the collectives of a communicator, or of the messages of a pair
  std::shared_ptr<Communicator> communicator;
  cudaStream_t stream = nullptr;
  bool done = false;
};
using PartPointer = std::shared_ptr<Part>;

struct Split {
  struct Member {
    int color = 0, key = 0;
    ncclComm_t* result = nullptr;
    std::string name;
  };
  std::map<int, Member> members;
};

struct Group {
  std::vector<std::shared_ptr<Communicator>> members;
  std::map<std::uint64_t, std::map<int, PartPointer>> collectives;          // by number and rank, once they have begun
  std::map<std::pair<int, int>, std::vector<PartPointer>> sends, receives;  // by source and destination
  std::map<std::uint64_t, Split> splits;
  bool broken = false;  // calls did not fit together
};

// Memory by its beginning.
using Ranges = std::map<const std::byte*, std::size_t>;

struct Communicator {
  std::shared_ptr<Group> group;
  std::string name;
  Ranges registered;
  int rank = 0, world_rank = 0, polls_until_ready = 0;
  ncclResult_t state = ncclInProgress;
  std::string error;
  bool aborted = false;
  std::vector<PartPointer> deferred;  // issued, but not queued on the stream yet
  std::uint64_t collectives = 0, splits = 0;
  std::map<std::pair<int, int>, std::uint64_t> messages;
  std::vector<PartPointer> previous;  // of the last launch
};

struct Start {
  int size = 0;
  std::map<int, std::shared_ptr<Communicator>> members;
};

struct Injection {
  ncclResult_t error;
  int passing;
};

struct Fake {
  std::mutex mutex;
  std::map<std::string, Start> starts;  // by unique id
  std::map<ncclComm_t, std::shared_ptr<Communicator>> communicators;
  std::vector<int> dead;
  std::map<std::string, Injection> injections;
  std::map<std::string, std::int64_t> calls;
  Ranges memory;                                     // of ncclMemAlloc
  std::map<std::string, FakeNccl::Gathers> gathers;  // by name of communicator
  std::int64_t registrations = 0;                    // not yet taken back
  int ids = 0;
  bool connects = false;  // hosts wait for each other at their first message
};

Fake& fake();

// Elements that a call reads and writes on a rank.
struct Extents {
  std::size_t read, written;
};
Extents extents_of(const Part& part);
// Source and destination of a message.
std::pair<int, int> ends_of(const Part& part);
std::size_t width(ncclDataType_t type);  // bytes, or 0 for a type that the fake does not know
std::string describe(const Part& part);
bool is_dead(int world_rank);
// Whether [address, address + bytes) lies in one of `ranges`.
bool covers(const Ranges& ranges, const void* address, std::size_t bytes);

// Queues a launch on the stream of its parts: first it begins, which the peers can see, and then it ends. Of one
// communicator one launch runs at a time, whatever the streams: it waits for `previous`. False: the stream refuses.
bool launch(const std::vector<PartPointer>& parts, std::vector<PartPointer> previous);
// Makes the communicators of a split for which all members of `parent` have come.
void complete_split(Group& parent, const Split& split);
// The handle under which `communicator` is known from here on.
ncclComm_t handle_of(const std::shared_ptr<Communicator>& communicator);

}  // namespace weft::cuda_emulator
