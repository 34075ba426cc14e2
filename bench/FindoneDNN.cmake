# oneDNN::oneDNN, of version 2 on OpenMP. Its own CMake package is not asked, since that stops the configuration where
# OpenCL is not installed; the interface of version 3 is another, and threads are set through OpenMP.
find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(ONEDNN_LIBRARY dnnl)
set(headers ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl)
if(ONEDNN_INCLUDE_DIR)
  file(STRINGS ${headers}/dnnl_version.h version REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" version "${version}")
  list(JOIN version "." oneDNN_VERSION)
  file(STRINGS ${headers}/dnnl_config.h ONEDNN_ON_OPENMP REGEX "define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_OMP")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN
  REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR ONEDNN_ON_OPENMP
  VERSION_VAR oneDNN_VERSION
  HANDLE_VERSION_RANGE)
mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)
if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES
    IMPORTED_LOCATION ${ONEDNN_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ONEDNN_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES gomp)  # the one that Debian's is linked with, whichever the compiler prefers
endif()
