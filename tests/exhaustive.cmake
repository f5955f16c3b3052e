# The suites that a change rarely needs (suites.cmake gives them a second label). `tools/test.sh` leaves them out;
# `tools/test.sh --all` and continuous integration run them. Each has a shorter sibling among the others: the same claim
# on fewer layouts, on the CPU, or without a clock.
set(exhaustive_suites
    # Whole steps and segments on emulated CUDA kernels. Others: each kernel, communicator and device function.
    cuda_emulated.Schedules/CudaSchedules cuda_emulated.Layouts/CudaTraining cuda_emulated.CudaTrainingBits
    cuda_emulated.CudaTrainingFloat8 cuda_emulated.Layouts/CudaCheckpoint cuda_emulated.Layouts/CudaMemory
    cuda_emulated.Layouts/CudaTrainedModel cuda_emulated.Layouts/PoisonOnGpu cuda_emulated.SegmentRecompute
    cuda_emulated.SegmentMemory cuda_emulated.SegmentTrafficTest cuda_emulated.SegmentFault cuda_emulated.FrozenSegments
    cuda_emulated.MoeSegment cuda_emulated.AttentionSegment cuda_emulated.StateSpaceSegment cuda_emulated.FullModel cuda_emulated.NcclBuffersTest
    cuda_emulated.NcclFailureTest cuda_emulated.CudaTrainingRules cuda_emulated.AttentionRuns
    cuda_emulated.EmbeddingSegment cuda_emulated.ExpertDispatchTest cuda_emulated.HeadSegment cuda_emulated.MlpSegment
    cuda_emulated.DenseSegments cuda_emulated.SegmentCalls
    # The answers of cuDNN for every device and shape. Others: the graphs, interpreted in double.
    cuda.Devices/CudnnAcceptance
    # Runs held against the clock, with nothing else on the machine. Others: the simulation against its oracle.
    trainer.Schedules/PaddedRuns trainer.PaddedRun
    # Faults put into runs one at a time; bounds, searches and solvers over whole grids.
    trainer.Diagnosis trainer.Diagnosis/SettingFaults trainer.TracedWaits trainer.All/SearchOf trainer.All/BudgetOfShippedConfigs
    trainer.All/BudgetOfSchedules trainer.BudgetOfATrillionParameters trainer.Orders/SolvedTiming
    trainer.Pairs/CheckpointGrid trainer.Others/Strategies trainer.All/Float8Layouts trainer.Layouts/CollectiveCounts
    trainer.Layouts/ProgramMemory trainer.Layouts/Communication trainer.Calls/SaveRefused trainer.Layouts/Failure
    trainer.RandomRemedies trainer.SolvedTimingLayout trainer.All/RandomRouting
    parallel.CheckLanes parallel.RendezvousCrowd parallel.RendezvousStrangers parallel.ScheduleFuzz parallel.TimingOptimum
    # Kills, hostile texts and benches, by the program. Others: every command once.
    tools.BenchTiming tools.BenchMemory tools.KilledRun tools.HostileConfigs tools.GpuScript tools.Profile
    tools.DamagedCheckpoint)
