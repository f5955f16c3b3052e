#include "parallel/comm/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>
#include <string_view>

#include "parallel/comm/lone_communicator.h"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/staging.h"

namespace weft {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  constexpr ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclFloat64, ncclInt32};  // as in DType
  const auto index = static_cast<std::size_t>(dtype);
  if (index >= std::size(types)) fail("{} is not communicated", name_of(dtype));
  return types[index];
}

bool all_equal(std::span<const std::int64_t> counts) {
  return std::ranges::all_of(counts, [&](std::int64_t count) { return count == counts[0]; });
}

std::size_t number(std::int64_t elements) {
  return static_cast<std::size_t>(elements);
}

// Calls `issue(root, part)` for the part of each rank, as long as NCCL accepts.
template <typename Issue>
ncclResult_t for_each_part(std::span<const std::int64_t> counts, std::int64_t total, int size, Issue issue) {
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < size && accepted(result); ++root) {
    const Range part = part_of_rank(counts, total, size, root);
    if (part.count > 0) result = issue(root, part);
  }
  return result;
}

// The same value on all machines, unlike std::hash.
std::int32_t fingerprint(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return static_cast<std::int32_t>(hash);
}

// Device memory for numbers that the backend itself exchanges, for the next work on `stream`.
std::shared_ptr<std::byte> scratch_numbers(std::int64_t count, Stream& stream) {
  const std::int64_t bytes = count * size_of(DType::int32);
  return {static_cast<std::byte*>(stream.device().allocate(bytes, stream)),
          [bytes, &stream](std::byte* data) { stream.device().release(data, bytes, stream); }};
}

}  // namespace

