#include "machine.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iterator>
#include <string_view>

#include "parallel/runtime/error.h"
#include "state.h"

namespace weft::cuda_emulator {

MachineConfig MachineConfig::from_environment() {
  MachineConfig config;
  if (const char* devices = std::getenv("WEFT_EMULATOR_DEVICES")) config.devices = std::atoi(devices);
  if (const char* memory = std::getenv("WEFT_EMULATOR_MEMORY"))
    config.total_memory = std::strtoull(memory, nullptr, 10);
  if (const char* seed = std::getenv("WEFT_EMULATOR_SEED")) config.seed = std::strtoull(seed, nullptr, 10);
  if (const char* order = std::getenv("WEFT_EMULATOR_ORDER")) {
    const std::string_view name = order;
    if (name == "latest_first") config.order = Order::latest_first;
    if (name == "earliest_first") config.order = Order::earliest_first;
  }
  return config;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

cudaError_t& last_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

State::State(const MachineConfig& machine_config)
    : config(machine_config),
      // More addresses than memory, so that blocks waiting for their free to run do not stand in the way of new ones.
      arena(static_cast<std::size_t>(config.devices) * 2 * config.total_memory + (std::size_t{256} << 20)),
      random(config.seed) {
  for (int device = 0; device < config.devices; ++device) {
    auto stream = std::make_shared<Stream>();
    stream->device = device;
    legacy.push_back(stream);
    active.push_back(stream);
    auto pool = std::make_unique<Pool>();
    pool->device = device;
    const auto handle = reinterpret_cast<cudaMemPool_t>(pool.get());
    default_pools.push_back(handle);
    pools[handle] = std::move(pool);
    allocated.push_back(0);
  }
}

State::~State() = default;

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

Machine::Machine() : state_(std::make_unique<State>(MachineConfig::from_environment())) {}
Machine::~Machine() = default;

void Machine::configure(const MachineConfig& config) {
  state_.reset();
  state_ = std::make_unique<State>(config);
  last_error() = cudaSuccess;
  if (current_device() >= config.devices) current_device() = 0;
}

const MachineConfig& Machine::config() const {
  return state_->config;
}

void Machine::set_order(Order order, std::uint64_t seed) {
  const State::Lock lock(state_->mutex);
  state_->config.order = order;
  state_->config.seed = seed;
  state_->random.seed(seed);
}

MachineCounters Machine::counters() const {
  const State::Lock lock(state_->mutex);
  return state_->counters;
}

std::vector<int> Machine::contexts() const {
  const State::Lock lock(state_->mutex);
  return {state_->contexts.begin(), state_->contexts.end()};
}

void Machine::count_product_search() {
  const State::Lock lock(state_->mutex);
  ++state_->counters.product_searches;
}

void Machine::fail_next(const std::string& function, cudaError_t error, int passing) {
  const State::Lock lock(state_->mutex);
  state_->injections[function] = {error, passing};
}

std::vector<std::string> Machine::reports() const {
  const State::Lock lock(state_->mutex);
  return {state_->reports.begin(), state_->reports.end()};
}

std::int64_t Machine::run_all() {
  const State::Lock lock(state_->mutex);
  while (state_->step()) {
  }
  state_->end_drain();
  std::int64_t left = 0;
  for (const auto& stream : state_->active) left += static_cast<std::int64_t>(stream->operations.size());
  return left;
}

bool Machine::check_red_zones() {
  const State::Lock lock(state_->mutex);
  bool intact = true;
  state_->arena.open();
  // A block whose allocation has yet to run has no red zone, so this is asked of an idle machine.
  for (const auto& [address, block] : state_->blocks) intact &= state_->arena.intact(address, block.bytes);
  state_->end_drain();
  return intact;
}

cudaError_t Machine::enqueue(cudaStream_t stream, Operation operation) {
  const State::Lock lock(state_->mutex);
  if (state_->failure != cudaSuccess) return state_->failure;
  const auto found = state_->find_stream(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  state_->add(*found, {std::move(operation), 0, false, nullptr});
  return cudaSuccess;
}

cudaError_t Machine::enqueue_rendezvous(const std::string& key, int participants, int member, cudaStream_t stream,
                                        std::function<void()> run) {
  const State::Lock lock(state_->mutex);
  if (state_->failure != cudaSuccess) return state_->failure;
  const auto found = state_->find_stream(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  auto& waiting = state_->meetings[key];
  auto meeting = waiting.begin();
  while (meeting != waiting.end() && (*meeting)->members.contains(member)) ++meeting;
  if (meeting == waiting.end()) {
    waiting.push_back(std::make_shared<Meeting>());
    waiting.back()->participants = participants;
    meeting = std::prev(waiting.end());
  }
  const auto joined = *meeting;
  if (joined->participants != participants) {
    return fmt::print(stderr, "cuda emulator: members of '{}' disagree on their number\n", key), cudaErrorInvalidValue;
  }
  joined->members[member] = found.get();
  joined->run = std::move(run);
  // Complete meetings need not be found any more; their operations keep them.
  if (static_cast<int>(joined->members.size()) == participants) waiting.erase(meeting);
  if (waiting.empty()) state_->meetings.erase(key);
  state_->add(*found, {{"rendezvous", {}, {}}, 0, false, joined});
  return cudaSuccess;
}

void Machine::notify() {
  const State::Lock lock(state_->mutex);
  state_->changed.notify_all();
}

bool Machine::is_device_memory(const void* address) const {
  return state_->arena.contains(address);
}

bool Machine::is_pinned_memory(const void* address) const {
  const State::Lock lock(state_->mutex);
  return state_->is_pinned(address);
}

bool Machine::is_allocated(const void* address, std::size_t bytes) const {
  const State::Lock lock(state_->mutex);
  return state_->find_block(address, bytes) != nullptr;
}

}  // namespace weft::cuda_emulator