# Single tests of suites that stay: long ones, and layouts that repeat what others of their suite hold. Every schedule,
# axis, residency and dtype stays with one layout at least.
set(exhaustive_tests
    "cuda_emulated.CachedAttentionTest.ReadsCachesOfAnyLength"
    "cuda_emulated.(RotaryTest|RmsNorm).(GradientIsTheDerivative|BackwardSumsTheWeights)"
    "cuda_emulated.AttentionTest.SeesTheKeysOfItsWindowOnly"
    "cuda_emulated.Layouts/CapturedRegions.*/(mixed_pp2_shard2_zbv|hybrid_recomputed|predictor_frozen)"
    "cuda_emulated.CapturedRegionsCount.(AnAllocationWithoutRoom|IsNoneWhereSegmentsExchange)"
    "cuda_emulated.Layouts/FirstStep.*/dense_pp2"
    "cuda_emulated.ProductTables.ThatAreDamagedAreNone"
    "mpi.MpiRendezvousTest.(WithoutRankZero|WhoHasNotCome)"
    "cuda_emulated.CudaRmsNorm.BackwardMatchesTheCpu" "cuda_emulated.MeasuredProducts.(AreRemembered|OfEightBits|GoOn)" "layers.MoeSegment.BalancesTheStepSoFar"
    "layers.ExpertDispatchTest.(WeighsInsideExperts|SendsNothingForNullSlots|DropsTheSameTokens)"
    "tools.InitCommand.AClustersFileFits" "tools.RequirementScript.NamesTheProgramOfEveryTest"
    "tools.CertaintyCommand.TheCommandMeasures" "tools.CheckCommand.HostileTexts"
    "trainer.Float8Training.LearnsWhatBfloat16Learns" "trainer.Published.TheErrorThatIsToldIsTheTables"
    "trainer.ChosenTiming.KeepsWhatFullShardPromises" "trainer.RandomLayouts.HoldTheSameCopiesAfterManySteps"
    "trainer.ComputeTimes.FlagASlowRankInTheSummary" "trainer.RouterHelpers.AreTheSameBitsInEveryLayout"
    "trainer.SpikeRun.(ASkippedStep|ANormFarAboveItsMean|GoesOnWithTheSameMeanOfNorms|StopsWithTheStateBefore)"
    "trainer.Few/RandomRouting.GoesOn" "trainer.All/ExplainCauses.*/replicated_parameters"
    "trainer.DocumentParser.AgreesWithAnotherReaderOnDamagedLines" "tools.SignalledRun.AlwaysEndsAStart"
    "tools.BenchDefaults.TheDocumentShows" "tools.ReportPage.ShowsTwoRunsAtEachWidthInBothSchemes"
    "trainer.OneMemory/ShippedConfig.*/(moe_1024|plan_1t_moe)"
    "trainer.Schedules/ScheduleParity.*/.*(_pp4_|_v3|_v4|_g4|zb1p_pp2_v1)"
    "trainer.Grid/Strategies.*/(pp1_|.*_reduction|.*_stored|.*_bfloat16_compute)"
    "trainer.Layouts/MaskedDocuments.*/(pp2|pp4|interleaved|v|tp4|shard2_|replicate2|no_shard|ep2$|tied$|cp2$|zbv_|zb_h1|selective|tied_v|predictor_apart|two_nodes|cp4|dualpipev)"
    "trainer.Layouts/LayoutParity.*/(.*_gpipe|dense_pp[23]$|dense_tp4|dense_shard2|dense_replicate2|dense_pp2_(tp|shard)[24]$|dense_pp4_tp2|dense_tp2_|dense_cp[24]$|dense_cp2_[ts]|dense_microbatch4|moe_ep[24]$|moe_ep[124]_tp|moe_pp[24]_ep2|moe_cp2$|moe_etp2|moe_tp4_ep2|moe_cp4|mixed_pp[24]$|mixed_shard4|mixed_pp2_tp4|mixed_pp[34]_tp2)"
    "trainer.Layouts/BitParity.*/(dense_|moe_)"
    "trainer.Layouts/Validation.*/(pp[24]|v|tp4|shard2_|replicate2|ep2$|tied$|zb_h1)"
    "trainer.Layouts/Validation.LeavesTrainingAsItIs/(tp2|cp2|tied_v|predictor)"
    "trainer.Layouts/PredictionParity.*/(tp4|pp4_tied|pp2_tied|pp2_by|zb_h1)"
    "trainer.Layouts/RecomputeParity.*/(one_rank_bf|pp4|tp2|cp2$|ep2_r|half_block|no_shard|zb_h1|auto_zbv|frozen_dense|one_rank_global|dualpipev_global|mesh8_global|mesh16)"
    "trainer.Layouts/ReplicatedVectors.TakeTheBytesOfTheDryRun/(tp2|mesh8|half_blocks|each_)"
    "trainer.Layouts/(NullSlots|DroppedTokens).*/(full|two_nodes|shard4_ep4|ep2_etp2|all_tokens|cp2$|experts)"
    "trainer.Layouts/Resume.*/(pp4|etp2|root_wrap|one|grad_op|mesh16)" "trainer.Layouts/TiedParity.*/pp2_mesh16"
    "trainer.Layouts/MuonTraining.*/pp2_replicate2_shard2_tensor2"
    "trainer.Layouts/SteadyState.*/(one_rank_|shard2_bf|mesh8_(full|visit|reshard|every3|bfloat16)|pp4_tp2|pp3|etp2|tied_shard2)"
    "trainer.Layouts/ExpertLoad.*/(pp[24]_gpipe|pp2|tp2|shard4$)"
    "trainer.All/OptimizerRuns.*/(adamw|momentum|lion|lamb)_bfloat16"
    "trainer.Exchange.*_tied")
