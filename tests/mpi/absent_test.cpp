// A build without MPI.
#include <gtest/gtest.h>

#include "parallel/comm/rendezvous.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

TEST(MpiRendezvous, IsRefusedByNameWithoutMpi) {
  try {
    make_rendezvous("mpi://", {.rank = 0, .world = 2});
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    const std::string text = error.what();
    EXPECT_NE(text.find("mpi://"), std::string::npos) << text;
    EXPECT_NE(text.find("without MPI"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weft
