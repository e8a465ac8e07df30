# Flags of the whole project, carried by the target vq_options.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # an installed command still finds libllama

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(vq_options INTERFACE)

# No -march: everything is compiled for the baseline processor, Highway widens its own regions.
# No contraction: a*b+c must give the same bits with and without FMA instructions.
target_compile_options(vq_options INTERFACE -Wall -Wextra -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlapping copies in `"text" + std::string` (GCC bug 105651).
  target_compile_options(vq_options INTERFACE -Wno-restrict)
  # Its AVX-512 intrinsics start from a register of any content (GCC bug 105593).
  file(GLOB vq_kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*.cc)
  set_property(SOURCE ${vq_kernel_sources} APPEND PROPERTY COMPILE_OPTIONS -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

if(VQ_STATIC_HIGHWAY)
  target_compile_definitions(vq_options INTERFACE HWY_COMPILE_ONLY_STATIC)
endif()

if(VQ_SANITIZE)
  if(VQ_SANITIZE STREQUAL "address")
    set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
  elseif(VQ_SANITIZE STREQUAL "thread")
    set(sanitize -fsanitize=thread)
  elseif(VQ_SANITIZE STREQUAL "fuzzer")  # Clang's libFuzzer
    set(sanitize -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  else()
    message(FATAL_ERROR "VQ_SANITIZE is '${VQ_SANITIZE}'; it can be address, thread, fuzzer or empty")
  endif()
  target_compile_options(vq_options INTERFACE ${sanitize} -fno-omit-frame-pointer)
  target_link_options(vq_options INTERFACE ${sanitize})
  target_compile_definitions(vq_options INTERFACE _GLIBCXX_ASSERTIONS)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The instrumentation hides initialisations from GCC, which then warns without cause.
    target_compile_options(vq_options INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
