// Runs one rank's list. The handler knows how to do each thing; the list alone says what happens and when. An error
// inside an action names it; observers see where it begins and ends.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/program.h"
#include "parallel/runtime/nvtx.h"

namespace weft {

class ActionHandler {
 public:
  virtual ~ActionHandler() = default;
  virtual void forward(int segment, int microbatch) = 0;
  virtual void backward_input(int segment, int microbatch) = 0;
  virtual void backward_weight(int segment, int microbatch) = 0;
  virtual void recompute(int segment, int microbatch) = 0;
  // `op` is UNSHARD or UNSHARD_ISLAND; of reshard RESHARD or RESHARD_ISLAND.
  virtual void unshard(Op op, int unit) = 0;
  virtual void reshard(Op op, int unit) = 0;
  virtual void scatter_gradient(int unit) = 0;
  virtual void reduce_gradient(int unit) = 0;
  virtual void tie_gradient(int unit) = 0;
  virtual void wait_reduction(int unit) = 0;
  virtual void send(Lane lane, int stage, int microbatch, int peer) = 0;
  virtual void receive(Lane lane, int stage, int microbatch, int peer) = 0;
  virtual void gradient_norm() = 0;
  virtual void optimizer_step() = 0;
};

// Hears of each action of a list, on the rank's thread. An action that fails does not end.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  virtual void begin(std::size_t action) = 0;
  virtual void end(std::size_t action) = 0;
};

// Names for profiling, one an action: `PP:2F blocks.3.experts`, `PP:2SEND_F`, `unshard blocks.3.experts`, `grad_norm`,
// `optimizer`. Neither microbatch nor step is part of them, so that their number is bounded and tools can add them up.
std::vector<std::string> range_names(const Program& program, std::span<const Action> actions);

// Makes every action of a list an NVTX range, in the category of its lane.
class ActionRanges final : public ActionObserver {
 public:
  // The arguments outlive the ranges.
  ActionRanges(NvtxDomain& domain, const Program& program, std::span<const Action> actions);

  void set_step(std::int64_t step) { step_ = static_cast<std::int32_t>(step); }
  void begin(std::size_t action) override;
  void end(std::size_t action) override;

 private:
  NvtxDomain& domain_;
  const Program& program_;
  std::span<const Action> actions_;
  std::vector<NvtxDomain::Name> names_;
  std::int32_t step_ = 0;
  std::optional<NvtxRange> open_;
};

// `program` supplies names for errors. Observers begin in their order and end in reverse.
void execute(const Program& program, std::span<const Action> actions, ActionHandler& handler,
             std::span<ActionObserver* const> observers = {});

}  // namespace weft
