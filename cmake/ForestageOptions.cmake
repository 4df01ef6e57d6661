# Switches of the build. Every one has a preset that sets it; see CMakePresets.json.
set(FORESTAGE_SANITIZER "" CACHE STRING "Empty, 'address' (ASan and UBSan) or 'thread'")
set_property(CACHE FORESTAGE_SANITIZER PROPERTY STRINGS "" address thread)
option(FORESTAGE_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(FORESTAGE_TESTS "Build the tests" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
# Line tables are enough for stack traces, and halve the time of a build. Assertions of the standard
# library's kind (NDEBUG) play no part: our CHECK is on in every build.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
if(FORESTAGE_SANITIZER)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
endif()

# Each header is compiled alone by the target all_verify_interface_header_sets.
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

find_program(FORESTAGE_CCACHE ccache)
if(FORESTAGE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${FORESTAGE_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${FORESTAGE_CCACHE}")
endif()

if(FORESTAGE_SANITIZER STREQUAL "address")
  # Not vptr: it asks the kernel by a pipe whether memory is readable, and calls a process that may
  # open no more descriptors faulty.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(FORESTAGE_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT FORESTAGE_SANITIZER STREQUAL "")
  message(FATAL_ERROR "FORESTAGE_SANITIZER is '${FORESTAGE_SANITIZER}'; "
                      "allowed are '', 'address' and 'thread'")
endif()
if(FORESTAGE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "FORESTAGE_FUZZ needs clang; use the preset 'fuzz'")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
