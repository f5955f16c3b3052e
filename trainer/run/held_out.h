// The loss of held-out text, in passes of a forward program. They run between the steps of a run (rank_run.h), or for a
// model that is not trained (forward_run.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/runtime/staging.h"
#include "trainer/config/config.h"
#include "trainer/data/text_windows.h"
#include "trainer/rank/metrics.h"
#include "trainer/rank/rank_stages.h"

namespace weft {

// The text to measure, and the forwards that measure it. Immutable; shared by ranks.
class HeldOutWindows {
 public:
  // Windows of training.sequence_length tokens (text_windows.h), at most `most` of them (keep), 0 for all. Throws Error
  // (request) as TextWindows and open_vocabulary, and for a tokenizer that is not the model's (require_fit). `config`
  // is from for_inference() or without_training().
  HeldOutWindows(const Config& config, const std::vector<std::string>& files, std::int64_t most,
                 std::string_view asked);
  // Those of the validation part of data.train by data.split. Throws as TextWindows, open_vocabulary and require_fit.
  HeldOutWindows(const Config& config, std::int64_t most);

  // The configuration of a pass: `config` with a global batch no larger than the text needs.
  const Config& config() const { return config_; }
  const TextWindows& windows() const { return windows_; }
  std::int64_t passes() const;
  // `loss_sum`: nats, of all passes and ranks.
  HeldOutLoss loss(double loss_sum, double seconds) const;

 private:
  HeldOutWindows(const Config& config, std::int64_t most, const TextVocabulary& vocabulary,
                 const std::function<TextWindows(const TextVocabulary&)>& open);

  TextWindows windows_;
  Config config_;
  std::int64_t targets_, bytes_;  // predicted tokens that count, and their text without marks around it
};

// The text of [validation], with the forwards between the steps of a run; none if it names no file.
std::optional<HeldOutWindows> validation_windows(const Config& config);
// Whether the run validates after this step.
bool validates_after(const Config& config, std::int64_t step);

// One rank's part of the text, pass after pass.
class HeldOutReader {
 public:
  // `on_device`, [numbers() or more, 1] int32, takes the text of a pass (parts_of). The arguments outlive the reader.
  HeldOutReader(const HeldOutWindows& text, const Mesh& mesh, int rank, TensorView on_device, Stream& compute);

  // Of a rank's text in a pass.
  static std::int64_t numbers(const Config& config);

  // Reads this rank's windows of pass `pass`, from 0. Waits until the device has copied those of the pass before.
  StepBatch read(std::int64_t pass);

 private:
  const HeldOutWindows& text_;
  std::int64_t data_index_;
  std::vector<Range> runs_;
  Stream& compute_;
  TensorView on_device_;
  Staging staging_;
};

}  // namespace weft
