#include "cuda_emulator/fake_nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "machine.h"
#include "parallel/runtime/dtype.h"

// Locks: operations run under the machine's lock and take the fake's; so nothing here calls the machine while it holds
// the fake's.

namespace {

using weft::cuda_emulator::Machine;

enum class Kind { collective, send, receive };

struct Communicator;

// One call, or one of those between ncclGroupStart and ncclGroupEnd.
struct Part {
  Kind kind = Kind::collective;
  std::string function;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduce = ncclSum;
  int root = 0;              // or the peer
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

struct Communicator {
  std::shared_ptr<Group> group;
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
  int ids = 0;
};

Fake& fake() {
  static Fake state;
  return state;
}

thread_local int group_depth = 0;
thread_local std::vector<PartPointer> grouped;
thread_local ncclResult_t group_result = ncclSuccess;
thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t result, std::string text) {
  last_error = std::move(text);
  return result;
}

std::size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclFloat64:
      return 8;
    case ncclBfloat16:
    case ncclFloat16:
      return 2;
    default:
      return 0;
  }
}

std::string describe(const Part& part) {
  return fmt::format("rank {}: {} of {} elements of type {} (operation {}, {} {})", part.communicator->rank,
                     part.function, part.count, static_cast<int>(part.type), static_cast<int>(part.reduce),
                     part.kind == Kind::collective ? "root" : "peer", part.root);
}

void break_group(Group& group, const std::string& text) {
  if (group.broken) return;
  group.broken = true;
  for (const auto& member : group.members) {
    member->state = ncclInvalidUsage;
    member->error = text;
  }
}

template <typename T>
T add(T a, T b, ncclRedOp_t reduce) {
  return reduce == ncclMax ? std::max(a, b) : static_cast<T>(a + b);
}

// a = a + b, rounded at once, as NCCL does.
void combine(std::byte* a, const std::byte* b, ncclDataType_t type, ncclRedOp_t reduce) {
  const auto each = [&]<typename T>(T) {
    T left, right;
    std::memcpy(&left, a, sizeof left);
    std::memcpy(&right, b, sizeof right);
    if constexpr (sizeof(T) == 2) {
      left = T(add(static_cast<float>(left), static_cast<float>(right), reduce));
    } else {
      left = add(left, right, reduce);
    }
    std::memcpy(a, &left, sizeof left);
  };
  switch (type) {
    case ncclInt32:
      return each(std::int32_t());
    case ncclFloat32:
      return each(float());
    case ncclFloat64:
      return each(double());
    case ncclFloat16:
      return each(weft::float16());
    default:
      return each(weft::bfloat16());
  }
}

using Bytes = std::vector<std::byte>;

Bytes bytes_at(const void* data, std::size_t count) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + count};
}

void write(const Bytes& bytes, void* to) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

// Everything is read before anything is written.
void perform_collective(const std::map<int, PartPointer>& parts) {
  const Part& first = *parts.at(0);
  const std::size_t size = parts.size(), element = width(first.type), bytes = first.count * element;
  const std::string& function = first.function;
  const auto reduced = [&](std::size_t total) {
    Bytes sum = bytes_at(first.from, total);
    for (std::size_t rank = 1; rank < size; ++rank) {
      const Bytes other = bytes_at(parts.at(static_cast<int>(rank))->from, total);
      for (std::size_t at = 0; at < total; at += element) {
        combine(sum.data() + at, other.data() + at, first.type, first.reduce);
      }
    }
    return sum;
  };
  if (function == "ncclAllGather") {
    Bytes all;
    for (const auto& [rank, part] : parts) {
      const Bytes own = bytes_at(part->from, bytes);
      all.insert(all.end(), own.begin(), own.end());
    }
    for (const auto& [rank, part] : parts) write(all, part->to);
  } else if (function == "ncclBroadcast") {
    const Bytes sent = bytes_at(parts.at(first.root)->from, bytes);
    for (const auto& [rank, part] : parts) write(sent, part->to);
  } else if (function == "ncclAllReduce") {
    const Bytes sum = reduced(bytes);
    for (const auto& [rank, part] : parts) write(sum, part->to);
  } else if (function == "ncclReduce") {
    write(reduced(bytes), parts.at(first.root)->to);
  } else if (function == "ncclReduceScatter") {
    const Bytes sum = reduced(bytes * size);
    for (const auto& [rank, part] : parts) {
      const std::byte* own = sum.data() + static_cast<std::size_t>(rank) * bytes;
      write({own, own + bytes}, part->to);
    }
  }
  for (const auto& [rank, part] : parts) part->done = true;
}

bool is_dead(int world_rank) {
  const auto& dead = fake().dead;
  return std::find(dead.begin(), dead.end(), world_rank) != dead.end();
}

