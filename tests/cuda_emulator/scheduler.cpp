// Order of work: which operation runs next, and how a host thread waits.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "state.h"

namespace weft::cuda_emulator {
namespace {

// Whether all members of a meeting have it at the head of their streams.
bool assembled(const Meeting& meeting) {
  return static_cast<int>(meeting.members.size()) == meeting.participants &&
         std::all_of(meeting.members.begin(), meeting.members.end(), [&](const auto& member) {
           const auto& operations = member.second->operations;
           return !operations.empty() && operations.front().meeting.get() == &meeting;
         });
}

bool executable(const Stream& stream) {
  if (stream.operations.empty()) return false;
  const QueuedOperation& head = stream.operations.front();
  if (head.meeting) return assembled(*head.meeting);
  return !head.operation.ready || head.operation.ready();
}

void complete_head(Stream& stream) {
  stream.operations.pop_front();
  ++stream.completed;
}

}  // namespace

std::shared_ptr<Stream> State::find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return legacy[static_cast<std::size_t>(current_device())];
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

void State::add(Stream& stream, QueuedOperation operation) {
  if (stream.capture) {
    if (operation.meeting || operation.operation.ready) {
      report(cudaErrorStreamCaptureUnsupported, std::string("captured: ") + operation.operation.name);
    }
    stream.capture->operations.push_back(std::move(operation));
    return;
  }
  // The legacy stream waits for all blocking streams of its device, and they for it.
  std::vector<std::function<bool()>> before;
  const auto& legacy_stream = legacy[static_cast<std::size_t>(stream.device)];
  if (&stream == legacy_stream.get()) {
    for (const auto& other : active) {
      if (other->blocking && other->device == stream.device) before.push_back(drained(other));
    }
  } else if (stream.blocking) {
    before.push_back(drained(legacy_stream));
  }
  if (!before.empty()) {
    const auto all_before = [before = std::move(before)] {
      return std::all_of(before.begin(), before.end(), [](const auto& done) { return done(); });
    };
    if (operation.meeting) {
      QueuedOperation gate{{"legacy stream", all_before, [] {}}, next_serial++, false, nullptr};
      stream.operations.push_back(std::move(gate));
      ++stream.queued;
    } else {
      operation.operation.ready = [all_before, ready = std::move(operation.operation.ready)] {
        return all_before() && (!ready || ready());
      };
    }
  }
  operation.serial = next_serial++;
  stream.operations.push_back(std::move(operation));
  ++stream.queued;
  changed.notify_all();
}

bool State::step() {
  std::vector<Stream*> candidates;
  std::erase_if(active, [](const auto& stream) { return stream->destroyed && stream->operations.empty(); });
  for (const auto& stream : active) {
    if (executable(*stream)) candidates.push_back(stream.get());
  }
  if (candidates.empty()) return false;
  const auto earlier = [](const Stream* left, const Stream* right) {
    return left->operations.front().serial < right->operations.front().serial;
  };
  Stream* chosen = nullptr;
  switch (config.order) {
    case Order::random:
      chosen = candidates[random() % candidates.size()];
      break;
    case Order::latest_first:
      chosen = *std::max_element(candidates.begin(), candidates.end(), earlier);
      break;
    case Order::earliest_first:
      chosen = *std::min_element(candidates.begin(), candidates.end(), earlier);
      break;
  }
  QueuedOperation& head = chosen->operations.front();
  head.host ? arena.close() : arena.open();
  runner = std::this_thread::get_id();
  const auto meeting = head.meeting;
  try {
    meeting ? meeting->run() : head.operation.run();
  } catch (const std::exception& error) {
    report(cudaErrorLaunchFailure, error.what());
  }
  runner = std::thread::id();
  if (meeting) {
    for (const auto& [member, stream] : meeting->members) complete_head(*stream);
  } else {
    complete_head(*chosen);
  }
  return true;
}

void State::wait(Lock& lock, const std::function<bool()>& done) {
  ++counters.synchronizations;
  while (!done()) {
    if (step()) continue;
    end_drain();
    // Another thread has to queue what this one waits for.
    changed.wait(lock);
  }
  end_drain();
}

void State::end_drain() {
  arena.close();
  changed.notify_all();
}

std::function<bool()> State::drained(const std::shared_ptr<Stream>& stream) {
  return [stream, until = stream->queued] { return stream->completed >= until; };
}

std::function<bool()> State::drained_device(int device) {
  std::vector<std::function<bool()>> all;
  for (const auto& stream : active) {
    if (stream->device == device) all.push_back(drained(stream));
  }
  return
      [all = std::move(all)] { return std::all_of(all.begin(), all.end(), [](const auto& done) { return done(); }); };
}

void State::report(cudaError_t error, const std::string& message) {
  std::fprintf(stderr, "cuda emulator: %s\n", message.c_str());
  reports.push_back(message);
  if (failure == cudaSuccess) failure = error;
}

}  // namespace weft::cuda_emulator
