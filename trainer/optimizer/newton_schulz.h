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
#pragma once

#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"

namespace weft {

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

}  // namespace weft
