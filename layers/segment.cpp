#include "layers/segment.h"

namespace weft {

DType SegmentSetup::dtype_of(Family family) const {
  switch (family) {
    case Family::experts:
      return expert_compute;
    case Family::embedding:
      return embedding_compute;
    case Family::head:
      return head_compute;
    case Family::routing:
      return DType::float32;
    case Family::dense:
    case Family::root:
      return compute;
  }
  fail("family {} has no dtype", static_cast<int>(family));
}

}  // namespace weft
