# One place for the flags that every target needs, and the two functions that declare targets.

add_library(tpce_flags INTERFACE)
set_target_properties(tpce_flags PROPERTIES EXPORT_NAME flags)
target_compile_features(tpce_flags INTERFACE cxx_std_20)
target_compile_options(tpce_flags INTERFACE
  # Contraction, reassociation and flush-to-zero each change bits (docs/numerics.md, section 7).
  -ffp-contract=off)

add_library(tpce_warnings INTERFACE)
target_compile_options(tpce_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wcast-align -Wold-style-cast
  # g++ 12 finds null pointers inside its own <streambuf> and <functional>, whatever calls them.
  $<$<CXX_COMPILER_ID:Clang>:-Wnull-dereference>
  $<$<BOOL:${TPCE_WERROR}>:-Werror>)

# tpce_library(<folder> SOURCES a.cc ... [PUBLIC libs...] [PRIVATE libs...])
# Declares the library tpce_<folder> (alias and exported name tpce::<folder>).
# Headers are included as "<folder>/<file>.h" from the repository root.
function(tpce_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(tpce_${name} ${ARG_SOURCES})
  add_library(tpce::${name} ALIAS tpce_${name})
  set_target_properties(tpce_${name} PROPERTIES
    EXPORT_NAME ${name}
    POSITION_INDEPENDENT_CODE ON
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(tpce_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
    $<INSTALL_INTERFACE:${TPCE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tpce_${name} PUBLIC tpce_flags ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:tpce_warnings> ${ARG_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY TPCE_LIBRARIES ${name})
endfunction()

# Headers get a folder of their own below include/, since names such as "reference/" are not ours alone.
set(TPCE_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR}/tpce-${PROJECT_VERSION_MAJOR})

# Shared libraries are found beside the program, wherever the tree is moved. Distributions turn this off with
# CMAKE_SKIP_INSTALL_RPATH.
file(RELATIVE_PATH libdir_from_bindir ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/${libdir_from_bindir}")
