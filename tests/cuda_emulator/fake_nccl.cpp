// NCCL's functions on the emulated machine, and what tests can do to them. How calls meet is in fake_nccl_state.cpp.
#include "cuda_emulator/fake_nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "fake_nccl_state.h"
#include "machine.h"

namespace {

using namespace weft::cuda_emulator;

thread_local int group_depth = 0;
thread_local std::vector<PartPointer> grouped;
thread_local ncclResult_t group_result = ncclSuccess;
thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t result, std::string text) {
  last_error = std::move(text);
  return result;
}

// Counts a call and lets an injected error come first.
ncclResult_t enter(const std::string& function) {
  const std::lock_guard lock(fake().mutex);
  ++fake().calls[function];
  const auto injection = fake().injections.find(function);
  if (injection == fake().injections.end() || injection->second.passing-- > 0) return ncclSuccess;
  const ncclResult_t error = injection->second.error;
  fake().injections.erase(injection);
  return refuse(error, "as the test asked");
}

std::shared_ptr<Communicator> find(ncclComm_t handle) {
  const std::lock_guard lock(fake().mutex);
  const auto found = fake().communicators.find(handle);
  return found == fake().communicators.end() ? nullptr : found->second;
}

// A call that is counted and can be made to fail.
template <typename Body>
ncclResult_t call(const char* function, Body body) {
  const ncclResult_t entered = enter(function);
  return entered == ncclSuccess ? body() : entered;
}

// The same on a communicator, with the fake's lock held.
template <typename Body>
ncclResult_t call_on(const char* function, ncclComm_t handle, Body body) {
  return call(function, [&] {
    const auto communicator = find(handle);
    if (!communicator) return refuse(ncclInvalidArgument, "no such communicator");
    const std::lock_guard lock(fake().mutex);
    return body(communicator);
  });
}

ncclResult_t flush_group() {
  std::vector<PartPointer> parts = std::exchange(grouped, {});
  const ncclResult_t result = std::exchange(group_result, ncclSuccess);
  if (result != ncclSuccess || parts.empty()) return result;
  const auto communicator = parts.front()->communicator;
  const std::lock_guard lock(fake().mutex);
  for (const PartPointer& part : parts) {
    if (part->communicator != communicator || part->stream != parts.front()->stream) {
      return refuse(ncclInvalidUsage, "the fake knows groups of one communicator on one stream only");
    }
  }
  communicator->deferred = std::move(parts);
  communicator->state = ncclInProgress;
  return ncclInProgress;
}

// What NCCL would find wrong with a call at once, and what it should.
ncclResult_t check(const Part& part) {
  if (!part.communicator) return refuse(ncclInvalidArgument, "no such communicator");
  const Communicator& own = *part.communicator;
  {
    const std::lock_guard lock(fake().mutex);
    if (own.state != ncclSuccess) return refuse(ncclInvalidUsage, part.function + " while a call is in progress");
  }
  const int size = static_cast<int>(own.group ? own.group->members.size() : 0);
  const std::size_t element = width(part.type);
  if (element == 0 || part.root < 0 || part.root >= size) return refuse(ncclInvalidArgument, describe(part));
  const Machine& machine = Machine::instance();
  const Extents elements = extents_of(part);
  const std::size_t read = elements.read * element, written = elements.written * element;
  if (read > 0 && !machine.is_allocated(part.from, read)) {
    return refuse(ncclInvalidArgument, describe(part) + " reads outside device memory");
  }
  if (written > 0 && !machine.is_allocated(part.to, written)) {
    return refuse(ncclInvalidArgument, describe(part) + " writes outside device memory");
  }
  // Where input and output overlap, the smaller one must be the rank's own part of the other.
  const auto* from = static_cast<const std::byte*>(part.from);
  const auto* to = static_cast<const std::byte*>(part.to);
  if (read > 0 && written > 0 && from < to + written && to < from + read) {
    const std::size_t own_part = static_cast<std::size_t>(own.rank) * part.count * element;
    const bool fits = part.function == "ncclAllGather"       ? from == to + own_part
                      : part.function == "ncclReduceScatter" ? to == from + own_part
                                                             : from == to;
    if (!fits) return refuse(ncclInvalidUsage, describe(part) + " overlaps itself");
  }
  return ncclSuccess;
}

