#include "trainer/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

constexpr double a = 3.4445, b = -4.7750, c = 2.0315;

std::int64_t size_of_move(const MatrixPlan& plan, const RowMove& move) {
  return move.rows * plan.matrices[move.matrix].columns;
}

// Elements by peer: of the moves from `rank` if `own` is RowMove::from, to `rank` if it is RowMove::to.
std::vector<std::int64_t> counts(const MatrixPlan& plan, std::span<const RowMove> moves, int RowMove::*own, int rank) {
  int RowMove::*const peer = own == &RowMove::from ? &RowMove::to : &RowMove::from;
  std::vector<std::int64_t> elements(static_cast<std::size_t>(plan.ranks), 0);
  for (const RowMove& move : moves) {
    if (move.*own == rank) elements[static_cast<std::size_t>(move.*peer)] += size_of_move(plan, move);
  }
  return elements;
}

}  // namespace

double newton_schulz_factor() {
  return std::pow(a, newton_schulz_steps);
}

std::int64_t newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  return newton_schulz_steps * (4 * small * small * large + 2 * small * small * small);
}

std::int64_t newton_schulz_bytes(std::int64_t rows, std::int64_t columns, DType dtype) {
  const std::int64_t small = std::min(rows, columns), matrices = dtype == DType::float32 ? 1 : 2;
  return size_of(DType::float64) + (matrices * rows * columns + 2 * small * small) * size_of(dtype);
}

NewtonSchulzSpace::NewtonSchulzSpace(MemoryLedger& ledger, std::int64_t rows, std::int64_t columns, DType dtype) {
  require(dtype == DType::float32 || dtype == DType::bfloat16, "the iteration is in float32 or bfloat16");
  const std::int64_t small = std::min(rows, columns);
  square_sum_ = ledger.allocate(Bucket::workspace, DType::float64, 1, 1);
  if (dtype != DType::float32) narrow_ = ledger.allocate(Bucket::workspace, dtype, rows, columns);
  next_ = ledger.allocate(Bucket::workspace, dtype, rows, columns);
  gram_ = ledger.allocate(Bucket::workspace, dtype, small, small);
  polynomial_ = ledger.allocate(Bucket::workspace, dtype, small, small);
}

ConstTensorView newton_schulz(Stream& stream, MatrixProducts& products, TensorView matrix, NewtonSchulzSpace& space) {
  require(matrix.dtype() == DType::float32, "a matrix comes in float32");
  require(matrix.rows() == space.next_.rows() && matrix.columns() == space.next_.columns(),
          "the space was taken for a matrix of this shape");
  fill(stream, space.square_sum_, 0.0f);
  square_sum(stream, matrix, space.square_sum_);
  divide_by_root(stream, space.square_sum_, matrix);
  TensorView z = matrix, next = space.next_;
  if (space.narrow_.allocated()) {
    z = space.narrow_;
    cast(stream, matrix, z);
  }

  const bool tall = matrix.rows() > matrix.columns();
  const TensorView gram = space.gram_, polynomial = space.polynomial_;
  double scale = 1.0;
  for (int step = 0; step < newton_schulz_steps; ++step) {
    // `polynomial` becomes B / a, from `gram` = Z Z^T = A / s^2.
    products.multiply(z, tall ? Transpose::yes : Transpose::no, z, tall ? Transpose::no : Transpose::yes, gram, false);
    products.multiply(gram, Transpose::no, gram, Transpose::no, polynomial, false);
    combine(stream, static_cast<float>(b / a * scale * scale), gram, static_cast<float>(c / a * std::pow(scale, 4)),
            polynomial);
    const ConstTensorView left = tall ? z : polynomial, right = tall ? polynomial : z;
    products.run({left, Transpose::no, right, Transpose::no, next, false, z});
    std::swap(z, next);
    scale *= a;
  }
  return z;
}

double muon_scale(MuonScale scale, const PlannedMatrix& matrix) {
  const double outputs = static_cast<double>(matrix.transposed ? matrix.columns : matrix.rows);
  const double inputs = static_cast<double>(matrix.transposed ? matrix.rows : matrix.columns);
  return scale == MuonScale::match_adamw ? 0.2 * std::sqrt(std::max(outputs, inputs))
                                         : std::sqrt(std::max(1.0, outputs / inputs));
}

