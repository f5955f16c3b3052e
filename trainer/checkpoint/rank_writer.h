// One rank's part of a checkpoint, written while training continues. Rows are copied to host memory on a separate lane,
// piece by piece, and a thread writes them. If the allowed host memory holds all bytes of the rank, training waits for
// no file. It waits for the copies only before it changes the rows. Otherwise a piece is copied after an earlier piece
// has been written, and training waits for the last copy before it changes the rows.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/rank/checkpoint_rows.h"

namespace weft {

// Bytes of host memory that a rank allocates to save `bytes`, if `most` bytes are allowed: `bytes`, or a number of
// whole pieces.
std::int64_t staging_bytes(std::int64_t bytes, std::int64_t most);

class RankWriter {
 public:
  // `rows` are those that this rank saves; their values, the device and the calls outlive the writer. Copies go through
  // at most `host_memory` bytes.
  RankWriter(Device& device, int rank, int world, std::vector<CheckpointRows> rows, std::int64_t host_memory,
             const FileCalls& calls);
  // Ends the save in flight: it is abandoned if copies are still to be queued, else it is completed.
  ~RankWriter();
  RankWriter(const RankWriter&) = delete;
  RankWriter& operator=(const RankWriter&) = delete;

  // All functions except done() are called by the thread that queues the device's work.

  // Copies the rows as they are after the work queued on `compute` so far, and starts writing
  //   weights-00003-of-00008.safetensors, optimizer-00003-of-00008.safetensors, part-00003.json
  // to `folder`, which is created if it does not exist. `part` has progress, mesh and keys of the run. No other save
  // may be in flight.
  void begin(const std::filesystem::path& folder, const Manifest& part, Stream& compute);
  // Queues the remaining copies; waits for written files if there is no room. Work that changes the rows must wait for
  // the returned fence, which is null if nothing has to be waited for.
  Fence copied();

  // Runs `job` on the writer's thread after the work in flight. wait() reports its failure too.
  void also(std::function<void()> job);
  // Whether the writer's thread has no work left, after success or failure.
  bool done() const { return !busy_; }
  // Waits until done(). Returns the first failure since the last wait(), if any.
  std::optional<std::string> wait();

 private:
  struct File {
    std::string name;
    SafetensorsHeader header;
    std::vector<std::size_t> rows;  // index in rows_, by tensor of the header
  };
  struct FileChunk {
    std::size_t file = 0;
    std::int64_t begin = 0, size = 0;  // bytes in the file's tensor data
    std::int64_t offset = 0;           // in the staging memory
  };
  void add_file(const std::string& name, bool states);
  void divide();
  // Queues copies for as many pieces as there is room for. Returns false if the files cannot be written.
  bool copy_some();
  void copy(const FileChunk& piece);
  void write(const std::filesystem::path& folder, Manifest part);
  // Blocks until the piece is in host memory.
  std::span<const std::uint8_t> await(std::size_t piece);
  void work();

  Device& device_;
  int rank_, world_;
  std::vector<CheckpointRows> rows_;
  const FileCalls& calls_;
  std::vector<File> files_;
  std::int64_t bytes_ = 0, staging_bytes_ = 0, host_memory_;
  std::vector<FileChunk> pieces_;
  std::size_t room_ = 0;  // number of pieces that the staging memory holds
  std::uint8_t* staging_ = nullptr;
  std::unique_ptr<Stream> lane_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Fence> copies_;  // of the pieces with queued copies
  std::size_t written_ = 0;    // number of written pieces
  bool abandoned_ = false;     // the remaining pieces will not be written
  std::vector<std::function<void()>> jobs_;
  std::optional<std::string> failure_;  // of the jobs since the last wait
  std::atomic<bool> busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

// File name of a rank's part.
std::string part_name(int rank);

}  // namespace weft
