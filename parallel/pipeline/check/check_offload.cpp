#include "parallel/pipeline/check/check_parts.h"

namespace weft {
namespace {

// The place of the bytes that a segment keeps of a microbatch.
enum class Place : std::uint8_t { nowhere, device, leaving, host };

class OffloadWalk : RowWalk {
 public:
  OffloadWalk(const CheckContext& context, int row, std::vector<Finding>& findings)
      : RowWalk(context, row, findings), places_(context.pieces.size() * microbatches(), Place::nowhere) {}

  void run() {
    const auto& actions = context_.list(row_);
    for (index_ = 0; index_ < actions.size(); ++index_) {
      const Action& action = actions[index_];
      if (!context_.legible(row_, action)) continue;
      if (takes_kept(action.op)) move(action);
      if (is_compute(action.op)) compute(action);
    }
    for (const Place place : places_) {
      if (place == Place::leaving) return found(Violation::idle_offload, "the list ends without a WAIT_OFFLOAD");
    }
  }

 private:
  std::size_t microbatches() const { return static_cast<std::size_t>(program_.microbatches); }
  Place& place_of(std::size_t piece, const Action& action) {
    return places_[piece * microbatches() + static_cast<std::size_t>(*action.microbatch)];
  }

  void move(const Action& action) {
    Place& place = place_of(context_.pieces.of(action).begin, action);
    const ProgramSegment& segment = program_.segments[*action.segment];
    const Place from = action.op == Op::offload        ? Place::device
                       : action.op == Op::wait_offload ? Place::leaving
                                                       : Place::host;
    if (place != from || segment.offload_bytes == 0) {
      constexpr const char* where[] = {"nothing is kept", "they are in device memory",
                                       "they are on their way to the host", "they are in host memory"};
      return found(Violation::idle_offload, "{} of bytes of microbatch {} in {}: {}", name_of(action.op),
                   *action.microbatch, segment.name,
                   segment.offload_bytes == 0 ? "the segment keeps all in device memory"
                                              : where[static_cast<std::size_t>(place)]);
    }
    place = from == Place::device ? Place::leaving : from == Place::leaving ? Place::host : Place::device;
  }

  void compute(const Action& action) {
    const auto [begin, end] = context_.pieces.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) {
      const auto segment = context_.pieces[piece].segment;
      if (!segment) continue;
      Place& place = place_of(piece, action);
      if (action.op == Op::forward && action.part.last()) place = Place::device;
      const bool region = program_.segments[*segment].region.has_value();
      const bool reads = region ? action.op == Op::recompute : makes_input_gradient(action.op);
      if (!reads || !action.part.first()) continue;
      if (place == Place::leaving || place == Place::host) {
        found(Violation::read_while_away, "{} of microbatch {} reads bytes of {} that are not in device memory",
              name_of(action.op), *action.microbatch, program_.segments[*segment].name);
      }
      place = Place::nowhere;
    }
  }

  std::vector<Place> places_;  // by piece, then microbatch
};

}  // namespace

void check_offload(const CheckContext& context, int row, std::vector<Finding>& findings) {
  OffloadWalk(context, row, findings).run();
}

}  // namespace weft
