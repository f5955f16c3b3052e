// Arrays of one parameter that an update steps on the CPU, whole or in runs.
#pragma once

#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "parallel/runtime/random.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

// P are parameters, S states, each float or bfloat16.
template <typename P, typename S>
struct UpdateArrays {
  UpdateRule rule;
  int states;
  std::vector<P> parameters;
  std::vector<float> gradients;
  std::vector<S> first, second;

  UpdateArrays(UpdateRule rule_of_all, double momentum, std::size_t size)
      : rule(rule_of_all),
        states(states_of(rule_of_all, momentum)),
        parameters(size),
        gradients(size),
        first(states > 0 ? size : 0),
        second(states > 1 ? size : 0) {
    const RandomStream random(7, "parameters");
    for (std::size_t i = 0; i < size; ++i) assign(parameters[i], static_cast<float>(random.normal(i)));
  }

  // Normal numbers whose size differs from element to element by up to four orders of magnitude.
  void draw_gradients(std::int64_t step) {
    const RandomStream random(11, "gradients");
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const double size = std::pow(10.0, -static_cast<double>(i % 5));
      gradients[i] = static_cast<float>(random.normal(static_cast<std::uint64_t>(step) * gradients.size() + i) * size);
    }
  }

  UpdateRows run(std::size_t begin, std::size_t count) {
    const auto part = [&](auto& elements) {
      return view_of(std::span(elements).subspan(begin, count), static_cast<std::int64_t>(count), 1);
    };
    UpdateRows rows;
    rows.parameters = part(parameters);
    rows.gradients = part(gradients);
    if (states > 0) rows.first_state = part(first);
    if (states > 1) rows.second_state = part(second);
    rows.first_index = begin;
    rows.name_key = 0x1234;
    return rows;
  }
  UpdateRows whole() { return run(0, parameters.size()); }

  bool same_bits(const UpdateArrays& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    return same(parameters, other.parameters) && same(first, other.first) && same(second, other.second);
  }
};

// Steps of one group on the CPU. Norms are those of the runs given.
class CpuStepper {
 public:
  CpuStepper() : device_(make_cpu_device()), stream_(device_->create_stream("compute")), ledger_(*device_, *stream_) {}

  std::unique_ptr<RowsUpdate> make(std::vector<UpdateRows> rows, std::vector<UpdateRule> rules) {
    return cpu_optimizer_kernels().make_update(*stream_, ledger_, std::move(rows), std::move(rules));
  }
  // Sums of squares of `tensors` parameters and of their directions.
  std::vector<double> norms(const std::vector<UpdateRows>& rows, const GroupStep& step, float scale,
                            std::size_t tensors = 1) {
    std::vector<double> sums(2 * tensors, std::nan(""));
    make(rows, {step.rule})->norms(*stream_, {&step, 1}, of(scale), view_of(std::span(sums), std::ssize(sums), 1));
    return sums;
  }
  void run(const std::vector<UpdateRows>& rows, const GroupStep& step, float scale, std::vector<double> sums) {
    make(rows, {step.rule})->run(*stream_, {&step, 1}, of(scale), view_of(std::span(sums), std::ssize(sums), 1));
  }
  // Both phases.
  void step(const std::vector<UpdateRows>& rows, const GroupStep& step, float scale) {
    run(rows, step, scale,
        needs_of(step.rule) == Needs::tensor_norms ? norms(rows, step, scale) : std::vector<double>());
  }
  Stream& stream() { return *stream_; }

 private:
  static TensorView of(float& scale) { return {&scale, DType::float32, 1, 1}; }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  MemoryLedger ledger_;
};

}  // namespace weft
