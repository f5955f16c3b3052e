#include "trainer/optimizer/optimizer.h"

#include "parallel/runtime/elementwise.h"
#include "trainer/optimizer/adamw.h"

namespace weft {

void Optimizer::add(std::vector<OwnedRows> rows, std::int64_t shard_size) {
  Part part;
  part.rows = std::move(rows);
  for (Tensor* moment : {&part.first_moment, &part.second_moment}) {
    *moment = ledger_.allocate(Bucket::optimizer_state, DType::float32, shard_size, 1);
    fill(*moment, 0.0f);
  }
  parts_.push_back(std::move(part));
}

void Optimizer::step(double learning_rate, std::int64_t step, double gradient_scale) {
  const PhaseClock::Scope scope(clock_, Phase::optimizer);
  AdamwStep update{learning_rate, config_.beta1, config_.beta2, config_.eps, config_.weight_decay, step, gradient_scale};
  for (Part& part : parts_) {
    for (const OwnedRows& rows : part.rows) {
      update.weight_decay = rows.parameter->columns == 1 ? 0.0 : config_.weight_decay;
      const auto begin = static_cast<std::size_t>(rows.offset), count = rows.values.size();
      adamw_update(update, rows.values, rows.gradients, part.first_moment.as<float>().subspan(begin, count),
                   part.second_moment.as<float>().subspan(begin, count));
    }
  }
}

}  // namespace weft
