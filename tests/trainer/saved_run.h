// Tiny runs that save and go on.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "tests/trainer/tiny_layout.h"
#include "trainer/checkpoint/reader.h"

namespace weft {

// The layout's run, saving to `directory` every `interval` steps and at the end.
Config saving_config(const TinyLayout& layout, const std::filesystem::path& directory, std::int64_t steps,
                     std::int64_t interval);

// What a run said of its checkpoints, by all ranks.
class SaidLines {
 public:
  CheckpointSetup setup() {
    CheckpointSetup setup;
    setup.say = [this](int rank, const std::string& text) {
      const std::scoped_lock lock(mutex_);
      lines_.push_back(std::to_string(rank) + ": " + text);
    };
    return setup;
  }
  // Of all lines that hold `part`.
  int count(const std::string& part) const;
  std::string all() const;

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Loads what `config` goes on with and saves it again to `directory`, without a step in between.
void resave(Config config, const std::filesystem::path& from, const std::filesystem::path& to);

// Tensors of `a` that `b` does not have, to the bit, whatever the boxes; and what else differs of the two.
std::vector<std::string> differing_tensors(const CheckpointReader& a, const CheckpointReader& b);

// Pairs that a step of every axis separates.
std::vector<TinyLayout> saved_layouts();

}  // namespace weft