// The message at the other end, once its stream has come to it.
PartPointer partner(const Part& part) {
  Group& group = *part.communicator->group;
  const bool sends = part.kind == Kind::send;
  const auto pair =
      sends ? std::pair(part.communicator->rank, part.root) : std::pair(part.root, part.communicator->rank);
  const auto& others = (sends ? group.receives : group.sends)[pair];
  return part.number < others.size() ? others[part.number] : nullptr;
}

void begin(const PartPointer& part) {
  Communicator& own = *part->communicator;
  Group& group = *own.group;
  if (own.aborted || is_dead(own.world_rank)) return;
  if (part->kind == Kind::collective) {
    auto& parts = group.collectives[part->number];
    parts[own.rank] = part;
    for (const auto& [rank, other] : parts) {
      if (other->function != part->function || other->count != part->count || other->type != part->type ||
          other->reduce != part->reduce || other->root != part->root) {
        break_group(group, fmt::format("calls do not fit together: {}, {}", describe(*other), describe(*part)));
      }
    }
    return;
  }
  const bool sends = part->kind == Kind::send;
  const auto pair = sends ? std::pair(own.rank, part->root) : std::pair(part->root, own.rank);
  (sends ? group.sends : group.receives)[pair].push_back(part);
  if (const auto other = partner(*part); other && (other->count != part->count || other->type != part->type)) {
    break_group(group, fmt::format("calls do not fit together: {}, {}", describe(*other), describe(*part)));
  }
}

bool can_end(const Part& part) {
  const Group& group = *part.communicator->group;
  if (part.communicator->aborted || part.done) return true;
  if (group.broken) return false;
  if (part.kind != Kind::collective) {
    const auto other = partner(part);
    return other && !other->communicator->aborted && !is_dead(part.communicator->world_rank);
  }
  const auto found = group.collectives.find(part.number);
  if (found == group.collectives.end() || found->second.size() != group.members.size()) return false;
  return std::none_of(found->second.begin(), found->second.end(),
                      [](const auto& entry) { return entry.second->communicator->aborted; });
}

void end(Part& part) {
  if (part.done || part.communicator->aborted) return;
  if (part.kind == Kind::collective) return perform_collective(part.communicator->group->collectives.at(part.number));
  const auto other = partner(part);
  const Part& sent = part.kind == Kind::send ? part : *other;
  const Part& received = part.kind == Kind::send ? *other : part;
  write(bytes_at(sent.from, sent.count * width(sent.type)), received.to);
  part.done = other->done = true;
}

// Queues a launch: first it begins, which the peers can see, and then it ends. Of one communicator one launch runs at a
// time, whatever the streams.
ncclResult_t launch(const std::vector<PartPointer>& parts, std::vector<PartPointer> previous) {
  Machine& machine = Machine::instance();
  const cudaStream_t stream = parts.front()->stream;
  const auto over = [previous = std::move(previous)] {
    const std::lock_guard lock(fake().mutex);
    return std::all_of(previous.begin(), previous.end(),
                       [](const PartPointer& part) { return part->done || part->communicator->aborted; });
  };
  const auto begin_all = [parts] {
    const std::lock_guard lock(fake().mutex);
    for (const PartPointer& part : parts) begin(part);
  };
  const auto all_can_end = [parts] {
    const std::lock_guard lock(fake().mutex);
    return std::all_of(parts.begin(), parts.end(), [](const PartPointer& part) { return can_end(*part); });
  };
  const auto end_all = [parts] {
    const std::lock_guard lock(fake().mutex);
    for (const PartPointer& part : parts) end(*part);
  };
  if (machine.enqueue(stream, {"NCCL begins", over, begin_all}) != cudaSuccess ||
      machine.enqueue(stream, {"NCCL ends", all_can_end, end_all}) != cudaSuccess) {
    return refuse(ncclUnhandledCudaError, "the stream refuses work");
  }
  return ncclSuccess;
}

