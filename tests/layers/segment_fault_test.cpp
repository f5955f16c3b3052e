// Seeded faults: mistakes that a trainer of this kind is prone to. The comparison with the reference must tell each
// from rounding: each is at least a hundred times what is tolerated.
#include <gtest/gtest.h>

#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

constexpr double margin = 100.0;

SegmentCase moe_case() {
  SegmentCase the_case{.kind = SegmentKind::moe, .model = small_model(), .data = 2, .tensor = 2, .expert = 2};
  the_case.model.moe.shared_expert_intermediate_size = 8;
  the_case.model.moe.router_aux_loss_coef = 2.0;
  the_case.model.moe.router_z_loss_coef = 0.5;
  return the_case;
}

class SegmentFault : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    EXPECT_LE(error(run_segment(the_case, inputs)), tolerance(the_case)) << "without any fault";
  }

  double error(const std::vector<RankOutcome>& ranks) const {
    return largest_relative_error(assemble(the_case, ranks), expected);
  }
  // Runs with another model, but expects the gradients of the right one. Losses are reported as they should be, so that
  // only gradients can tell.
  double gradient_error_with(const MoeConfig& moe) const {
    SegmentCase faulty = the_case;
    faulty.model.moe = moe;
    Outcome outcome = assemble(faulty, run_segment(faulty, inputs));
    outcome.auxiliary_loss = expected.auxiliary_loss;
    outcome.z_loss = expected.z_loss;
    return largest_relative_error(outcome, expected);
  }

  const SegmentCase the_case = moe_case();
  const SegmentInputs inputs = draw_inputs(the_case);
  const Outcome expected = expected_outcome(the_case, inputs);
};

// Sums over an expert group what is one rank's own, or forgets to divide an average by it.
TEST_F(SegmentFault, ExpertGradientsMultipliedByTheExpertDegree) {
  std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
  for (RankOutcome& rank : ranks) {
    for (std::size_t i = 0; i < rank.parameters.size(); ++i) {
      if (rank.parameters[i].family != Family::experts) continue;
      for (double& value : rank.gradients[i]) value *= the_case.expert;
    }
  }
  EXPECT_GE(error(ranks), margin * tolerance(the_case));
}

TEST_F(SegmentFault, AuxiliaryLossGradientDropped) {
  MoeConfig moe = the_case.model.moe;
  moe.router_aux_loss_coef = 0.0;
  EXPECT_GE(gradient_error_with(moe), margin * tolerance(the_case));
}

TEST_F(SegmentFault, RouterZLossGradientDropped) {
  MoeConfig moe = the_case.model.moe;
  moe.router_z_loss_coef = 0.0;
  EXPECT_GE(gradient_error_with(moe), margin * tolerance(the_case));
}

TEST_F(SegmentFault, OneTokenDroppedFromDispatch) {
  EXPECT_GE(error(run_segment(the_case, inputs, {.drop_expert_row = true})), margin * tolerance(the_case));
}

TEST_F(SegmentFault, NormWeightGradientsNotSummedOverTheTensorGroup) {
  std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
  for (RankOutcome& rank : ranks) {
    for (ParameterSpec& spec : rank.parameters) spec.tensor_replicated = false;
  }
  EXPECT_GE(error(ranks), margin * tolerance(the_case));
}

// The router sees other tokens on every rank of a tensor group, although it is not `tensor_replicated`.
TEST_F(SegmentFault, RouterGradientsNotSummedOverTheTensorGroup) {
  std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
  for (RankOutcome& rank : ranks) {
    for (ParameterSpec& spec : rank.parameters) {
      if (spec.family == Family::routing) spec.family = Family::root;
    }
  }
  EXPECT_GE(error(ranks), margin * tolerance(the_case));
}

}  // namespace
}  // namespace weft
