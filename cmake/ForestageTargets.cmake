# Functions that declare our targets, so that warnings, include root, header check and labels are
# the same everywhere. Sources and headers are always listed by hand.
include(GoogleTest)

# Warnings are errors where our checks meet them first. A newer compiler, and GCC 12 when it inlines
# more (Release), also warn of what is no fault, and whoever builds there must get their program.
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
    AND NOT CMAKE_BUILD_TYPE STREQUAL "Release")
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  set(warnings_as_errors ON)
else()
  set(warnings_as_errors OFF)
endif()
option(FORESTAGE_WARNINGS_AS_ERRORS "Warnings end the build" ${warnings_as_errors})

add_library(forestage_warnings INTERFACE)
target_compile_options(forestage_warnings INTERFACE
  -Wall -Wextra $<$<BOOL:${FORESTAGE_WARNINGS_AS_ERRORS}>:-Werror> -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Wthread-safety-beta>
  # GCC 12 reports false positives from inlined libstdc++ under sanitizers.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${FORESTAGE_SANITIZER}>>:-Wno-error=maybe-uninitialized
    -Wno-error=restrict -Wno-error=stringop-overflow -Wno-error=array-bounds>)

# forestage_library(NAME HEADERS ... SOURCES ... DEPS ... [PRIVATE_DEPS ...])
# Makes forestage_NAME and the alias forestage::NAME. Includes are written from the repository root.
function(forestage_library name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target forestage_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE forestage_warnings ${ARG_PRIVATE_DEPS})
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
    target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  endif()
  add_library(forestage::${name} ALIAS ${target})
endfunction()

# forestage_binary(NAME SOURCES ... DEPS ...): a program in build/<preset>/bin.
function(forestage_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE forestage_warnings forestage_program ${ARG_DEPS})
endfunction()

# Builds the tests with the label `unit`: those that neither link gRPC (`grpc`) nor start programs of
# ours (`integration`).
add_custom_target(unit_tests)

# forestage_test(NAME SOURCES ... DEPS ... [LABELS ...]): a GoogleTest program; ctest knows each case.
function(forestage_test name)
  if(NOT FORESTAGE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/test")
  target_link_libraries(${name} PRIVATE forestage_warnings forestage_program ${ARG_DEPS}
                        GTest::gmock GTest::gtest_main)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
    add_dependencies(unit_tests ${name})
  endif()
  gtest_discover_tests(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300
                       DISCOVERY_TIMEOUT 60)
endfunction()

# forestage_fuzzer(NAME SOURCES ... DEPS ...): a libFuzzer program in build/fuzz/fuzz.
function(forestage_fuzzer name)
  if(NOT FORESTAGE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE forestage_warnings ${ARG_DEPS})
endfunction()
