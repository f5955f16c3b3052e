// Runs one rank's list. The handler implements each action; the list alone decides which actions run and when. An error
// inside an action names the action; observers see where the action begins and ends.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/nvtx.h"
#include "parallel/runtime/work.h"

namespace weft {

class ActionHandler {
 public:
  virtual ~ActionHandler() = default;
  virtual void forward(int segment, int microbatch, ComputePart part) = 0;
  virtual void backward_input(int segment, int microbatch, ComputePart part) = 0;
  virtual void backward_weight(int segment, int microbatch) = 0;
  virtual void recompute(int segment, int microbatch, ComputePart part) = 0;
  // Behind a part of one of these, but the last.
  virtual void exchange_rows(int segment, int microbatch) = 0;
  virtual void offload(int segment, int microbatch) = 0;
  virtual void wait_offload(int segment, int microbatch) = 0;
  virtual void reload(int segment, int microbatch) = 0;
  // `op` of unshard is UNSHARD or UNSHARD_SECONDARY, `op` of reshard is RESHARD or RESHARD_SECONDARY.
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

// Is told of each action of a list, and of the work inside it, on the rank's thread. A failed action has no end().
class ActionObserver : public WorkObserver {
 public:
  virtual void begin(std::size_t action) = 0;
  virtual void end(std::size_t action) = 0;
};

// Tells several observers of the work inside actions: begin in their order, end in reverse. The observers outlive this.
class WorkForObservers final : public WorkObserver {
 public:
  explicit WorkForObservers(std::span<ActionObserver* const> observers) : observers_(observers) {}
  void begin_work(Work work) override;
  void end_work() override;

 private:
  std::span<ActionObserver* const> observers_;
};

// Names for profiling, one per action: `PP:2F blocks.3.experts`, `PP:2SEND_F`, `unshard blocks.3.experts`, `grad_norm`,
// `optimizer`. A name has neither microbatch nor step, so that names are few and tools can add them up.
std::vector<std::string> range_names(const Program& program, std::span<const Action> actions);

// Makes every action of a list an NVTX range, in the category of its lane. The work inside an action gets ranges with
// the action's payload, except the bytes (0). Phase and family are those that `weft trace sum` reads off the names
// (trainer/diagnosis/trace_sum.h).
class ActionRanges final : public ActionObserver {
 public:
  // The arguments outlive the ranges.
  ActionRanges(NvtxDomain& domain, const Program& program, std::span<const Action> actions);

  void set_step(std::int64_t step) { step_ = static_cast<std::int32_t>(step); }
  void begin(std::size_t action) override;
  void end(std::size_t action) override;
  void begin_work(Work work) override;
  void end_work() override;

 private:
  NvtxDomain& domain_;
  const Program& program_;
  std::span<const Action> actions_;
  std::vector<NvtxDomain::Name> names_;
  std::vector<NvtxPayload> payloads_;  // without the step
  std::array<NvtxDomain::Name, all_values<Work>.size()> work_names_;
  std::int32_t step_ = 0;
  std::size_t action_ = 0;
  std::optional<NvtxRange> open_, work_;
};

// `program` supplies names for errors. Observers begin in their order and end in reverse.
void execute(const Program& program, std::span<const Action> actions, ActionHandler& handler,
             std::span<ActionObserver* const> observers = {});

}  // namespace weft
