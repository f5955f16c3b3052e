# Tests of attention by cuDNN. `library` holds layers/kernels/cuda/cudnn_*.cpp, `stubs` is the toolkit's folder with a
# stub of the driver, or empty. Each is a program of its own: the first loads a stub of the driver, which must not stand in the way of
# tests that use a GPU.
function(weft_cudnn_tests library stubs)
  find_library(WEFT_CUDA_DRIVER_STUB cuda PATHS ${stubs} NO_DEFAULT_PATH)
  foreach(name cudnn_acceptance cudnn_attention)
    add_executable(test_${name} ${CMAKE_SOURCE_DIR}/tests/cuda/${name}_test.cpp
                                ${CMAKE_SOURCE_DIR}/tests/layers/attention_case.cpp)
    target_link_libraries(test_${name} PRIVATE ${library} GTest::gtest GTest::gtest_main ${CMAKE_DL_LIBS})
    weft_discover_tests(test_${name} cuda)
  endforeach()
  target_compile_definitions(test_cudnn_acceptance PRIVATE WEFT_CUDA_DRIVER_STUB="${WEFT_CUDA_DRIVER_STUB}")
endfunction()