// Counts a call and lets an injected error come first.
ncclResult_t enter(const char* function) {
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

ncclComm_t handle_of(const std::shared_ptr<Communicator>& communicator) {
  const auto handle = reinterpret_cast<ncclComm_t>(communicator.get());
  fake().communicators[handle] = communicator;
  return handle;
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

ncclResult_t issue(Part part, ncclComm_t handle, std::size_t read_elements, std::size_t written_elements) {
  const auto check = [&]() -> ncclResult_t {
    if (const ncclResult_t entered = enter(part.function.c_str()); entered != ncclSuccess) return entered;
    part.communicator = find(handle);
    if (!part.communicator) return refuse(ncclInvalidArgument, "no such communicator");
    const Communicator& own = *part.communicator;
    const int size = static_cast<int>(own.group ? own.group->members.size() : 0);
    const std::size_t element = width(part.type);
    const Machine& machine = Machine::instance();
    {
      const std::lock_guard lock(fake().mutex);
      if (own.state != ncclSuccess) return refuse(ncclInvalidUsage, part.function + " while a call is in progress");
    }
    if (element == 0 || part.root < 0 || part.root >= size) return refuse(ncclInvalidArgument, describe(part));
    if (read_elements > 0 && !machine.is_allocated(part.from, read_elements * element)) {
      return refuse(ncclInvalidArgument, describe(part) + " reads outside device memory");
    }
    if (written_elements > 0 && !machine.is_allocated(part.to, written_elements * element)) {
      return refuse(ncclInvalidArgument, describe(part) + " writes outside device memory");
    }
    // Where input and output overlap, the smaller one must be the rank's own part of the other.
    const auto* from = static_cast<const std::byte*>(part.from);
    const auto* to = static_cast<const std::byte*>(part.to);
    if (read_elements > 0 && written_elements > 0 && from < to + written_elements * element &&
        to < from + read_elements * element) {
      const std::size_t own_part = static_cast<std::size_t>(own.rank) * part.count * element;
      const bool fits = part.function == "ncclAllGather"       ? from == to + own_part
                        : part.function == "ncclReduceScatter" ? to == from + own_part
                                                               : from == to;
      if (!fits) return refuse(ncclInvalidUsage, describe(part) + " overlaps itself");
    }
    return ncclSuccess;
  };
  const ncclResult_t result = check();
  if (result == ncclSuccess) {
    Communicator& own = *part.communicator;
    if (part.kind == Kind::collective) {
      part.number = own.collectives++;
    } else {
      const bool sends = part.kind == Kind::send;
      part.number = own.messages[sends ? std::pair(own.rank, part.root) : std::pair(part.root, own.rank)]++;
    }
    grouped.push_back(std::make_shared<Part>(part));
  } else if (group_result == ncclSuccess) {
    group_result = result;
  }
  if (group_depth > 0) return result;
  return flush_group();
}

// Once all members of a split have come.
void complete_split(Group& parent, const Split& split) {
  std::map<int, std::vector<std::pair<int, int>>> colors;  // key and rank by color
  for (const auto& [rank, member] : split.members) {
    if (member.color != NCCL_SPLIT_NOCOLOR) colors[member.color].emplace_back(member.key, rank);
  }
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    const auto group = std::make_shared<Group>();
    for (const auto& [key, rank] : members) {
      const auto next = std::make_shared<Communicator>();
      next->group = group;
      next->rank = static_cast<int>(group->members.size());
      next->world_rank = parent.members[static_cast<std::size_t>(rank)]->world_rank;
      next->polls_until_ready = 1;
      group->members.push_back(next);
      *split.members.at(rank).result = handle_of(next);
    }
  }
  for (const auto& member : parent.members) {
    if (member->state == ncclInProgress) member->state = ncclSuccess;
  }
}

// Destroyed and aborted communicators cannot be told apart by their peers.
ncclResult_t drop(ncclComm_t handle) {
  {
    const std::lock_guard lock(fake().mutex);
    const auto found = fake().communicators.find(handle);
    if (found == fake().communicators.end()) return refuse(ncclInvalidArgument, "no such communicator");
    found->second->aborted = true;
    fake().communicators.erase(found);
  }
  // What waited for it can go on, if only to end.
  Machine::instance().notify();
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t entered = enter("ncclGetUniqueId"); entered != ncclSuccess) return entered;
  const std::lock_guard lock(fake().mutex);
  *id = {};
  fmt::format_to_n(id->internal, sizeof id->internal - 1, "fake {}", ++fake().ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const ncclResult_t entered = enter("ncclCommInitRankConfig"); entered != ncclSuccess) return entered;
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) {
    return refuse(ncclInvalidArgument, "the fake knows communicators that do not block only");
  }
  if (rank < 0 || rank >= size) return refuse(ncclInvalidArgument, "no such rank");
  const std::lock_guard lock(fake().mutex);
  Start& start = fake().starts[id.internal];
  if (start.members.contains(rank)) return refuse(ncclInvalidUsage, fmt::format("rank {} twice", rank));
  const auto communicator = std::make_shared<Communicator>();
  communicator->rank = communicator->world_rank = rank;
  *result = handle_of(communicator);
  if (start.size != 0 && start.size != size) {
    return refuse(ncclInvalidArgument, fmt::format("{} ranks here and {} elsewhere", size, start.size));
  }
  start.size = size;
  start.members[rank] = communicator;
  if (static_cast<int>(start.members.size()) < size) return ncclInProgress;
  const auto group = std::make_shared<Group>();
  for (const auto& [member_rank, member] : start.members) {
    group->members.push_back(member);
    member->group = group;
    member->state = ncclSuccess;
  }
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  if (const ncclResult_t entered = enter("ncclCommSplit"); entered != ncclSuccess) return entered;
  if (config == nullptr || config->blocking != 0 || config->commName == nullptr) {
    return refuse(ncclInvalidArgument, "a split without a name or that blocks");
  }
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, "a negative color");
  const auto communicator = find(handle);
  if (!communicator) return refuse(ncclInvalidArgument, "no such communicator");
  const std::lock_guard lock(fake().mutex);
  if (communicator->state != ncclSuccess) return refuse(ncclInvalidUsage, "split while a call is in progress");
  Group& group = *communicator->group;
  communicator->state = ncclInProgress;
  const std::uint64_t number = communicator->splits++;
  if (is_dead(communicator->world_rank)) return ncclInProgress;
  Split& split = group.splits[number];
  *result = nullptr;
  split.members[communicator->rank] = {color, key, result};
  if (split.members.size() == group.members.size()) complete_split(group, split);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const auto communicator = find(handle);
  if (!communicator) return refuse(ncclInvalidArgument, "no such communicator");
  std::vector<PartPointer> parts, previous;
  {
    const std::lock_guard lock(fake().mutex);
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
  const ncclResult_t launched = launch(parts, std::move(previous));
  const std::lock_guard lock(fake().mutex);
  if (communicator->state == ncclInProgress) communicator->state = launched;
  *state = communicator->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  if (const ncclResult_t entered = enter("ncclCommFinalize"); entered != ncclSuccess) return entered;
  return find(handle) ? ncclSuccess : refuse(ncclInvalidArgument, "no such communicator");
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (const ncclResult_t entered = enter("ncclCommDestroy"); entered != ncclSuccess) return entered;
  if (const auto communicator = find(handle)) {
    // Work that is under way goes on.
    const std::lock_guard lock(fake().mutex);
    fake().communicators.erase(handle);
    return ncclSuccess;
  }
  return refuse(ncclInvalidArgument, "no such communicator");
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (const ncclResult_t entered = enter("ncclCommAbort"); entered != ncclSuccess) return entered;
  return drop(handle);
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
  return issue({.function = "ncclAllReduce",
                .from = from,
                .to = to,
                .count = count,
                .type = type,
                .reduce = reduce,
                .communicator = {},
                .stream = stream},
               communicator, count, count);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return issue({.function = "ncclBroadcast",
                .from = from,
                .to = to,
                .count = count,
                .type = type,
                .root = root,
                .communicator = {},
                .stream = stream},
               communicator, count, count);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduce, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  const auto own = find(communicator);
  return issue({.function = "ncclReduce",
                .from = from,
                .to = to,
                .count = count,
                .type = type,
                .reduce = reduce,
                .root = root,
                .communicator = {},
                .stream = stream},
               communicator, count, own && own->rank == root ? count : 0);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  const auto own = find(communicator);
  const std::size_t size = own && own->group ? own->group->members.size() : 1;
  return issue({.function = "ncclAllGather",
                .from = from,
                .to = to,
                .count = count,
                .type = type,
                .communicator = {},
                .stream = stream},
               communicator, count, count * size);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                               ncclComm_t communicator, cudaStream_t stream) {
  const auto own = find(communicator);
  const std::size_t size = own && own->group ? own->group->members.size() : 1;
  return issue({.function = "ncclReduceScatter",
                .from = from,
                .to = to,
                .count = count,
                .type = type,
                .reduce = reduce,
                .communicator = {},
                .stream = stream},
               communicator, count * size, count);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return issue({.kind = Kind::send,
                .function = "ncclSend",
                .from = from,
                .count = count,
                .type = type,
                .root = peer,
                .communicator = {},
                .stream = stream},
               communicator, count, 0);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return issue({.kind = Kind::receive,
                .function = "ncclRecv",
                .to = to,
                .count = count,
                .type = type,
                .root = peer,
                .communicator = {},
                .stream = stream},
               communicator, 0, count);
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
}

void FakeNccl::kill(int world_rank) {
  const std::lock_guard lock(fake().mutex);
  fake().dead.push_back(world_rank);
}

void FakeNccl::fail_next(const std::string& function, ncclResult_t error, int passing) {
  const std::lock_guard lock(fake().mutex);
  fake().injections[function] = {error, passing};
}

void FakeNccl::set_asynchronous_error(int world_rank, ncclResult_t error) {
  const std::lock_guard lock(fake().mutex);
  for (const auto& [handle, communicator] : fake().communicators) {
    if (communicator->world_rank == world_rank) communicator->state = error;
  }
}

std::map<std::string, std::int64_t> FakeNccl::calls() {
  const std::lock_guard lock(fake().mutex);
  return fake().calls;
}

std::int64_t FakeNccl::alive() {
  const std::lock_guard lock(fake().mutex);
  return static_cast<std::int64_t>(fake().communicators.size());
}

}  // namespace weft::cuda_emulator
