// The means of a test to disturb the NCCL of the emulator (fake_nccl.cpp). Ranks are threads of one process, and
// communicators must not block. Their calls are operations on emulated streams that end when all peers have come to
// theirs.
//
// It is stricter than NCCL. Errors are calls that do not fit together, buffers outside device memory, wrong aliases,
// and calls during another one that is in progress. A call does nothing until its communicator is asked how far it is.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <map>
#include <string>

namespace weft::cuda_emulator {

class FakeNccl {
 public:
  // Forgets communicators, faults and counts. No other thread may be in a call, and the machine is configured anew.
  static void reset();
  // A rank of the world (the first communicator) is gone: what it queues never happens, others wait for it in vain.
  static void kill(int world_rank);
  // After `passing` more calls of a function the next one returns `error`.
  static void fail_next(const std::string& function, ncclResult_t error, int passing = 0);
  // The communicators of a rank report `error` from now on; of those with this name only, unless it is empty.
  static void set_asynchronous_error(int world_rank, ncclResult_t error, const std::string& name = {});
  // Whether the first message between two ranks stays in progress until both have issued it, as NCCL's does, which
  // connects them then. Not from the start, nor after a reset.
  static void connect_at_first_message(bool does);
  // Calls by name of function since the reset.
  static std::map<std::string, std::int64_t> calls();
  // Calls of ncclAllGather since the reset, by name of their communicator: those that write to memory registered with
  // it, and the others.
  struct Gathers {
    std::int64_t registered = 0, unregistered = 0;
  };
  static std::map<std::string, Gathers> gathers();
  // Registrations that have not been taken back, by ncclCommDeregister or an abort; blocks that have not been freed.
  static std::int64_t registrations();
  static std::int64_t memory_blocks();
  // Communicators that have been neither destroyed nor aborted.
  static std::int64_t alive();
};

}  // namespace weft::cuda_emulator
