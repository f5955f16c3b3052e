// One rank's member of a group that communicates over NCCL.
//
// Note on messages. A send is a kernel that runs until the peer receives. Two ranks with streams that each begin with a
// send to the other would therefore wait for ever, where the local backend continues. Sends therefore have their own
// stream: as in the local backend, only the next send to the same peer (and flush) waits for a send. NCCL runs the
// calls of one communicator one after another, even on different streams, so a receive behind a send would wait for it.
// A rank therefore either sends or receives on one communicator (Transfers, rank_groups.h); a call of the other kind
// throws. The first message between two ranks makes both hosts wait for each other, because NCCL then connects the
// ranks. connect() sends first messages in an order without a circle of waiting, so that messages of a step find their
// ranks connected.
#pragma once

#include <nccl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_buffers.h"
#include "parallel/comm/nccl/nccl_watch.h"
#include "parallel/comm/nccl/nccl_world.h"

namespace weft {

// "unhandled system error (ncclSystemError): ..." with NCCL's own text on the last error, if there is one.
std::string describe_nccl(ncclResult_t result, ncclComm_t communicator = nullptr);

// Whether a call of a non-blocking communicator succeeded or is in progress.
constexpr bool accepted(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

// An NCCL communicator under the watch. Destroyed in order if all went well, otherwise aborted.
class NcclHandle {
 public:
  explicit NcclHandle(NcclWatch& watch) : watch_(watch) {}
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // The address that NCCL writes a new communicator to; call watched() afterwards.
  ncclComm_t* address() { return &communicator_; }
  void watched(const NcclMembers& members) { watch_.add(&communicator_, members); }
  // Null after the watch has given up.
  ncclComm_t get() const { return communicator_; }

  // Registers `block` with the communicator, once, for the life of the communicator. Call between enter() and the
  // release of its lock.
  ncclResult_t register_buffer(const NcclBuffers::Block& block);
  bool has_registrations() const { return !registrations_.empty(); }

 private:
  NcclWatch& watch_;
  ncclComm_t communicator_ = nullptr;
  std::map<const void*, void*> registrations_;  // NCCL's handles, by block
};

// The configuration of a non-blocking communicator named `name`. NCCL copies the name.
ncclConfig_t nccl_config(const NcclOptions& options, const std::string& name);

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<NcclMembers> members, std::unique_ptr<NcclHandle> handle, const NcclOptions& options,
                   Stream& stream, NcclWatch& watch, CommunicationCounters& counters, PhaseClock& clock);
  ~NcclCommunicator() override;

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override;
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override;
  void do_all_reduce(TensorView data, Reduce reduce) override;
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                     std::span<const std::int64_t> receive_counts) override;
  void do_broadcast(TensorView data, int root) override;
  void do_barrier() override;
  void do_send(ConstTensorView data, int peer) override;
  void do_receive(TensorView data, int peer) override;
  void do_flush() override;
  void do_connect(std::span<const std::pair<int, int>> pairs) override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override;

 private:
  // Makes the calls of `issue(communicator, CUDA stream)` as one NCCL group on `on`, and reports them to the watch.
  template <typename Issue>
  Fence queue(Stream& on, CollectiveOp op, ConstTensorView data, int peer, Issue issue);
  template <typename Issue>
  void queue(CollectiveOp op, ConstTensorView data, Issue issue);
  std::vector<std::int32_t> gather_from_all(const std::vector<std::int32_t>& own);
  // The handle of `members`, the ranks that pass the same color.
  std::unique_ptr<NcclHandle> split_handle(int color, const NcclMembers& members, const std::string& name);

  std::unique_ptr<NcclMembers> members_;
  std::unique_ptr<NcclHandle> handle_;
  const NcclOptions options_;
  NcclWatch& watch_;
  std::unique_ptr<Stream> send_stream_;  // created by the first send
  bool sends_ = false, receives_ = false;
  std::map<int, Fence> sent_;  // by peer: reached when the last message has been received
};

}  // namespace weft
