// The orthogonal factor of a matrix, approximately, by products alone (Jordan et al. 2024, "Muon: an optimizer for
// hidden layers"): for X = U S V^T divided by its Frobenius norm, five times
//
//   A = X X^T,  B = b A + c A^2,  X = a X + B X,      a, b, c = 3.4445, -4.7750, 2.0315
//
// maps every singular value x to a x + b x^3 + c x^5. The odd polynomial keeps U and V and drives what is not tiny into
// about [0.68, 1.13]; it does not converge to 1, which is what makes five steps enough. Of a tall matrix X^T X is taken
// instead: the smaller side is the one that is squared.
//
// Carried is Z = X / s instead of X, with s = a^k after k steps: then Z = Z + (B / a) Z is one product onto an addend,
// which a library adds before it rounds, and the five passes that multiply X by a fall away. The factor a^5 that is
// left over belongs to whoever uses the result.
#pragma once

#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"

namespace weft {

inline constexpr int newton_schulz_steps = 5;

// The orthogonal factor is this times what newton_schulz returns.
double newton_schulz_factor();

// Of one rows x columns matrix: steps x (4 a^2 b + 2 a^3), a being the smaller side and b the other.
std::int64_t newton_schulz_flops(std::int64_t rows, std::int64_t columns);
// Workspace that is live while newton_schulz runs; `matrix` itself is not counted.
std::int64_t newton_schulz_bytes(std::int64_t rows, std::int64_t columns, DType dtype);

// What newton_schulz takes from the ledger, under Bucket::workspace. Returned to it when this goes.
class NewtonSchulzSpace {
 public:
  NewtonSchulzSpace(MemoryLedger& ledger, std::int64_t rows, std::int64_t columns, DType dtype);

 private:
  friend ConstTensorView newton_schulz(Stream& stream, MatrixProducts& products, TensorView matrix,
                                       NewtonSchulzSpace& space);
  Tensor square_sum_;         // [1, 1] float64
  Tensor narrow_;             // rows x columns, where the iteration is not in the matrix' own dtype
  Tensor next_;               // rows x columns
  Tensor gram_, polynomial_;  // the smaller side squared
};

// The factor of `matrix` [rows, columns] float32, up to newton_schulz_factor(), in the dtype of the space. Overwrites
// the matrix; the result lies in it or in the space. A matrix of zeros gives zeros; NaN and infinities spread over all
// of it. Queued on `stream`, as are the products; the norm does not come to the host.
ConstTensorView newton_schulz(Stream& stream, MatrixProducts& products, TensorView matrix, NewtonSchulzSpace& space);

}  // namespace weft