// Whether a message need not wait for the peer's host, with the fake's lock held.
bool is_connected(const PartPointer& part) {
  if (!fake().connects || part->kind == Kind::collective || part->number > 0) return true;
  const Communicator& peer = *part->communicator->group->members[static_cast<std::size_t>(part->root)];
  return peer.messages.contains(ends_of(*part));
}

void count_gather(const Part& part) {
  const std::lock_guard lock(fake().mutex);
  const std::size_t bytes = extents_of(part).written * width(part.type);
  FakeNccl::Gathers& gathers = fake().gathers[part.communicator->name];
  ++(covers(part.communicator->registered, part.to, bytes) ? gathers.registered : gathers.unregistered);
}

ncclResult_t issue(const char* function, const Arguments& arguments, ncclComm_t handle, cudaStream_t stream,
                   Kind kind = Kind::collective) {
  const auto part = std::make_shared<Part>(Part{arguments, kind, function, 0, find(handle), stream});
  const ncclResult_t result = call(function, [&] { return check(*part); });
  if (result == ncclSuccess) {
    Communicator& own = *part->communicator;
    if (part->function == "ncclAllGather") count_gather(*part);
    const std::lock_guard lock(fake().mutex);
    part->number = kind == Kind::collective ? own.collectives++ : own.messages[ends_of(*part)]++;
    grouped.push_back(part);
  } else if (group_result == ncclSuccess) {
    group_result = result;
  }
  return group_depth > 0 ? result : flush_group();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return call("ncclGetUniqueId", [&] {
    const std::lock_guard lock(fake().mutex);
    *id = {};
    fmt::format_to_n(id->internal, sizeof id->internal - 1, "fake {}", ++fake().ids);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return call("ncclCommInitRankConfig", [&] {
    if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) {
      return refuse(ncclInvalidArgument, "the fake knows communicators that do not block only");
    }
    if (rank < 0 || rank >= size) return refuse(ncclInvalidArgument, "no such rank");
    const std::lock_guard lock(fake().mutex);
    Start& start = fake().starts[id.internal];
    if (start.members.contains(rank)) return refuse(ncclInvalidUsage, fmt::format("rank {} twice", rank));
    const auto communicator = std::make_shared<Communicator>();
    communicator->rank = communicator->world_rank = rank;
    communicator->name = config->commName == nullptr ? "" : config->commName;
    *result = handle_of(communicator);
    if (start.size != 0 && start.size != size) {
      return refuse(ncclInvalidArgument, fmt::format("{} ranks here and {} elsewhere", size, start.size));
    }
    start.size = size;
    start.members[rank] = communicator;
    if (static_cast<int>(start.members.size()) == size) {
      const auto group = std::make_shared<Group>();
      for (const auto& [member_rank, member] : start.members) {
        group->members.push_back(member);
        member->group = group;
        member->state = ncclSuccess;
      }
    }
    return ncclInProgress;
  });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  return call_on("ncclCommSplit", handle, [&](const std::shared_ptr<Communicator>& communicator) {
    if (config == nullptr || config->blocking != 0 || config->commName == nullptr) {
      return refuse(ncclInvalidArgument, "a split without a name or that blocks");
    }
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, "a negative color");
    if (communicator->state != ncclSuccess) return refuse(ncclInvalidUsage, "split while a call is in progress");
    Group& group = *communicator->group;
    communicator->state = ncclInProgress;
    const std::uint64_t number = communicator->splits++;
    if (is_dead(communicator->world_rank)) return ncclInProgress;
    Split& split = group.splits[number];
    *result = nullptr;
    split.members[communicator->rank] = {color, key, result, config->commName};
    if (split.members.size() == group.members.size()) complete_split(group, split);
    return ncclInProgress;
  });
}

