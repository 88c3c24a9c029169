# Compile settings shared by every target, and the functions that declare modules, tests and benchmarks.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

# Only the presets of ci/test make warnings errors, since other build types warn of more; so do newer compilers than Debian 12's g++ 12
# and clang 14, which therefore only warn there too.
set(werror)
if(FP8LAB_WERROR AND ((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
                      OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)))
  set(werror -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # What g++ 12 concludes after inlining at -O3 is at times false (an assignment of Tensor "writes 44 bytes into a region of
    # size 0"), so these stay warnings.
    list(APPEND werror -Wno-error=array-bounds -Wno-error=maybe-uninitialized -Wno-error=restrict
      -Wno-error=stringop-overflow -Wno-error=stringop-overread)
  endif()
endif()

add_library(fp8lab_settings INTERFACE)
target_compile_features(fp8lab_settings INTERFACE cxx_std_20)
# Contraction would round differently per instruction set; kernels that want fma say fma.
target_compile_options(fp8lab_settings INTERFACE
  $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor ${werror}>>
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
target_compile_options(fp8lab_settings INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -fmad=false>)
target_link_libraries(fp8lab_settings INTERFACE Threads::Threads)
if(FP8LAB_SANITIZE)
  target_compile_options(fp8lab_settings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FP8LAB_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>"
    # In kernels two of UBSan's checks take longer than all others and the loops together. ASan reports an access outside of
    # every object; what it cannot see is an address that wrapped or went too far and met another object.
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<STREQUAL:$<TARGET_PROPERTY:NAME>,fp8lab_backend>>:-fno-sanitize=pointer-overflow,object-size>")
  target_link_options(fp8lab_settings INTERFACE -fsanitize=${FP8LAB_SANITIZE})
endif()
target_link_options(fp8lab_settings INTERFACE $<BUILD_INTERFACE:LINKER:--build-id>)  # results of a modified checkout hold it

# Folders of the headers of every module, here and in an installed package.
set(fp8lab_headers $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/lib> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/fp8lab>)

# fp8lab_export(<name>): the library fp8lab_<name> becomes fp8lab::<name> of the installed package; see Package.cmake.
function(fp8lab_export name)
  set_target_properties(fp8lab_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS fp8lab_${name} EXPORT fp8lab COMPONENT library)
endfunction()
fp8lab_export(settings)

# fp8lab_module(<module> SOURCES <files> [MODULES <modules it may include>] [LIBRARIES <others>] [SEPARATE])
# A module is one static library under lib/<module>; MODULES mirrors the table of ci/check_layers.py.
# SEPARATE: its files are never compiled together, since private names are not unique in it.
function(fp8lab_module module)
  cmake_parse_arguments(ARG "SEPARATE" "" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  add_library(fp8lab_${module} STATIC ${ARG_SOURCES})
  if(FP8LAB_UNITY STREQUAL "modules" AND NOT ARG_SEPARATE)
    set_target_properties(fp8lab_${module} PROPERTIES UNITY_BUILD ON)
  endif()
  target_include_directories(fp8lab_${module} PUBLIC ${fp8lab_headers})
  list(TRANSFORM ARG_MODULES PREPEND fp8lab_)
  target_link_libraries(fp8lab_${module} PUBLIC fp8lab_settings ${ARG_MODULES} PRIVATE fmt::fmt ${ARG_LIBRARIES})
  fp8lab_export(${module})
endfunction()

# fp8lab_folder_of(<name> <library's file> <source>): defines <name> in <source> as the folder in which CMake found a
# library that is opened when the program runs; "" if it found none.
function(fp8lab_folder_of name library source)
  set(folder "")
  if(library)
    cmake_path(GET library PARENT_PATH folder)
  endif()
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS "${name}=\"${folder}\"")
endfunction()

# fp8lab_test_entries(<entry> <shards> <timeout> <labels> <environment> <command>...)
# The CTest entry <entry>, or <entry>_1 to <entry>_<shards>, which divide the binary's tests among them.
function(fp8lab_test_entries entry shards timeout labels environment)
  foreach(shard RANGE 1 ${shards})
    set(name ${entry})
    set(settings ${environment})
    if(shards GREATER 1)
      set(name ${entry}_${shard})
      math(EXPR index "${shard} - 1")
      list(APPEND settings GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=${index})
    endif()
    add_test(NAME ${name} COMMAND ${ARGN})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}" ENVIRONMENT "${settings}")
  endforeach()
endfunction()

# fp8lab_optimize_little(<target> [UNSANITIZED]): if optimising takes longer than the optimised code runs: little, or
# under sanitizers not at all. UNSANITIZED: under sanitizers as everything else, since that runs for longer there.
function(fp8lab_optimize_little target)
  if(FP8LAB_SANITIZE)
    if(NOT "UNSANITIZED" IN_LIST ARGN)
      target_compile_options(${target} PRIVATE -O0)
    endif()
  else()
    target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O1>)
  endif()
endfunction()

# fp8lab_test(<name> SOURCES <files> [MODULES <modules>] [LIBRARIES <others>] [LABELS <labels>] [TIMEOUT <seconds>] [SHARDS <n>]
#             [GPU|GPUS] [GPU_SHARDS <n>] [NUMERIC] [OPTIMIZED] [UNSANITIZED <patterns>])
# One GoogleTest binary and its CTest entries; correctness/ itself is on the include path for reference/ and support/.
# SHARDS: that many entries, which divide a long binary's tests among them.
# GPU: if CUDA is built, further entries, <name>_on_gpu, run the same binary on device `cuda`, GPU_SHARDS of them; a
# GPU has one architecture, Hopper, so tests of another or of every architecture are left out.
# GPUS: as GPU, for tests with ranks, which use every GPU that there is; their entries have the label `gpus` too.
# NUMERIC: label `numeric`, by which ci/test runs the binary again under each instruction set, since its tests compare
# operations and layers with references.
# OPTIMIZED: its own files are optimised as lib/ is, files of other tests by fp8lab_optimize_little().
# UNSANITIZED: patterns of GoogleTest for the tests that sanitized builds leave out, since others run the same lines of
# lib/: the largest of a table of sizes, many draws or seeds of one computation, and those that measure time.
function(fp8lab_test name)
  cmake_parse_arguments(ARG "GPU;GPUS;NUMERIC;OPTIMIZED" "TIMEOUT;SHARDS;GPU_SHARDS" "SOURCES;MODULES;LIBRARIES;LABELS;UNSANITIZED"
    ${ARGN})
  if(backend IN_LIST ARG_MODULES OR harness IN_LIST ARG_MODULES)
    list(APPEND ARG_LIBRARIES test_instruction_set)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(FP8LAB_UNITY STREQUAL "tests")
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/correctness)
  list(TRANSFORM ARG_MODULES PREPEND fp8lab_)
  target_link_libraries(${name} PRIVATE fp8lab_settings ${ARG_MODULES} ${ARG_LIBRARIES} test_reference fmt::fmt GTest::gtest_main)
  if(ARG_NUMERIC)
    list(APPEND ARG_LABELS numeric)
  endif()
  if(NOT ARG_OPTIMIZED)
    fp8lab_optimize_little(${name})
  endif()
  if(FP8LAB_SANITIZE AND "exhaustive" IN_LIST ARG_LABELS)  # the presets of sanitizers do not run these
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  foreach(count SHARDS GPU_SHARDS)
    if(NOT ARG_${count})
      set(ARG_${count} 1)
    endif()
  endforeach()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(FP8LAB_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")  # sanitizers cost that much at most
  endif()
  set(gpu_labels gpu)
  if(ARG_GPUS)
    set(ARG_GPU ON)
    list(APPEND gpu_labels gpus)
  endif()
  set(filter)
  if(FP8LAB_SANITIZE AND ARG_UNSANITIZED)
    list(JOIN ARG_UNSANITIZED ":" patterns)
    set(filter "--gtest_filter=-${patterns}")
  endif()
  fp8lab_test_entries(${name} ${ARG_SHARDS} ${ARG_TIMEOUT} "${ARG_LABELS}" "" ${name} ${filter})
  if(TARGET gpu_tests AND (ARG_GPUS OR "gpus" IN_LIST ARG_LABELS))
    add_dependencies(gpu_tests ${name})
  elseif(TARGET gpu_tests AND (ARG_GPU OR "gpu" IN_LIST ARG_LABELS))
    add_dependencies(one_gpu_tests ${name})
  endif()
  if(ARG_GPU AND FP8LAB_WITH_CUDA)
    fp8lab_test_entries(${name}_on_gpu ${ARG_GPU_SHARDS} ${ARG_TIMEOUT} "${gpu_labels}" FP8LAB_TEST_DEVICE=cuda
      ${name} "--gtest_filter=-*blackwell*:*EveryArch*")
  endif()
endfunction()

# fp8lab_test_paths(<test> <name>=<path>...): the paths of correctness/support/paths.h that a test uses.
function(fp8lab_test_paths name)
  set(text "#include \"support/paths.h\"\n\nnamespace fp8lab::paths {\n\n")
  foreach(path IN LISTS ARGN)
    string(REGEX REPLACE "^([^=]+)=(.*)$" "const char* const \\1 = \"\\2\";\n" path "${path}")
    string(APPEND text "${path}")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}_paths.cpp)
  file(GENERATE OUTPUT ${source} CONTENT "${text}\n}  // namespace fp8lab::paths\n")
  target_sources(${name} PRIVATE ${source})
endfunction()

# fp8lab_bench(<name> SOURCES <files> [MODULES <modules>] [LIBRARIES <others>])
function(fp8lab_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;MODULES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_MODULES PREPEND fp8lab_)
  target_link_libraries(${name} PRIVATE fp8lab_settings ${ARG_MODULES} ${ARG_LIBRARIES} fmt::fmt benchmark::benchmark)
endfunction()
