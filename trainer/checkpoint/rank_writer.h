// One rank's part of a checkpoint, written while the run goes on: rows are copied to host memory on a lane of their
// own, then a thread writes them. Training waits for no file, and for the copies only where it is about to change what
// they read.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "trainer/checkpoint/checkpoint_rows.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {

class RankWriter {
 public:
  // `rows` are those that this rank saves; their values, the device and the calls outlive the writer.
  RankWriter(Device& device, int rank, int world, std::vector<CheckpointRows> rows, const FileCalls& calls);
  // Ends what is under way.
  ~RankWriter();
  RankWriter(const RankWriter&) = delete;
  RankWriter& operator=(const RankWriter&) = delete;

  // Copies the rows as what is queued on `compute` so far leaves them, and starts writing
  //   weights-00003-of-00008.safetensors, optimizer-00003-of-00008.safetensors, part-00003.json
  // to `folder`, which it makes if need be. `part` says whose progress it is. Nothing else may be under way.
  void begin(const std::filesystem::path& folder, const Manifest& part, Stream& compute);
  // Work that changes the rows is queued behind this. Null where copies are made at once.
  Fence copied() const { return copied_; }

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
    std::int64_t offset = 0;        // in the staging memory
  };
  void add_file(const std::string& name, bool states);
  void write(const std::filesystem::path& folder, Manifest part) const;
  void work();

  Device& device_;
  int rank_, world_;
  std::vector<CheckpointRows> rows_;
  const FileCalls& calls_;
  std::vector<File> files_;
  std::int64_t bytes_ = 0;
  std::uint8_t* staging_ = nullptr;
  std::unique_ptr<Stream> lane_;
  Fence copied_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> jobs_;
  std::optional<std::string> failure_;  // of the jobs since the last wait
  std::atomic<bool> busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

// The name of rank r's part.
std::string part_name(int rank);

}  // namespace weft