std::vector<MuonCost> muon_costs(const MatrixPlan& plan, DType dtype) {
  struct Bytes {
    std::int64_t updates_sent = 0, updates_received = 0, directions_sent = 0, directions_received = 0;
  };
  std::vector<Bytes> bytes(static_cast<std::size_t>(plan.ranks));
  const auto of = [&](int rank) -> Bytes& { return bytes[static_cast<std::size_t>(rank)]; };
  for (const RowMove& move : plan.to_owners) {
    const std::int64_t size = size_of_move(plan, move) * size_of(dtype);
    of(move.from).updates_sent += size;
    of(move.to).updates_received += size;
  }
  for (const RowMove& move : plan.to_holders) {
    const std::int64_t size = size_of_move(plan, move) * size_of(dtype);
    of(move.from).directions_sent += size;
    of(move.to).directions_received += size;
  }
  std::vector<MuonCost> costs(bytes.size());
  const auto stage = [](MuonCost& cost, std::int64_t communication, std::int64_t workspace) {
    if (communication + workspace <= cost.at_peak.total()) return;
    cost.at_peak[Bucket::communication] = communication;
    cost.at_peak[Bucket::workspace] = workspace;
  };
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    const auto exchange = [](std::int64_t sent) {
      return ProgramCollective{Op::optimizer_step, CollectiveOp::all_to_all, Group::tokens, 1, sent};
    };
    if (plan.ranks > 1) {
      costs[rank].collectives = {exchange(bytes[rank].updates_sent), exchange(bytes[rank].directions_sent)};
    }
    stage(costs[rank], bytes[rank].updates_sent + bytes[rank].updates_received, 0);
  }
  for (const PlannedMatrix& matrix : plan.matrices) {
    const Bytes& owner = of(matrix.owner);
    stage(costs[static_cast<std::size_t>(matrix.owner)], owner.updates_received + owner.directions_sent,
          matrix.size() * size_of(DType::float32) + newton_schulz_bytes(matrix.rows, matrix.columns, dtype));
  }
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    stage(costs[rank], bytes[rank].directions_sent + bytes[rank].directions_received, 0);
  }
  return costs;
}

Muon::Muon(const MatrixPlan& plan, const OptimizerConfig& options, std::span<const MuonRows> rows, Communicator& stage,
           MatrixProducts& products, const MuonKernels& kernels, MemoryLedger& ledger)
    : options_(options), stage_(stage), products_(products), kernels_(kernels), ledger_(ledger) {
  require(plan.ranks == stage.size(), "the plan is for the ranks of the stage");
  const int rank = stage.rank();
  to_owners_ = {counts(plan, plan.to_owners, &RowMove::from, rank), counts(plan, plan.to_owners, &RowMove::to, rank)};
  to_holders_ = {counts(plan, plan.to_holders, &RowMove::from, rank),
                 counts(plan, plan.to_holders, &RowMove::to, rank)};
  take_rows(plan, rows);
  take_matrices(plan);
}

void Muon::take_rows(const MatrixPlan& plan, std::span<const MuonRows> rows) {
  const int rank = stage_.rank();
  std::map<std::pair<std::string, std::int64_t>, MuonRows> given;
  for (const MuonRows& own : rows) {
    const std::pair key(own.owned.parameter->name, own.owned.row_begin);
    if (!given.emplace(key, own).second) fail("rows from {} on of {} are given to Muon twice", key.second, key.first);
  }
  std::map<std::pair<std::size_t, std::int64_t>, std::size_t> index_of;  // by matrix and first row, into rows_
  std::int64_t received = 0, sent = 0;
  for (const RowMove& move : plan.to_holders) {
    if (move.to != rank) continue;
    const PlannedMatrix& matrix = plan.matrices[move.matrix];
    const auto fits = [&](ConstTensorView view, bool narrow = false) {
      const bool stored = view.dtype() == DType::float32 || (narrow && view.dtype() == DType::bfloat16);
      return stored && view.rows() == move.rows && view.columns() == matrix.columns;
    };
    const auto found = given.find({matrix.name, move.row_begin});
    if (found == given.end() || !fits(found->second.owned.values) || !fits(found->second.owned.gradients) ||
        !fits(found->second.momentum, true)) {
      fail("the plan expects rows {} to {} of {} on rank {}, as float32 of {} columns with gradient and momentum",
           move.row_begin, move.row_begin + move.rows, matrix.name, rank, matrix.columns);
    }
    index_of[{move.matrix, move.row_begin}] = rows_.size();
    rows_.push_back({found->second, std::nullopt, received, muon_scale(options_.muon_scale, matrix)});
    received += size_of_move(plan, move);
    given.erase(found);
  }
  if (!given.empty()) {
    const auto& [name, row_begin] = given.begin()->first;
    fail("the plan knows nothing of the rows from {} on of {} on rank {}", row_begin, name, rank);
  }
  for (const RowMove& move : plan.to_owners) {
    if (move.from != rank) continue;
    rows_[index_of.at({move.matrix, move.row_begin})].update_offset = sent;
    sent += size_of_move(plan, move);
  }
}

