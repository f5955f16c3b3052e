#include "tests/trainer/muon_reference.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace weft::muon_reference {
namespace {

constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
constexpr int steps = 5;

double polynomial(double x) {
  return a * x + b * x * x * x + c * x * x * x * x * x;
}
double slope(double x) {
  return a + 3 * b * x * x + 5 * c * x * x * x * x;
}

// The factor by which one step stretches a small error of a rows x columns matrix with these singular values, root mean
// square over its directions. The step is the polynomial of the symmetric matrix [0 X; X^T 0] with the eigenvalues +-x
// and, where X is not square, 0. The step's derivative multiplies the error, in the eigenvectors' basis, by the divided
// differences of the polynomial. Between 0 and 0 there is no error, which lies off the diagonal blocks.
double stretch(const std::vector<double>& singular, std::int64_t small, std::int64_t large) {
  const auto difference = [](double x, double y) {
    return std::abs(x - y) < 1e-6 ? slope(x) : (polynomial(x) - polynomial(y)) / (x - y);
  };
  double sum = 0.0;
  for (double x : singular) {
    for (double y : singular) sum += (std::pow(difference(x, y), 2) + std::pow(difference(x, -y), 2)) / 2;
    sum += static_cast<double>(large - small) * std::pow(polynomial(x) / x, 2);
  }
  return std::sqrt(sum / static_cast<double>(small * large));
}

}  // namespace

Matrix transposed(const Matrix& matrix) {
  Matrix turned{matrix.columns, matrix.rows, std::vector<double>(matrix.values.size())};
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t j = 0; j < matrix.columns; ++j) turned.at(j, i) = matrix.at(i, j);
  }
  return turned;
}

Matrix product(const Matrix& left, const Matrix& right) {
  Matrix result{left.rows, right.columns, std::vector<double>(static_cast<std::size_t>(left.rows * right.columns))};
  for (std::int64_t i = 0; i < left.rows; ++i) {
    for (std::int64_t k = 0; k < left.columns; ++k) {
      for (std::int64_t j = 0; j < right.columns; ++j) result.at(i, j) += left.at(i, k) * right.at(k, j);
    }
  }
  return result;
}

double norm(const Matrix& matrix) {
  double sum = 0.0;
  for (double value : matrix.values) sum += value * value;
  return std::sqrt(sum);
}

double distance(const Matrix& left, const Matrix& right) {
  Matrix difference = left;
  for (std::size_t i = 0; i < left.values.size(); ++i) difference.values[i] -= right.values[i];
  return norm(difference);
}

Matrix newton_schulz(const Matrix& matrix) {
  Matrix x = matrix;
  const double size = norm(matrix);
  for (double& value : x.values) value /= size;
  for (int step = 0; step < steps; ++step) {
    const Matrix gram = product(x, transposed(x));
    Matrix mixed = product(gram, gram);
    for (std::size_t i = 0; i < mixed.values.size(); ++i) {
      mixed.values[i] = b * gram.values[i] + c * mixed.values[i];
    }
    const Matrix change = product(mixed, x);
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = a * x.values[i] + change.values[i];
  }
  return x;
}

// One-sided: columns are turned against each other in pairs until all are orthogonal; their lengths are the values.
std::vector<double> singular_values(const Matrix& matrix) {
  Matrix x = matrix.rows >= matrix.columns ? matrix : transposed(matrix);
  for (int sweep = 0; sweep < 60; ++sweep) {
    double largest = 0.0;
    for (std::int64_t p = 0; p < x.columns; ++p) {
      for (std::int64_t q = p + 1; q < x.columns; ++q) {
        double pp = 0.0, qq = 0.0, pq = 0.0;
        for (std::int64_t i = 0; i < x.rows; ++i) {
          pp += x.at(i, p) * x.at(i, p);
          qq += x.at(i, q) * x.at(i, q);
          pq += x.at(i, p) * x.at(i, q);
        }
        if (pq == 0.0) continue;
        largest = std::max(largest, std::abs(pq) / std::sqrt(pp * qq));
        const double zeta = (qq - pp) / (2.0 * pq);
        const double tangent = (zeta >= 0 ? 1.0 : -1.0) / (std::abs(zeta) + std::sqrt(1.0 + zeta * zeta));
        const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent), sine = cosine * tangent;
        for (std::int64_t i = 0; i < x.rows; ++i) {
          const double at_p = x.at(i, p), at_q = x.at(i, q);
          x.at(i, p) = cosine * at_p - sine * at_q;
          x.at(i, q) = sine * at_p + cosine * at_q;
        }
      }
    }
    if (largest < 1e-15) break;
  }
  std::vector<double> values;
  for (std::int64_t j = 0; j < x.columns; ++j) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < x.rows; ++i) sum += x.at(i, j) * x.at(i, j);
    values.push_back(std::sqrt(sum));
  }
  std::sort(values.rbegin(), values.rend());
  return values;
}

// |.| is the Frobenius norm. A rounding that is off by up to u of a number is off by u / sqrt(3) in the mean. A sum of
// n terms in float32 is off by sqrt(n / 3) 2^-24 of its partial sums. In a product P Q these have the norm |P| |Q| at
// most. A matrix that multiplies an error scales it by its mean singular value.
double newton_schulz_error(const Matrix& matrix, double roundoff) {
  const auto small = std::min(matrix.rows, matrix.columns), large = std::max(matrix.rows, matrix.columns);
  const double rounding = roundoff / std::sqrt(3.0), float_rounding = 0x1.0p-24 / std::sqrt(3.0);
  const double small_sum = float_rounding * std::sqrt(static_cast<double>(small));
  const double large_sum = float_rounding * std::sqrt(static_cast<double>(large));
  std::vector<double> singular = singular_values(matrix);
  const double size = norm(matrix);
  for (double& x : singular) x /= size;
  const auto norm_of = [&](auto function) {
    double sum = 0.0;
    for (double x : singular) sum += std::pow(function(x), 2);
    return std::sqrt(sum);
  };
  const auto root = [](std::initializer_list<double> independent) {
    double sum = 0.0;
    for (double error : independent) sum += error * error;
    return std::sqrt(sum);
  };

  double error = root({rounding, float_rounding});  // the rounding to a narrower dtype, the division by the norm
  for (int step = 0; step < steps; ++step) {
    const double x = norm_of([](double s) { return s; }), mean = x / std::sqrt(static_cast<double>(small));
    const double gram = norm_of([](double s) { return s * s; });
    const double square = norm_of([](double s) { return std::pow(s, 4); });
    const double mixed = norm_of([](double s) { return b * s * s + c * std::pow(s, 4); });
    const double result = norm_of(polynomial);
    const double gram_error = root({rounding * gram, large_sum * x * x});
    // The error of the Gram matrix reaches its square from both sides.
    const double square_error = root({rounding * square, small_sum * gram * gram, 2 * mean * mean * gram_error});
    const double mixed_error = root(
        {b * gram_error, c * square_error, rounding * mixed, float_rounding * b * gram, float_rounding * c * square});
    // The product may be rounded before it is added, the sum is.
    const double step_error =
        root({mean * mixed_error, small_sum * mixed * x, rounding * mixed * mean, rounding * result});
    error = root({stretch(singular, small, large) * error, step_error});
    for (double& s : singular) s = std::abs(polynomial(s));
  }
  return error;
}

}  // namespace weft::muon_reference
