# cmark_gfm::cmark_gfm, GitHub's flavour of Markdown, from headers and libraries that come without a CMake package.
find_path(cmark_gfm_INCLUDE_DIR cmark-gfm-core-extensions.h)
find_library(cmark_gfm_LIBRARY cmark-gfm)
find_library(cmark_gfm_EXTENSIONS_LIBRARY cmark-gfm-extensions)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cmark_gfm
  REQUIRED_VARS cmark_gfm_LIBRARY cmark_gfm_EXTENSIONS_LIBRARY cmark_gfm_INCLUDE_DIR)
mark_as_advanced(cmark_gfm_INCLUDE_DIR cmark_gfm_LIBRARY cmark_gfm_EXTENSIONS_LIBRARY)
if(cmark_gfm_FOUND AND NOT TARGET cmark_gfm::cmark_gfm)
  add_library(cmark_gfm::cmark_gfm UNKNOWN IMPORTED)
  set_target_properties(cmark_gfm::cmark_gfm PROPERTIES
    IMPORTED_LOCATION ${cmark_gfm_EXTENSIONS_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${cmark_gfm_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ${cmark_gfm_LIBRARY})
endif()