void Muon::take_matrices(const MatrixPlan& plan) {
  const int rank = stage_.rank();
  std::map<std::size_t, OwnMatrix> own;  // by matrix
  for (std::size_t m = 0; m < plan.matrices.size(); ++m) {
    if (plan.matrices[m].owner == rank) own[m] = {plan.matrices[m].rows, plan.matrices[m].columns, {}, {}};
  }
  std::int64_t received = 0, sent = 0;
  for (const RowMove& move : plan.to_owners) {
    if (move.to != rank) continue;
    own.at(move.matrix).received.push_back({received, move.row_begin, move.rows});
    received += size_of_move(plan, move);
  }
  for (const RowMove& move : plan.to_holders) {
    if (move.from != rank) continue;
    own.at(move.matrix).sent.push_back({sent, move.row_begin, move.rows});
    sent += size_of_move(plan, move);
  }
  for (auto& [index, matrix] : own) matrices_.push_back(std::move(matrix));
}

void Muon::step(const GroupStep& step, ConstTensorView gradient_scale) {
  require(gradient_scale.dtype() == DType::float32 && gradient_scale.size() == 1, "the gradient scale is one float32");
  Tensor updates = allocate_message(to_owners_.sent);
  update_momentum(step, gradient_scale, updates);
  Tensor received = exchange(std::move(updates), to_owners_);
  Tensor directions = allocate_message(to_holders_.sent);
  orthogonalise(received, directions);
  received.reset();
  const Tensor own = exchange(std::move(directions), to_holders_);
  change(step, gradient_scale, own);
}

Tensor Muon::allocate_message(const std::vector<std::int64_t>& counts) {
  const std::int64_t elements = std::reduce(counts.begin(), counts.end());
  return ledger_.allocate_on(stage_.stream(), Bucket::communication, options_.newton_schulz, elements, 1);
}

Tensor Muon::exchange(Tensor sent, const Message& message) {
  Tensor received = allocate_message(message.received);
  stage_.all_to_all(sent, message.sent, received, message.received);
  return received;
}

void Muon::update_momentum(const GroupStep& step, ConstTensorView gradient_scale, TensorView updates) {
  const PhaseClock::Scope scope(stage_.clock(), Phase::optimizer, stage_.stream());
  for (const OwnRows& own : rows_) {
    // The kernel writes the update directly into the message.
    const TensorView update =
        updates.rows_from(own.update_offset.value_or(0), own.update_offset ? own.rows.momentum.size() : 0);
    kernels_.momentum(stage_.stream(), {own.rows.owned.gradients, gradient_scale, static_cast<float>(step.momentum),
                                        own.rows.momentum, update});
  }
}

// Orthogonalises one matrix after another, with the workspace of one matrix at a time.
void Muon::orthogonalise(ConstTensorView updates, TensorView directions) {
  Stream& stream = stage_.stream();
  const PhaseClock::Scope scope(stage_.clock(), Phase::optimizer, stream);
  for (const OwnMatrix& own : matrices_) {
    Tensor matrix = ledger_.allocate_on(stream, Bucket::workspace, DType::float32, own.rows, own.columns);
    for (const RowBlock& piece : own.received) {
      cast(stream, updates.rows_from(piece.offset, piece.rows * own.columns),
           matrix.view().rows_from(piece.row_begin, piece.rows));
    }
    NewtonSchulzSpace space(ledger_, own.rows, own.columns, options_.newton_schulz);
    const ConstTensorView direction = newton_schulz(stream, products_, matrix, space);
    for (const RowBlock& piece : own.sent) {
      cast(stream, direction.rows_from(piece.row_begin, piece.rows),
           directions.rows_from(piece.offset, piece.rows * own.columns));
    }
  }
}

void Muon::change(const GroupStep& step, ConstTensorView gradient_scale, ConstTensorView directions) {
  const PhaseClock::Scope scope(stage_.clock(), Phase::optimizer, stage_.stream());
  const auto decay = static_cast<float>(step.learning_rate * step.weight_decay);
  for (const OwnRows& own : rows_) {
    const TensorView& values = own.rows.owned.values;
    const double step_size = step.learning_rate * own.scale * newton_schulz_factor();
    kernels_.change(stage_.stream(), {directions.rows_from(own.direction_offset, values.size()), gradient_scale,
                                      static_cast<float>(step_size), decay, values});
  }
}

}  // namespace weft