std::string describe_nccl(ncclResult_t result, ncclComm_t communicator) {
  std::string text = ncclGetErrorString(result);
  const char* detail = ncclGetLastError(communicator);
  if (detail != nullptr && *detail != '\0') text += fmt::format(": {}", detail);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

NcclHandle::~NcclHandle() {
  // A rank that throws ends without its peers; finalising would wait for the peers until the timeout.
  const bool failed = std::uncaught_exceptions() > 0;
  try {
    const auto entered = watch_.enter();
    watch_.remove(&communicator_);
    if (communicator_ == nullptr) return;
    if (!failed) {
      // An abort removes the registrations by itself.
      for (const auto& [block, registration] : registrations_) ncclCommDeregister(communicator_, registration);
    }
    bool quiet = false;
    if (!failed && accepted(ncclCommFinalize(communicator_))) {
      const auto deadline = std::chrono::steady_clock::now() + watch_.timeout();
      ncclResult_t state = ncclInProgress;
      while (ncclCommGetAsyncError(communicator_, &state) == ncclSuccess && state == ncclInProgress &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      quiet = state == ncclSuccess;
    }
    quiet ? ncclCommDestroy(communicator_) : ncclCommAbort(communicator_);
  } catch (const Error&) {
    // The watch has given up and aborted the communicator.
    watch_.remove(&communicator_);
  }
}

ncclResult_t NcclHandle::register_buffer(const NcclBuffers::Block& block) {
  if (registrations_.contains(block.data)) return ncclSuccess;
  void* registration = nullptr;
  const ncclResult_t result = ncclCommRegister(communicator_, block.data, block.bytes, &registration);
  if (accepted(result)) registrations_[block.data] = registration;
  return result;
}

ncclConfig_t nccl_config(const NcclOptions& options, const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name.c_str();
  if (options.ranks_per_device > 1) {
    // The kernels of all ranks must fit on the GPU together.
    config.minCTAs = 1;
    config.maxCTAs = 2;
    config.cgaClusterSize = 0;
    config.netName = "Socket";
  }
  return config;
}

NcclCommunicator::NcclCommunicator(std::unique_ptr<NcclMembers> members, std::unique_ptr<NcclHandle> handle,
                                   const NcclOptions& options, Stream& stream, NcclWatch& watch,
                                   CommunicationCounters& counters, PhaseClock& clock)
    : Communicator(members->group, members->rank, static_cast<int>(members->world_ranks.size()), stream, counters,
                   clock),
      members_(std::move(members)),
      handle_(std::move(handle)),
      options_(options),
      watch_(watch) {}

NcclCommunicator::~NcclCommunicator() {
  // Streams are waited for when they are destroyed, and kernels on them may wait for peers of any communicator.
  if (std::uncaught_exceptions() > 0) watch_.abandon();
  if (handle_->has_registrations() && std::uncaught_exceptions() == 0) {
    // Memory is deregistered after the last call that uses it.
    try {
      stream().synchronize();
    } catch (const Error&) {
      // The watch has given up and aborted the communicators.
    }
  }
  handle_.reset();
  watch_.forget(*members_);
}

template <typename Issue>
Fence NcclCommunicator::queue(Stream& on, CollectiveOp op, ConstTensorView data, int peer, Issue issue) {
  const NcclWatch::Call call{members_.get(), name_of(op), data.bytes(), data.dtype(), peer};
  {
    auto entered = watch_.enter();
    const cudaStream_t stream = cuda::native(on);
    ncclResult_t issued = ncclSuccess;
    if (const NcclBuffers* buffers = options_.buffers; buffers != nullptr && op == CollectiveOp::all_gather) {
      if (const auto block = buffers->block_of(data.data())) issued = handle_->register_buffer(*block);
    }
    if (accepted(issued)) {
      ncclGroupStart();
      issued = issue(handle_->get(), stream);
      const ncclResult_t ended = ncclGroupEnd();
      if (accepted(issued)) issued = ended;
    }
    if (!accepted(issued)) {
      watch_.give_up(entered,
                     fmt::format("group {}, rank {}: {} of {} bytes {} failed: {}", group(), rank(), name_of(op),
                                 data.bytes(), name_of(data.dtype()), describe_nccl(issued, handle_->get())));
    }
    // Before this, the call may not be queued on the stream yet.
    watch_.finish(handle_->get(), call);
  }
  Fence end = on.record();
  watch_.queued(call, end);
  return end;
}

template <typename Issue>
void NcclCommunicator::queue(CollectiveOp op, ConstTensorView data, Issue issue) {
  if (!data.empty()) queue(stream(), op, data, -1, issue);
}

// Uneven parts are broadcast, each by its owner, all in one launch. NCCL passes a part along a ring. With send and
// receive, the rank with the largest part would have to send the part to each other rank.
void NcclCommunicator::do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) {
  const ncclDataType_t type = nccl_type(output.dtype());
  queue(CollectiveOp::all_gather, output, [&](ncclComm_t communicator, cudaStream_t on) {
    if (all_equal(counts)) {
      return ncclAllGather(input.data(), output.data(), number(output.size() / size()), type, communicator, on);
    }
    return for_each_part(counts, output.size(), size(), [&](int root, const Range& part) {
      std::byte* to = output.data() + part.begin * size_of(output.dtype());
      const std::byte* from = root == rank() ? input.data() : to;
      return ncclBroadcast(from, to, number(part.count), type, root, communicator, on);
    });
  });
}

void NcclCommunicator::do_reduce_scatter(ConstTensorView input, TensorView output,
                                         std::span<const std::int64_t> counts) {
  const ncclDataType_t type = nccl_type(input.dtype());
  queue(CollectiveOp::reduce_scatter, input, [&](ncclComm_t communicator, cudaStream_t on) {
    if (all_equal(counts)) {
      return ncclReduceScatter(input.data(), output.data(), number(input.size() / size()), type, ncclSum, communicator,
                               on);
    }
    return for_each_part(counts, input.size(), size(), [&](int root, const Range& part) {
      const std::byte* from = input.data() + part.begin * size_of(input.dtype());
      std::byte* to = root == rank() ? output.data() : nullptr;
      return ncclReduce(from, to, number(part.count), type, ncclSum, root, communicator, on);
    });
  });
}

void NcclCommunicator::do_all_reduce(TensorView data, Reduce reduce) {
  queue(CollectiveOp::all_reduce, data, [&](ncclComm_t communicator, cudaStream_t on) {
    return ncclAllReduce(data.data(), data.data(), number(data.size()), nccl_type(data.dtype()),
                         reduce == Reduce::max ? ncclMax : ncclSum, communicator, on);
  });
}

void NcclCommunicator::do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts,
                                     TensorView output, std::span<const std::int64_t> receive_counts) {
  const ncclDataType_t type = nccl_type(input.dtype());
  const std::int64_t width = size_of(input.dtype());
  const auto from = [&](int peer) {
    const Range part = part_of_rank(send_counts, 0, size(), peer);
    return ConstTensorView(input.data() + part.begin * width, input.dtype(), part.count, 1);
  };
  const auto to = [&](int peer) {
    const Range part = part_of_rank(receive_counts, 0, size(), peer);
    return TensorView(output.data() + part.begin * width, output.dtype(), part.count, 1);
  };
  if (!from(rank()).empty()) {
    stream().device().copy(stream(), from(rank()).data(), to(rank()).data(), from(rank()).bytes());
  }
  bool any = false;
  for (int peer = 0; peer < size(); ++peer) {
    any |= peer != rank() && (!from(peer).empty() || !to(peer).empty());
  }
  if (!any) return;
  queue(stream(), CollectiveOp::all_to_all, input, -1, [&](ncclComm_t communicator, cudaStream_t on) {
    ncclResult_t result = ncclSuccess;
    for (int step = 1; step < size() && accepted(result); ++step) {
      // In each step every rank sends to one rank and receives from one rank.
      const int next = (rank() + step) % size(), previous = (rank() + size() - step) % size();
      if (!from(next).empty()) {
        result = ncclSend(from(next).data(), number(from(next).size()), type, next, communicator, on);
      }
      if (!to(previous).empty() && accepted(result)) {
        result = ncclRecv(to(previous).data(), number(to(previous).size()), type, previous, communicator, on);
      }
    }
    return result;
  });
}

