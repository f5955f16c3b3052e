// A simulated step as boxes in time, independent of the drawing: picture_formats.h makes files of it,
// and knows nothing of programs. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

// The kinds that a picture distinguishes.
enum class BoxKind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  recompute,
  update,  // GRAD_NORM and STEP
  gather,
  reshard,  // takes no time: a mark, which may be inside the gather of another unit
  reduction,
  activations,  // a transfer, at its sender and at its receiver
  gradients,
  rows,  // of experts, beside computations
  host,  // kept bytes, to or from host memory
};
constexpr auto enum_names(BoxKind) {
  return name_list("forward", "backward", "input gradient", "weight gradient", "recompute", "update", "gather",
                   "reshard", "reduction", "activations", "gradients", "rows of experts", "host copy");
}

// An action, or several touching ones that were merged.
struct PictureBox {
  Lane lane = Lane::compute;
  BoxKind kind = BoxKind::forward;
  double start = 0.0, end = 0.0;
  std::optional<int> stage = {}, microbatch = {};
  int chunk = 0;             // number of the stage among those of its rank
  std::string action = {};   // "0F3(blocks.1.attention)"; merged: "0F3"
  std::string subject = {};  // segment or unit; empty if the action has none or several
  std::int64_t bytes = 0;
  int actions = 1;              // number of merged actions
  double waited = 0.0;          // seconds before `start`
  std::string waited_for = {};  // in words: "gather: 0UNSHARD(head)", "message: rank 1, 1SEND_B3"; empty: nothing
  bool critical = false;        // on the critical path

  std::string label() const { return microbatch ? std::to_string(*microbatch) : std::string(); }
  // Whether it goes on with the computation of a box before it.
  bool continues(const PictureBox& before) const {
    return kind == before.kind && stage == before.stage && microbatch == before.microbatch;
  }
  bool operator==(const PictureBox&) const = default;
};

// Why a compute lane is idle.
enum class IdleReason : std::uint8_t { bubble, gather, reduction, rows, host };
constexpr auto enum_names(IdleReason) {
  return name_list("bubble", "waits for a gather", "waits for a reduction", "waits for rows of experts",
                   "waits for a host copy");
}

struct PictureIdle {
  double start = 0.0, end = 0.0;
  IdleReason reason = IdleReason::bubble;
  std::string waited_for = {};  // as in the next box

  bool operator==(const PictureIdle&) const = default;
};

struct PictureRank {
  int rank = 0;                        // pipeline rank
  std::string name = {};               // what tells it from another row of the same rank: "planned", "measured"
  std::vector<PictureBox> boxes = {};  // by lane, then time; boxes of a lane do not overlap, except marks
  // Of the compute lane. Idle times, computations and updates cover the step; the sums by reason are those of `times`.
  std::vector<PictureIdle> idle = {};
  std::vector<MemorySample> memory = {};  // empty if the program knows no bytes
  std::int64_t peak_bytes = 0;            // along the list, as a ledger counts
  RankTimes times = {};

  // Maximum of the samples; it exceeds `peak_bytes` if lanes run ahead of each other.
  std::int64_t highest_bytes() const;
};

// Two consecutive boxes of the critical path, by index into `Picture::ranks` and into its boxes.
struct PictureHop {
  std::size_t from_rank = 0, from_box = 0, to_rank = 0, to_box = 0;
  bool operator==(const PictureHop&) const = default;
};

struct Picture {
  std::string title;
  bool unit_time = false;   // seconds are units of the costs instead
  double seconds = 0.0;     // of the step
  std::vector<Lane> lanes;  // lanes in use, in the order of drawing
  std::vector<PictureRank> ranks;
  bool paired = false;           // two rows follow each other for each rank, and share its lanes
  std::vector<PictureHop> hops;  // of the critical path, at each change of rank or lane

  std::int64_t peak_bytes() const;     // of the fullest rank
  std::int64_t highest_bytes() const;  // of the fullest rank
  double bubble() const;               // share of the step, mean over ranks
  StepWaits waits() const;
  std::vector<int> chunks_of_kind() const;  // by BoxKind: most chunks of a rank; 0 without such boxes
  std::size_t box_count() const;
};

struct PictureOptions {
  std::string title = {};
  bool unit_time = false;
  // everything: one box per action. stages_only: touching actions of one kind, stage and microbatch on a lane are one
  // box, so that the busy times of lanes are unchanged. compute_only: the same without the other lanes.
  Detail detail = Detail::everything;
  std::optional<int> rank = {};  // only this pipeline rank
};

// A lower bound of a picture's boxes, counted before a simulation.
std::size_t least_boxes(const Program& program, const ProgramCosts& costs, const PictureOptions& options = {});

// Actions that take no time are left out, except RESHARD.
Picture picture_of(const Program& program, const SimulatedStep& step, const PictureOptions& options = {});

}  // namespace weft
