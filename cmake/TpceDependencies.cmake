# Every package that a library or the program links, once. Found here, at the top, so that its targets are seen in every
# folder; the installed CMake package and the pkg-config files are derived from the same lines.
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})

# tpce_dependency(<target> <find_package arguments...> [PC <name in pkg-config>] [LINK <flags where it has none>])
macro(tpce_dependency target)
  cmake_parse_arguments(DEP "" "PC;LINK" "" ${ARGN})
  find_package(${DEP_UNPARSED_ARGUMENTS} REQUIRED)
  set_property(GLOBAL PROPERTY TPCE_FIND_${target} "${DEP_UNPARSED_ARGUMENTS}")
  set_property(GLOBAL PROPERTY TPCE_PC_${target} "${DEP_PC}")
  set_property(GLOBAL PROPERTY TPCE_LINK_${target} "${DEP_LINK}")
endmacro()

tpce_dependency(Boost::headers Boost 1.81)  # headers alone, in the compiler's own path
tpce_dependency(GMP::GMP GMP PC gmp)
tpce_dependency(MPFR::MPFR MPFR PC mpfr)
tpce_dependency(MPFI::MPFI MPFI LINK -lmpfi)
tpce_dependency(hwy::hwy hwy PC libhwy)
tpce_dependency(TBB::tbb TBB PC tbb)
tpce_dependency(fmt::fmt fmt PC fmt)
tpce_dependency(nlohmann_json::nlohmann_json nlohmann_json PC nlohmann_json)
tpce_dependency(OpenSSL::Crypto OpenSSL PC libcrypto)
tpce_dependency(cmark_gfm::cmark_gfm cmark_gfm LINK "-lcmark-gfm-extensions -lcmark-gfm")
tpce_dependency(CLI11::CLI11 CLI11 PC CLI11)
tpce_dependency(Random123::Random123 Random123)  # headers alone, in the compiler's own path
tpce_dependency(tomlplusplus::tomlplusplus tomlplusplus PC tomlplusplus)
tpce_dependency(Threads::Threads Threads LINK -pthread)

# Ranks over MPI are an option: everything else works without.
option(TPCE_MPI "Build mpi/, the communicator over MPI" ON)
if(TPCE_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface alone
  tpce_dependency(MPI::MPI_CXX MPI COMPONENTS CXX PC ompi-c)
endif()
