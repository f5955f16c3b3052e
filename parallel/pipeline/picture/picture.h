// A simulated step as boxes in time, before anyone decides how they are drawn: picture_svg.h, picture_html.h and
// picture_trace.h make a file of it, and nothing in them knows of programs. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/simulation/simulated_step.h"
#include "parallel/pipeline/text/text.h"

namespace weft {

// What is told apart by eye.
enum class BoxKind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  recompute,
  update,  // GRAD_NORM and STEP
  gather,
  reshard,  // takes no time: a mark, which may stand in the gather of another unit
  reduction,
  activations,  // a transfer, as its sender and its receiver see it
  gradients,
};
inline constexpr std::array all_box_kinds = {BoxKind::forward,         BoxKind::backward,  BoxKind::backward_input,
                                             BoxKind::backward_weight, BoxKind::recompute, BoxKind::update,
                                             BoxKind::gather,          BoxKind::reshard,   BoxKind::reduction,
                                             BoxKind::activations,     BoxKind::gradients};
std::string_view name_of(BoxKind kind);

// An action, or several that touch and were merged.
struct PictureBox {
  Lane lane = Lane::compute;
  BoxKind kind = BoxKind::forward;
  double start = 0.0, end = 0.0;
  std::optional<int> stage = {}, microbatch = {};
  int chunk = 0;             // of the stage among those of its rank
  std::string action = {};   // "0F3(blocks.1.attention)"; merged: "0F3"
  std::string subject = {};  // segment or unit; empty where the action has none, or of several
  std::int64_t bytes = 0;
  int actions = 1;              // that were merged
  double waited = 0.0;          // before `start`
  std::string waited_for = {};  // in words: "gather: 0UNSHARD(head)", "message: rank 1, 1SEND_B3"; empty: for nothing
  bool critical = false;        // on the critical path

  std::string label() const { return microbatch ? std::to_string(*microbatch) : std::string(); }
  bool operator==(const PictureBox&) const = default;
};

// Why a compute lane stands still.
enum class IdleReason : std::uint8_t { bubble, gather, reduction };
inline constexpr std::array all_idle_reasons = {IdleReason::bubble, IdleReason::gather, IdleReason::reduction};
std::string_view name_of(IdleReason reason);

struct PictureIdle {
  double start = 0.0, end = 0.0;
  IdleReason reason = IdleReason::bubble;
  std::string waited_for = {};  // as of the box behind it

  bool operator==(const PictureIdle&) const = default;
};

struct PictureRank {
  int rank = 0;                        // pipeline rank
  std::vector<PictureBox> boxes = {};  // by lane, then time; what takes time does not overlap in a lane
  // Of the compute lane; with its computations and updates it covers the step, and by reason it adds up to `times`.
  std::vector<PictureIdle> idle = {};
  std::vector<MemorySample> memory = {};  // empty where the program knows no bytes
  std::int64_t peak_bytes = 0;            // along the list, as a ledger counts
  RankTimes times = {};

  // Of the samples: more than `peak_bytes` where lanes run ahead of each other.
  std::int64_t highest_bytes() const;
};

// Two boxes of the critical path that follow each other, by place in `Picture::ranks` and in its boxes.
struct PictureHop {
  std::size_t from_rank = 0, from_box = 0, to_rank = 0, to_box = 0;
  bool operator==(const PictureHop&) const = default;
};

struct Picture {
  std::string title;
  bool unit_time = false;   // seconds are no seconds but units of the costs
  double seconds = 0.0;     // of the step
  std::vector<Lane> lanes;  // that some rank uses, in the order of drawing
  std::vector<PictureRank> ranks;
  std::vector<PictureHop> hops;  // of the critical path, where it changes rank or lane

  std::int64_t peak_bytes() const;          // of the fullest rank
  std::int64_t highest_bytes() const;       // likewise
  double bubble() const;                    // share of the step, mean over ranks
  double exposed_gathers() const;           // seconds, of the rank with most
  double exposed_reductions() const;        // likewise
  std::vector<int> chunks_of_kind() const;  // by BoxKind: most chunks any rank has; 0 where no box is of that kind
  std::size_t box_count() const;
};

struct PictureOptions {
  std::string title = {};
  bool unit_time = false;
  // everything: a box an action. stages_only: actions of one kind, stage and microbatch that touch on a lane are one
  // box, so that lanes are busy exactly when they were. compute_only: the same without the other lanes.
  Detail detail = Detail::everything;
  std::optional<int> rank = {};  // only this pipeline rank
};

// So many boxes a picture has at least, counted before anything is simulated.
std::size_t least_boxes(const Program& program, const ProgramCosts& costs, const PictureOptions& options = {});

// Actions that take no time are left out, but for RESHARD.
Picture picture_of(const Program& program, const SimulatedStep& step, const PictureOptions& options = {});

}  // namespace weft
