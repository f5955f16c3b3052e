# The product sources that parsers reach, which are neither kernels nor communication, and so need neither oneDNN nor
# OpenMP. The project of the fuzzers compiles them; the build of the tests asks that each is there, because it meets a
# file that moved hours before the fuzzers do. Where a parser comes to reach more, their linker says what is missing.
get_filename_component(weft ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(fuzz_sources)
foreach(folder IN ITEMS parallel/mesh parallel/pipeline/program parallel/pipeline/text parallel/pipeline/check
                        parallel/pipeline/orders parallel/pipeline/passes parallel/pipeline/accounts
                        parallel/pipeline/simulation layers layers/kernels trainer/config trainer/costs trainer/plan
                        trainer/layout trainer/optimizer trainer/jinja trainer/tokenizer)
  file(GLOB sources CONFIGURE_DEPENDS ${weft}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(cached_|cpu_|dry_|execute|logits_|optimizer\\.|timed_step|traffic)")
  list(APPEND fuzz_sources ${sources})
endforeach()
function(add_fuzz_sources folder)
  foreach(name IN LISTS ARGN)
    file(GLOB sources CONFIGURE_DEPENDS ${weft}/${folder}/${name}.cpp)
    if(NOT sources)
      message(FATAL_ERROR "${CMAKE_CURRENT_FUNCTION_LIST_FILE} names ${folder}/${name}.cpp, which is not there")
    endif()
    list(APPEND fuzz_sources ${sources})
  endforeach()
  set(fuzz_sources ${fuzz_sources} PARENT_SCOPE)
endfunction()
add_fuzz_sources(parallel comm/communicator comm/rendezvous_channel comm/run_token runtime/checksum runtime/elementwise
                 runtime/input_file runtime/ledger runtime/quantities runtime/staging shard/fully_shard shard/replicated shard/unit*
                 shard/wrap)
add_fuzz_sources(trainer/checkpoint manifest* safetensors*)
add_fuzz_sources(trainer/data byte_source chat_template document_parser documents json_places megatron_index
                 order_cache partial_file stored_numbers text_file token_f* token_index unpacked_file)
add_fuzz_sources(trainer/resolve config_* step_costs)
add_fuzz_sources(trainer/huggingface architecture model_json* names weight_folder)
