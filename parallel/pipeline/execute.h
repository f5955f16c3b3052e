// Runs one rank's list. The handler knows how to do each thing; the list alone says what happens and when. Every action
// is an NVTX range, and an error inside one names it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program.h"

namespace weft {

class ActionHandler {
 public:
  virtual ~ActionHandler() = default;
  virtual void forward(int segment, int microbatch) = 0;
  virtual void backward_input(int segment, int microbatch) = 0;
  virtual void backward_weight(int segment, int microbatch) = 0;
  virtual void unshard(int unit) = 0;
  virtual void reshard(int unit) = 0;
  virtual void reduce_gradient(int unit) = 0;
  virtual void send(Op op, int stage, int microbatch, int peer) = 0;
  virtual void receive(Op op, int stage, int microbatch, int peer) = 0;
  virtual void gradient_norm() = 0;
  virtual void optimizer_step() = 0;
};

// Names for profiling, one an action, without the microbatch, which is the range's payload: few distinct names
// aggregate.
std::vector<std::string> range_names(const Program& program, std::span<const Action> actions);

// Told the name of each action before it begins: one of `names`, which live on.
using ActionObserver = std::function<void(std::string_view name)>;

// `program` supplies names; `names` are range_names of the same list.
void execute(const Program& program, std::span<const Action> actions, std::span<const std::string> names,
             ActionHandler& handler, const ActionObserver& observer = {});

}  // namespace weft
