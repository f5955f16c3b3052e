// Runs one rank's list. The list alone decides which actions run and when. An error inside an action names the action;
// observers see where the action begins and ends.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/nvtx.h"
#include "parallel/runtime/work.h"

namespace weft {

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

// Calls `perform` with each action. `program` supplies names for errors. Observers begin in their order and end in
// reverse.
void execute(const Program& program, std::span<const Action> actions,
             const std::function<void(const Action& action)>& perform, std::span<ActionObserver* const> observers = {});

}  // namespace weft
