// What a segment is at inside one action, for profiles: the parts of an expert block's work. Whoever wants to know is a
// WorkObserver; a segment says it by WorkScope.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

namespace weft {

// route: scores and choices. permute: rows by expert, and back. exchange: rows to other ranks and back, waits included.
// products: the routed experts. combine: the weighted sum of their outputs. shared: the shared expert.
enum class Work : std::uint8_t { route, permute, exchange, products, combine, shared };
inline constexpr std::array all_work = {Work::route,    Work::permute, Work::exchange,
                                        Work::products, Work::combine, Work::shared};
constexpr std::string_view name_of(Work work) {
  constexpr std::string_view names[] = {"route", "permute", "exchange", "products", "combine", "shared"};
  return names[static_cast<std::size_t>(work)];
}

// Hears of it on the rank's thread, inside the action that is under way. Work does not nest.
class WorkObserver {
 public:
  virtual ~WorkObserver() = default;
  virtual void begin_work(Work) {}
  virtual void end_work() {}
};

// From construction to destruction. Work that fails does not end. Nothing without an observer.
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

// What `act` gives, which is that work.
template <typename Act>
decltype(auto) during(WorkObserver* observer, Work work, Act&& act) {
  const WorkScope scope(observer, work);
  return act();
}

}  // namespace weft