// Neither counted nor made to fail: the watch's thread asks as often as it likes.
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const auto communicator = find(handle);
  if (!communicator) return refuse(ncclInvalidArgument, "no such communicator");
  std::vector<PartPointer> parts, previous;
  {
    const std::lock_guard lock(fake().mutex);
    if (!std::all_of(communicator->deferred.begin(), communicator->deferred.end(), is_connected)) {
      *state = ncclInProgress;
      return ncclSuccess;
    }
    parts = std::exchange(communicator->deferred, {});
    if (parts.empty()) {
      if (communicator->polls_until_ready > 0 && --communicator->polls_until_ready == 0) {
        communicator->state = ncclSuccess;
      } else {
        *state = communicator->state;
        return ncclSuccess;
      }
    }
    previous = std::exchange(communicator->previous, parts);
    *state = ncclInProgress;
  }
  if (parts.empty()) return ncclSuccess;
  const bool launched = launch(parts, std::move(previous));
  const std::lock_guard lock(fake().mutex);
  if (communicator->state == ncclInProgress) {
    communicator->state = launched ? ncclSuccess : refuse(ncclUnhandledCudaError, "the stream refuses work");
  }
  *state = communicator->state;
  return ncclSuccess;
}

// Communicators go with their registrations taken back, or aborted, which takes them back.
ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return call_on("ncclCommFinalize", handle, [](const auto& communicator) {
    return communicator->registered.empty() ? ncclSuccess : refuse(ncclInvalidUsage, "memory is still registered");
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  // Work that is under way goes on.
  return call_on("ncclCommDestroy", handle, [&](const auto&) {
    fake().communicators.erase(handle);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const ncclResult_t result = call_on("ncclCommAbort", handle, [&](const auto& communicator) {
    communicator->aborted = true;
    fake().registrations -= std::ssize(communicator->registered);
    fake().communicators.erase(handle);
    return ncclSuccess;
  });
  // What waited for it can go on, if only to end.
  Machine::instance().notify();
  return result;
}

ncclResult_t ncclMemAlloc(void** result, size_t bytes) {
  return call("ncclMemAlloc", [&] {
    if (cudaMalloc(result, bytes) != cudaSuccess) {
      cudaGetLastError();
      return refuse(ncclUnhandledCudaError, "there is no room");
    }
    const std::lock_guard lock(fake().mutex);
    fake().memory[static_cast<std::byte*>(*result)] = bytes;
    return ncclSuccess;
  });
}

ncclResult_t ncclMemFree(void* data) {
  return call("ncclMemFree", [&] {
    {
      const std::lock_guard lock(fake().mutex);
      if (fake().memory.erase(static_cast<std::byte*>(data)) == 0) return refuse(ncclInvalidArgument, "not NCCL's");
      for (const auto& [handle, communicator] : fake().communicators) {
        if (communicator->registered.contains(static_cast<std::byte*>(data))) {
          return refuse(ncclInvalidUsage, "memory is freed while it is registered");
        }
      }
    }
    return cudaFree(data) == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, "CUDA refuses");
  });
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* data, size_t bytes, void** registration) {
  return call_on("ncclCommRegister", handle, [&](const auto& communicator) {
    if (group_depth > 0) return refuse(ncclInvalidUsage, "memory is registered within a group");
    if (!covers(fake().memory, data, bytes)) return refuse(ncclInvalidArgument, "memory that is not NCCL's");
    if (!communicator->registered.emplace(static_cast<std::byte*>(data), bytes).second) {
      return refuse(ncclInvalidUsage, "memory is registered twice");
    }
    ++fake().registrations;
    *registration = data;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registration) {
  return call_on("ncclCommDeregister", handle, [&](const auto& communicator) {
    // What is still to run may use it.
    const auto runs = [](const PartPointer& part) { return !part->done; };
    if (std::any_of(communicator->previous.begin(), communicator->previous.end(), runs)) {
      return refuse(ncclInvalidUsage, "memory is deregistered while a call is in progress");
    }
    if (communicator->registered.erase(static_cast<std::byte*>(registration)) == 0) {
      return refuse(ncclInvalidArgument, "memory that is not registered");
    }
    --fake().registrations;
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* names[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return result < ncclNumResults ? names[result] : "unknown";
}

const char* ncclGetLastError(ncclComm_t handle) {
  const auto communicator = find(handle);
  if (!communicator) return last_error.c_str();
  const std::lock_guard lock(fake().mutex);
  if (!communicator->error.empty()) last_error = communicator->error;
  return last_error.c_str();
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return refuse(ncclInvalidUsage, "no group has been started");
  return --group_depth > 0 ? ncclSuccess : flush_group();
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                           ncclComm_t communicator, cudaStream_t stream) {
  return issue("ncclAllReduce", {from, to, count, type, reduce}, communicator, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return issue("ncclBroadcast", {from, to, count, type, ncclSum, root}, communicator, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduce, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  return issue("ncclReduce", {from, to, count, type, reduce, root}, communicator, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  return issue("ncclAllGather", {from, to, count, type}, communicator, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                               ncclComm_t communicator, cudaStream_t stream) {
  return issue("ncclReduceScatter", {from, to, count, type, reduce}, communicator, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return issue("ncclSend", {from, nullptr, count, type, ncclSum, peer}, communicator, stream, Kind::send);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return issue("ncclRecv", {nullptr, to, count, type, ncclSum, peer}, communicator, stream, Kind::receive);
}

}  // extern "C"

namespace weft::cuda_emulator {

void FakeNccl::reset() {
  const std::lock_guard lock(fake().mutex);
  fake().starts.clear();
  fake().communicators.clear();
  fake().dead.clear();
  fake().injections.clear();
  fake().calls.clear();
  fake().memory.clear();
  fake().gathers.clear();
  fake().registrations = 0;
  fake().connects = false;
}

void FakeNccl::connect_at_first_message(bool does) {
  const std::lock_guard lock(fake().mutex);
  fake().connects = does;
}

void FakeNccl::kill(int world_rank) {
  const std::lock_guard lock(fake().mutex);
  fake().dead.push_back(world_rank);
}

void FakeNccl::fail_next(const std::string& function, ncclResult_t error, int passing) {
  const std::lock_guard lock(fake().mutex);
  fake().injections[function] = {error, passing};
}

void FakeNccl::set_asynchronous_error(int world_rank, ncclResult_t error, const std::string& name) {
  const std::lock_guard lock(fake().mutex);
  for (const auto& [handle, communicator] : fake().communicators) {
    if (communicator->world_rank == world_rank && (name.empty() || communicator->name == name)) {
      communicator->state = error;
    }
  }
}

std::map<std::string, std::int64_t> FakeNccl::calls() {
  const std::lock_guard lock(fake().mutex);
  return fake().calls;
}

std::map<std::string, FakeNccl::Gathers> FakeNccl::gathers() {
  const std::lock_guard lock(fake().mutex);
  return fake().gathers;
}

std::int64_t FakeNccl::registrations() {
  const std::lock_guard lock(fake().mutex);
  return fake().registrations;
}

std::int64_t FakeNccl::memory_blocks() {
  const std::lock_guard lock(fake().mutex);
  return std::ssize(fake().memory);
}

std::int64_t FakeNccl::alive() {
  const std::lock_guard lock(fake().mutex);
  return static_cast<std::int64_t>(fake().communicators.size());
}

}  // namespace weft::cuda_emulator
