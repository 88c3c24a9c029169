# Compile settings shared by every target, and the functions that declare rooms, tests and benchmarks.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

# Warnings are errors under the compilers that ci/test proves, g++ 12 and clang 14; newer ones warn of more.
set(werror)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  set(werror -Werror)
endif()

add_library(fp8lab_settings INTERFACE)
target_compile_features(fp8lab_settings INTERFACE cxx_std_20)
# Contraction would round differently per instruction set; kernels that want fma say fma.
target_compile_options(fp8lab_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor ${werror} -ffp-contract=off>)
target_compile_options(fp8lab_settings INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -fmad=false>)
target_link_libraries(fp8lab_settings INTERFACE Threads::Threads)
if(FP8LAB_SANITIZE)
  target_compile_options(fp8lab_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FP8LAB_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(fp8lab_settings INTERFACE -fsanitize=${FP8LAB_SANITIZE})
endif()

# fp8lab_room(<room> SOURCES <files> [ROOMS <rooms it may include>] [LIBRARIES <others>])
# A room is one static library under lib/<room>; ROOMS mirrors the table of ci/check_layers.py.
function(fp8lab_room room)
  cmake_parse_arguments(ARG "" "" "SOURCES;ROOMS;LIBRARIES" ${ARGN})
  add_library(fp8lab_${room} STATIC ${ARG_SOURCES})
  target_include_directories(fp8lab_${room} PUBLIC ${PROJECT_SOURCE_DIR}/lib)
  list(TRANSFORM ARG_ROOMS PREPEND fp8lab_)
  target_link_libraries(fp8lab_${room} PUBLIC fp8lab_settings ${ARG_ROOMS} PRIVATE fmt::fmt ${ARG_LIBRARIES})
endfunction()

# fp8lab_folder_of(<name> <library's file> <source>): tells <source>, as <name>, in which folder CMake found a library that is opened
# when the program runs; "" where it found none.
function(fp8lab_folder_of name library source)
  set(folder "")
  if(library)
    cmake_path(GET library PARENT_PATH folder)
  endif()
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS "${name}=\"${folder}\"")
endfunction()

# fp8lab_test(<name> SOURCES <files> [ROOMS <rooms>] [LIBRARIES <others>] [LABELS <labels>] [TIMEOUT <seconds>] [SHARDS <n>] [CARD])
# One GoogleTest binary and one CTest entry; correctness/ itself is on the include path for reference/ and support/.
# SHARDS: n entries instead, <name>_1 to <name>_n, that divide a long binary's tests among them.
# CARD: where CUDA is built, a second entry, <name>_on_card, runs the same binary on device `cuda`; a card is of one
# architecture, Hopper, so tests of another or of every one are left out.
function(fp8lab_test name)
  cmake_parse_arguments(ARG "CARD" "TIMEOUT;SHARDS" "SOURCES;ROOMS;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/correctness)
  list(TRANSFORM ARG_ROOMS PREPEND fp8lab_)
  target_link_libraries(${name} PRIVATE fp8lab_settings ${ARG_ROOMS} ${ARG_LIBRARIES} fmt::fmt GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(FP8LAB_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")  # sanitizers cost that much at most
  endif()
  if(ARG_SHARDS)
    foreach(shard RANGE 1 ${ARG_SHARDS})
      math(EXPR index "${shard} - 1")
      add_test(NAME ${name}_${shard} COMMAND ${name})
      set_tests_properties(${name}_${shard} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  endif()
  if(TARGET gpu_tests AND (ARG_CARD OR "gpu" IN_LIST ARG_LABELS))
    add_dependencies(gpu_tests ${name})
  endif()
  if(ARG_CARD AND FP8LAB_WITH_CUDA)
    add_test(NAME ${name}_on_card COMMAND ${name} "--gtest_filter=-*blackwell*:*EveryArch*")
    set_tests_properties(${name}_on_card PROPERTIES
      TIMEOUT ${ARG_TIMEOUT} LABELS "gpu" ENVIRONMENT FP8LAB_TEST_DEVICE=cuda)
  endif()
endfunction()

# fp8lab_bench(<name> SOURCES <files> [ROOMS <rooms>] [LIBRARIES <others>])
function(fp8lab_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;ROOMS;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_ROOMS PREPEND fp8lab_)
  target_link_libraries(${name} PRIVATE fp8lab_settings ${ARG_ROOMS} ${ARG_LIBRARIES} fmt::fmt benchmark::benchmark)
endfunction()