void NcclCommunicator::do_broadcast(TensorView data, int root) {
  queue(CollectiveOp::broadcast, data, [&](ncclComm_t communicator, cudaStream_t on) {
    return ncclBroadcast(data.data(), data.data(), number(data.size()), nccl_type(data.dtype()), root, communicator,
                         on);
  });
}

void NcclCommunicator::do_barrier() {
  const auto scratch = scratch_numbers(1, stream());
  const TensorView one(scratch.get(), DType::int32, 1, 1);
  watch_.wait(queue(stream(), CollectiveOp::barrier, one, -1, [&](ncclComm_t communicator, cudaStream_t on) {
    // The contents of the memory do not matter.
    return ncclAllReduce(one.data(), one.data(), 1, ncclInt32, ncclMax, communicator, on);
  }));
}

void NcclCommunicator::do_send(ConstTensorView data, int peer) {
  sends_ = true;
  require(!receives_, "a rank that receives on a communicator of NCCL sends on another");
  if (send_stream_ == nullptr) send_stream_ = stream().device().create_stream("send");
  // Work queued on the lane from here on may overwrite the previous message.
  stream().wait(sent_[peer]);
  if (data.empty()) return;
  send_stream_->wait_for(stream());
  sent_[peer] = queue(*send_stream_, CollectiveOp::send, data, peer, [&](ncclComm_t communicator, cudaStream_t on) {
    return ncclSend(data.data(), number(data.size()), nccl_type(data.dtype()), peer, communicator, on);
  });
}

void NcclCommunicator::do_receive(TensorView data, int peer) {
  receives_ = true;
  require(!sends_, "a rank that sends on a communicator of NCCL receives on another");
  if (data.empty()) return;
  queue(stream(), CollectiveOp::receive, data, peer, [&](ncclComm_t communicator, cudaStream_t on) {
    return ncclRecv(data.data(), number(data.size()), nccl_type(data.dtype()), peer, communicator, on);
  });
}

void NcclCommunicator::do_flush() {
  for (const auto& [peer, received] : sent_) stream().wait(received);
  sent_.clear();
}

