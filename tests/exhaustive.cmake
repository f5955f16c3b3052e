# Read by ctest: gives a second label to the suites that a change rarely needs. `tools/test.sh` leaves them out;
# `tools/test.sh --all` and continuous integration run them. Each has a shorter sibling among the others: the same claim
# on fewer layouts, on the CPU, or without a clock.
set(exhaustive_suites
    # Whole steps and segments on emulated CUDA kernels. Others: each kernel, communicator and device function.
    cuda_emulated.Schedules/CudaSchedules cuda_emulated.Layouts/CudaTraining cuda_emulated.CudaTrainingBits
    cuda_emulated.CudaTrainingFloat8 cuda_emulated.Layouts/CudaCheckpoint cuda_emulated.Layouts/CudaMemory
    cuda_emulated.Layouts/CudaTrainedModel cuda_emulated.Layouts/PoisonOnGpu cuda_emulated.SegmentRecompute
    cuda_emulated.SegmentMemory cuda_emulated.SegmentTrafficTest cuda_emulated.SegmentFault cuda_emulated.FrozenSegments
    cuda_emulated.MoeSegment cuda_emulated.AttentionSegment cuda_emulated.FullModel cuda_emulated.NcclBuffersTest
    cuda_emulated.NcclFailureTest
    # The answers of cuDNN for every device and shape. Others: the graphs, interpreted in double.
    cuda.Devices/CudnnAcceptance
    # Runs held against the clock, with nothing else on the machine. Others: the simulation against its oracle.
    trainer.Schedules/PaddedRuns trainer.PaddedRun
    # Faults put into runs one at a time; bounds, searches and solvers over whole grids.
    trainer.Diagnosis trainer.Diagnosis/SettingFaults trainer.TracedWaits trainer.All/SearchOf trainer.All/BudgetOfShippedConfigs
    trainer.All/BudgetOfSchedules trainer.BudgetOfATrillionParameters trainer.Orders/SolvedTiming
    trainer.Pairs/CheckpointGrid trainer.Others/Strategies trainer.All/Float8Layouts trainer.Layouts/CollectiveCounts
    trainer.Layouts/ProgramMemory trainer.Layouts/Communication trainer.Calls/SaveRefused trainer.Layouts/Failure
    parallel.CheckLanes parallel.RendezvousCrowd parallel.RendezvousStrangers parallel.ScheduleFuzz parallel.TimingOptimum
    # Kills, hostile texts and benches, by the program. Others: every command once.
    tools.BenchTiming tools.BenchMemory tools.KilledRun tools.HostileConfigs tools.GpuScript tools.Profile)
foreach(list IN ITEMS test_parallel test_trainer test_trainer_padded test_tools test_cuda_emulated test_cudnn_acceptance)
  foreach(test IN LISTS ${list}_TESTS)
    string(REGEX MATCH "^([a-z_]+)\\.[^.]+" suite "${test}")
    set(label "${CMAKE_MATCH_1}")
    list(FIND exhaustive_suites "${suite}" place)
    if(NOT place EQUAL -1)
      set_tests_properties("${test}" PROPERTIES LABELS "${label};exhaustive")
    endif()
  endforeach()
endforeach()
