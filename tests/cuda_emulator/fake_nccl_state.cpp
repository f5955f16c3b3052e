#include "fake_nccl_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "machine.h"
#include "parallel/runtime/dtype.h"

namespace weft::cuda_emulator {
namespace {

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
      return each(float16());
    default:
      return each(bfloat16());
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

// The message at the other end, once its stream has come to it.
PartPointer partner(const Part& part) {
  Group& group = *part.communicator->group;
  const auto& others = (part.kind == Kind::send ? group.receives : group.sends)[ends_of(part)];
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
  (part->kind == Kind::send ? group.sends : group.receives)[ends_of(*part)].push_back(part);
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

}  // namespace

Fake& fake() {
  static Fake state;
  return state;
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

std::pair<int, int> ends_of(const Part& part) {
  const int own = part.communicator->rank;
  return part.kind == Kind::send ? std::pair(own, part.root) : std::pair(part.root, own);
}

Extents extents_of(const Part& part) {
  const Communicator& own = *part.communicator;
  const std::size_t size = own.group ? own.group->members.size() : 1;
  if (part.function == "ncclAllGather") return {part.count, part.count * size};
  if (part.function == "ncclReduceScatter") return {part.count * size, part.count};
  if (part.function == "ncclReduce") return {part.count, own.rank == part.root ? part.count : 0};
  return {part.kind == Kind::receive ? 0 : part.count, part.kind == Kind::send ? 0 : part.count};
}

std::string describe(const Part& part) {
  return fmt::format("rank {}: {} of {} elements of type {} (operation {}, {} {})", part.communicator->rank,
                     part.function, part.count, static_cast<int>(part.type), static_cast<int>(part.reduce),
                     part.kind == Kind::collective ? "root" : "peer", part.root);
}

bool is_dead(int world_rank) {
  const auto& dead = fake().dead;
  return std::find(dead.begin(), dead.end(), world_rank) != dead.end();
}

bool covers(const Ranges& ranges, const void* address, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(address);
  const auto after = ranges.upper_bound(first);
  if (after == ranges.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return first + bytes <= begin + size;
}

bool launch(const std::vector<PartPointer>& parts, std::vector<PartPointer> previous) {
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
  return machine.enqueue(stream, {"NCCL begins", over, begin_all}) == cudaSuccess &&
         machine.enqueue(stream, {"NCCL ends", all_can_end, end_all}) == cudaSuccess;
}

ncclComm_t handle_of(const std::shared_ptr<Communicator>& communicator) {
  const auto handle = reinterpret_cast<ncclComm_t>(communicator.get());
  fake().communicators[handle] = communicator;
  return handle;
}

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
      next->name = split.members.at(rank).name;
      group->members.push_back(next);
      *split.members.at(rank).result = handle_of(next);
    }
  }
  for (const auto& member : parent.members) {
    if (member->state == ncclInProgress) member->state = ncclSuccess;
  }
}

}  // namespace weft::cuda_emulator
