#include "layers/kernels/matrix_products.h"

namespace weft {

void MatrixProducts::multiply_onto(Stream& stream, const Product& product) {
  multiply(product.a, product.transpose_a, product.b, product.transpose_b, product.c, false);
  add(stream, product.addend, product.c);
}

}  // namespace weft
