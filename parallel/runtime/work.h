// The work of a segment inside one action. A computation with exchanges of rows between experts can be cut there into
// parts. For profiles, a segment reports its current work with WorkScope to a WorkObserver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

#include "parallel/runtime/enum_names.h"

namespace weft {

// Part `index` of a forward or backward that is cut into `count` parts, with an exchange of rows behind each but the
// last. By default the whole.
struct ComputePart {
  std::uint8_t index = 0, count = 1;

  constexpr bool first() const { return index == 0; }
  constexpr bool last() const { return index + 1 == count; }
  bool operator==(const ComputePart&) const = default;
};

// route: scores and choices. permute: ordering rows by expert, and back. exchange: rows to other ranks and back,
// including waits. products: the routed experts. combine: the weighted sum of their outputs. shared: the shared expert.
enum class Work : std::uint8_t { route, permute, exchange, products, combine, shared };
constexpr auto enum_names(Work) {
  return name_list("route", "permute", "exchange", "products", "combine", "shared");
}

// Called on the rank's thread, inside the current action. Work does not nest.
class WorkObserver {
 public:
  virtual ~WorkObserver() = default;
  virtual void begin_work(Work) {}
  virtual void end_work() {}
};

// Work from construction to destruction. end_work() is not called if an exception leaves the scope. `observer` may be
// null.
class WorkScope {
 public:
  WorkScope(WorkObserver* observer, Work work) : observer_(observer) {
    if (observer_ != nullptr) observer_->begin_work(work);
  }
  ~WorkScope() noexcept(false) {
    if (observer_ != nullptr && std::uncaught_exceptions() == 0) observer_->end_work();
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  WorkObserver* observer_;
};

// Returns the result of `act`, reported as `work`.
template <typename Act>
decltype(auto) during(WorkObserver* observer, Work work, Act&& act) {
  const WorkScope scope(observer, work);
  return act();
}

}  // namespace weft
