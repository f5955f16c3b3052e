// Muon over the rows of one rank (Jordan et al. 2024). The scale that allows AdamW's learning rate is from Liu et al.
// 2025, "Muon is scalable for LLM training". For a matrix p with gradient G:
//
//   g = gradient_scale G,  M = momentum M + g,  U = g + momentum M
//   O = newton_schulz(U)                                        for the whole matrix
//   p = p - learning_rate (scale O + weight_decay p)
//
// M is kept in float32 or bfloat16. In bfloat16 it is rounded to the nearest after each step, ties to even, so that all
// holders of a row round alike. U is made of M before this rounding.
//
// A rank updates the momentum of its own rows and sends U to the owner of each matrix (muon_plan.h). The owner
// assembles the matrix, orthogonalises it and sends every holder its rows of O. A matrix is never orthogonalised in
// parts: that would be another optimizer. Everything except O is computed element by element. One rank computes O, from
// the same matrix in every layout. So the result does not depend on the layout; it is bit-identical if the device's
// products depend on shapes alone.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "layers/kernels/matrix_products.h"
#include "parallel/comm/communicator.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "parallel/shard/unit.h"
#include "trainer/config/config.h"
#include "trainer/optimizer/muon_plan.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

// The approximate orthogonal factor of a matrix, by products alone (Jordan et al. 2024, "Muon: an optimizer for hidden
// layers"). X = U S V^T is divided by its Frobenius norm; then each of five steps
//
//   A = X X^T,  B = b A + c A^2,  X = a X + B X,      a, b, c = 3.4445, -4.7750, 2.0315
//
// maps every singular value x to a x + b x^3 + c x^5. The odd polynomial keeps U and V and moves singular values that
// are not tiny into about [0.68, 1.13]. They do not converge to 1; in exchange five steps are enough. A tall matrix
// uses X^T X instead of X X^T, so that A has the size of the smaller side.
//
// The code keeps Z = X / s instead of X, with s = a^k after k steps. Then Z = Z + (B / a) Z is one product with an
// addend, which a library adds before it rounds. The five passes that multiply X by a are not needed. The caller
// applies the remaining factor a^5.
inline constexpr int newton_schulz_steps = 5;

// a^5: the orthogonal factor is this number times the result of newton_schulz().
double newton_schulz_factor();

// FLOP for one rows x columns matrix: steps x (4 a^2 b + 2 a^3), where a is the smaller side and b the larger.
std::int64_t newton_schulz_flops(std::int64_t rows, std::int64_t columns);
// Bytes of workspace while newton_schulz() runs, without `matrix` itself.
std::int64_t newton_schulz_bytes(std::int64_t rows, std::int64_t columns, DType dtype);

// Workspace of newton_schulz(), allocated from the ledger under Bucket::workspace and released by the destructor.
class NewtonSchulzSpace {
 public:
  NewtonSchulzSpace(MemoryLedger& ledger, std::int64_t rows, std::int64_t columns, DType dtype);

 private:
  friend ConstTensorView newton_schulz(Stream& stream, MatrixProducts& products, TensorView matrix,
                                       NewtonSchulzSpace& space);
  Tensor square_sum_;         // [1, 1] float64
  Tensor narrow_;             // rows x columns, if the dtype of the iteration is not float32
  Tensor next_;               // rows x columns
  Tensor gram_, polynomial_;  // square, with the smaller side of the matrix
};

// The orthogonal factor of `matrix` [rows, columns] float32 divided by newton_schulz_factor(), in the dtype of the
// space. Overwrites the matrix; the result is a view of the matrix or of the space. A matrix of zeros gives zeros; NaN
// and infinities spread to all elements. Queued on `stream`, as are the products; the norm is not copied to the host.
ConstTensorView newton_schulz(Stream& stream, MatrixProducts& products, TensorView matrix, NewtonSchulzSpace& space);

double muon_scale(MuonScale scale, const PlannedMatrix& matrix);

// Communication and memory of a step on one rank of the stage, known from the plan alone. A stage of one rank has
// collectives with a count of 0.
struct MuonCost {
  std::array<ProgramCollective, 2> collectives;  // to the owners, and back; bytes that this rank sends, to itself too
  BucketBytes at_peak;                           // allocated by a step, at the largest sum
};
// By rank of the stage.
std::vector<MuonCost> muon_costs(const MatrixPlan& plan, DType dtype);

// Rows of a matrix that this rank owns, and their momentum: float32 or bfloat16, same shape as the rows, zero before
// the first step. The views outlive Muon.
struct MuonRows {
  OwnedRows owned;
  TensorView momentum;
};

class Muon {
 public:
  // `stage` joins all ranks of the stage in the order of the plan. Work is queued on its stream; `products` were made
  // for this stream. Throws Error (failure) naming the rows if `rows` are not exactly the rows that the plan expects of
  // this rank. Of `options` the scale counts, and newton_schulz as the dtype of the iteration and of the messages.
  // Communicator, products and ledger outlive Muon.
  Muon(const MatrixPlan& plan, const OptimizerConfig& options, std::span<const MuonRows> rows, Communicator& stage,
       MatrixProducts& products, const MuonKernels& kernels, MemoryLedger& ledger);

  // Collective over the stage. Gradients are first multiplied by gradient_scale [1, 1] float32, the same on all ranks.
  // Parameters and momentum stay unchanged if gradient_scale is not finite. Of `step`, rate, decay and momentum count.
  void step(const GroupStep& step, ConstTensorView gradient_scale);

 private:
  // `rows` rows of a matrix, from row `row_begin` on, at element `offset` of a message.
  struct RowBlock {
    std::int64_t offset = 0, row_begin = 0, rows = 0;
  };
  // Elements sent to, and received from, each rank in one of the two exchanges.
  struct Message {
    std::vector<std::int64_t> sent, received;
  };
  struct OwnMatrix {
    std::int64_t rows = 0, columns = 0;
    std::vector<RowBlock> received, sent;
  };
  struct OwnRows {
    MuonRows rows;
    std::optional<std::int64_t> update_offset;  // in the message to the owners, if this rank is the first holder
    std::int64_t direction_offset = 0;          // in the message back
    double scale = 0.0;
  };
  void take_rows(const MatrixPlan& plan, std::span<const MuonRows> rows);
  void take_matrices(const MatrixPlan& plan);
  Tensor allocate_message(const std::vector<std::int64_t>& counts);
  // One of the two collectives. Releases `sent` and returns the received message.
  Tensor exchange(Tensor sent, const Message& message);
  void update_momentum(const GroupStep& step, ConstTensorView gradient_scale, TensorView updates);
  void orthogonalise(ConstTensorView updates, TensorView directions);
  void change(const GroupStep& step, ConstTensorView gradient_scale, ConstTensorView directions);

  OptimizerConfig options_;
  Communicator& stage_;
  MatrixProducts& products_;
  MuonKernels kernels_;
  MemoryLedger& ledger_;
  std::vector<OwnRows> rows_;
  std::vector<OwnMatrix> matrices_;  // owned by this rank, in the order of the plan
  Message to_owners_, to_holders_;
};

}  // namespace weft
