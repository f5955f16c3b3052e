// One rank's part of a checkpoint, written while the run goes on: rows are copied to host memory on a lane of their
// own, piece by piece, and a thread writes them. Where the host memory that it may take holds all of the rank's bytes,
// training waits for no file, and for the copies only where it is about to change what they read. Where it does not,
// a piece is copied when another has been written, and training waits for the last of them there.
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

// Of host memory that a rank takes to save `bytes`, when it may take `most`: all of them, or whole pieces.
std::int64_t staging_bytes(std::int64_t bytes, std::int64_t most);

class RankWriter {
 public:
  // `rows` are those that this rank saves; their values, the device and the calls outlive the writer. Copies go through
  // at most `host_memory` bytes.
  RankWriter(Device& device, int rank, int world, std::vector<CheckpointRows> rows, std::int64_t host_memory,
             const FileCalls& calls);
  // Ends what is under way; what has not been copied then is not saved.
  ~RankWriter();
  RankWriter(const RankWriter&) = delete;
  RankWriter& operator=(const RankWriter&) = delete;

  // All but `done` are for the thread that queues the device's work.

  // Copies the rows as what is queued on `compute` so far leaves them, and starts writing
  //   weights-00003-of-00008.safetensors, optimizer-00003-of-00008.safetensors, part-00003.json
  // to `folder`, which it makes if need be. `part` says whose progress it is. Nothing else may be under way.
  void begin(const std::filesystem::path& folder, const Manifest& part, Stream& compute);
  // Queues the copies that there was no room for yet, waiting for files. Work that changes the rows is queued behind
  // the result, which is null where copies are made at once.
  Fence copied();

  // Has `job` done behind what is under way. `wait` tells how it ended too.
  void also(std::function<void()> job);
  // Neither copies nor writes; says nothing about success.
  bool done() const { return !busy_; }
  // Waits until it is done, and says what went wrong with it, if anything did.
  std::optional<std::string> wait();

  std::int64_t bytes() const { return bytes_; }

 private:
  struct File {
    std::string name;
    SafetensorsHeader header;
    std::vector<std::size_t> rows;  // of rows_, by tensor of the header
  };
  struct Piece {
    std::size_t file = 0;
    std::int64_t begin = 0, size = 0;  // of the file's tensors
    std::int64_t offset = 0;           // in the staging memory
  };
  void add_file(const std::string& name, bool states);
  void divide();
  // Queues copies for as many pieces as there is room for; false: the files cannot be written.
  bool copy_some();
  void copy(const Piece& piece);
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
  std::vector<Piece> pieces_;
  std::size_t room_ = 0;  // pieces that the staging memory holds
  std::uint8_t* staging_ = nullptr;
  std::unique_ptr<Stream> lane_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Fence> copies_;  // of the pieces that have been queued
  std::size_t written_ = 0;    // pieces
  bool abandoned_ = false;     // the rest will not be written
  std::vector<std::function<void()>> jobs_;
  std::optional<std::string> failure_;  // of the jobs since the last wait
  std::atomic<bool> busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

// The name of rank r's part.
std::string part_name(int rank);

}  // namespace weft
