// Newton-Schulz in plain double loops, singular values by Jacobi rotations, and how far rounding takes a result from
// the exact one. Shares no code with what it checks.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::muon_reference {

struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;

  double& at(std::int64_t row, std::int64_t column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

Matrix transposed(const Matrix& matrix);
Matrix product(const Matrix& a, const Matrix& b);
double norm(const Matrix& matrix);  // Frobenius
double distance(const Matrix& a, const Matrix& b);

// x / |x|, then five times a x + (b A + c A^2) x with A = x x^T, whatever the shape.
Matrix newton_schulz(const Matrix& matrix);
// Descending; as many as the smaller side.
std::vector<double> singular_values(const Matrix& matrix);

// The expected error of the result, in the Frobenius norm and to first order. Every stored number is rounded to one
// side or the other by up to `roundoff` of itself, and sums are kept in float32. The error is the root of a sum of many
// independent squares, so what is found is never a few times as large.
double newton_schulz_error(const Matrix& matrix, double roundoff);

}  // namespace weft::muon_reference