void NcclCommunicator::do_connect(std::span<const std::pair<int, int>> pairs) {
  const auto scratch = scratch_numbers(1, stream());
  const TensorView one(scratch.get(), DType::int32, 1, 1);
  for (const auto& [source, destination] : pairs) {
    // All ranks process the pairs in this order, so both ranks of the first unfinished pair are always ready.
    if (source == rank()) {
      queue(stream(), CollectiveOp::send, one, destination, [&](ncclComm_t communicator, cudaStream_t on) {
        return ncclSend(one.data(), 1, ncclInt32, destination, communicator, on);
      });
    } else if (destination == rank()) {
      queue(stream(), CollectiveOp::receive, one, source, [&](ncclComm_t communicator, cudaStream_t on) {
        return ncclRecv(one.data(), 1, ncclInt32, source, communicator, on);
      });
    }
  }
  watch_.wait(stream().record());
}

std::vector<std::int32_t> NcclCommunicator::gather_from_all(const std::vector<std::int32_t>& own) {
  const std::int64_t count = std::ssize(own);
  const auto scratch = scratch_numbers(count * size(), stream());
  const TensorView all(scratch.get(), DType::int32, count * size(), 1), mine = all.rows_from(count * rank(), count);
  Staging staging(stream().device(), DType::int32, count), gathered(stream().device(), DType::int32, count * size());
  std::ranges::copy(own, staging.as<std::int32_t>().begin());
  staging.upload(stream(), mine);
  queue(CollectiveOp::all_gather, all, [&](ncclComm_t communicator, cudaStream_t on) {
    return ncclAllGather(mine.data(), all.data(), own.size(), ncclInt32, communicator, on);
  });
  gathered.download(stream(), all);
  watch_.wait(stream().record());
  const std::span<std::int32_t> result = gathered.as<std::int32_t>();
  return {result.begin(), result.end()};
}

std::unique_ptr<NcclHandle> NcclCommunicator::split_handle(int color, const NcclMembers& members,
                                                           const std::string& name) {
  auto handle = std::make_unique<NcclHandle>(watch_);
  ncclConfig_t config = nccl_config(options_, name);
  const NcclWatch::Call call{members_.get(), "split"};
  auto entered = watch_.enter();
  const ncclResult_t result = ncclCommSplit(handle_->get(), color, members.rank, handle->address(), &config);
  if (!accepted(result)) {
    watch_.give_up(entered, fmt::format("group {}, rank {}: the split of {} failed: {}", group(), rank(), name,
                                        describe_nccl(result, handle_->get())));
  }
  // The parent first: the new communicator may have no address before the parent has finished.
  watch_.finish(handle_->get(), call);
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  handle->watched(members);
  watch_.finish(handle->get(), call);
  return handle;
}

std::unique_ptr<Communicator> NcclCommunicator::do_split(int color, int key, const std::string& name, Stream& on) {
  // The members of each new group; NCCL itself does not report them.
  constexpr int fields = 3;
  const std::vector<std::int32_t> all = gather_from_all({color, key, fingerprint(name)});
  const auto field = [&](int member, int which) { return all[member * fields + which]; };
  std::vector<int> members;
  bool any_group = false;
  for (int member = 0; member < size(); ++member) {
    if (field(member, 0) == color) members.push_back(member);
    for (int other = 0; other < member; ++other) {
      if (field(member, 0) != field(other, 0)) continue;
      any_group = true;
      if (field(member, 2) != field(other, 2)) {
        fail("group {}: in split ranks {} and {} give the group of color {} different names", group(), other, member,
             field(member, 0));
      }
    }
  }
  std::ranges::stable_sort(members, {}, [&](int member) { return field(member, 1); });
  const auto own = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  auto next = std::make_unique<NcclMembers>();
  next->group = name;
  next->rank = own;
  for (int member : members) next->world_ranks.push_back(members_->world_ranks[member]);

  // All ranks of this group take part, including ranks that end up alone. Colors of NCCL must not be negative.
  std::unique_ptr<NcclHandle> handle;
  const bool alone = members.size() == 1;
  if (any_group) handle = split_handle(alone ? NCCL_SPLIT_NOCOLOR : *std::ranges::min_element(members), *next, name);
  if (alone) return std::make_unique<LoneCommunicator>(name, on, counters(), clock());
  return std::make_unique<NcclCommunicator>(std::move(next), std::move(handle), options_, on, watch_, counters(),
                                            clock());
}

}  // namespace weft
