# Installs the libraries, their headers, a CMake package and pkg-config files, all derived from what tpce_library() and
# tpce_dependency() were told. Included after every folder.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tpce)
set(generated_dir ${PROJECT_BINARY_DIR}/install)
get_property(components GLOBAL PROPERTY TPCE_LIBRARIES)

# The pkg-config file of a component. The core is what most want, so it has the plain name.
function(tpce_pc_name component out)
  if(component STREQUAL "core")
    set(${out} tpce PARENT_SCOPE)
  else()
    set(${out} tpce-${component} PARENT_SCOPE)
  endif()
endfunction()

# What a program that links the component must link too: other components, and targets of tpce_dependency().
# A static library passes its private dependencies on ($<LINK_ONLY:...>); a shared one does not.
function(tpce_link_interface component out_components out_externals)
  set(found_components)
  set(found_externals)
  get_target_property(libraries tpce_${component} INTERFACE_LINK_LIBRARIES)
  foreach(library ${libraries})
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
    if(library MATCHES "^tpce(_|::)(.*)$")
      set(name ${CMAKE_MATCH_2})
      if(name IN_LIST components)
        list(APPEND found_components ${name})
      endif()
    elseif(NOT library MATCHES "BUILD_INTERFACE")
      get_property(known GLOBAL PROPERTY TPCE_FIND_${library} SET)
      if(NOT known)
        message(FATAL_ERROR "tpce_${component} links ${library}, which cmake/TpceDependencies.cmake does not list")
      endif()
      list(APPEND found_externals ${library})
    endif()
  endforeach()
  set(${out_components} ${found_components} PARENT_SCOPE)
  set(${out_externals} ${found_externals} PARENT_SCOPE)
endfunction()

# Both lists again, followed through every component.
function(tpce_link_closure component out_components out_externals)
  tpce_link_interface(${component} direct externals)
  set(all_components ${component})
  foreach(needed ${direct})
    tpce_link_closure(${needed} more_components more_externals)
    list(APPEND all_components ${more_components})
    list(APPEND externals ${more_externals})
  endforeach()
  list(REMOVE_DUPLICATES all_components)
  list(REMOVE_DUPLICATES externals)
  set(${out_components} ${all_components} PARENT_SCOPE)
  set(${out_externals} ${externals} PARENT_SCOPE)
endfunction()

install(TARGETS tpce_flags EXPORT tpce_targets)
set(TPCE_CONFIG_COMPONENTS "")
foreach(component ${components})
  install(TARGETS tpce_${component} EXPORT tpce_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  get_target_property(folder_path tpce_${component} SOURCE_DIR)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder_path})
  foreach(root ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
    install(DIRECTORY ${root}/${folder}/ DESTINATION ${TPCE_INSTALL_INCLUDEDIR}/${folder} OPTIONAL
      FILES_MATCHING PATTERN "*.h")
  endforeach()

  # CMake: find again what the component needs, only where the component is asked for.
  tpce_link_closure(${component} needed_components needed_externals)
  string(APPEND TPCE_CONFIG_COMPONENTS "if(\"${component}\" IN_LIST _tpce_wanted)\n")
  foreach(external ${needed_externals})
    get_property(arguments GLOBAL PROPERTY TPCE_FIND_${external})
    list(JOIN arguments " " arguments)
    string(APPEND TPCE_CONFIG_COMPONENTS "  find_dependency(${arguments})\n")
  endforeach()
  string(APPEND TPCE_CONFIG_COMPONENTS "  set(tpce_${component}_FOUND TRUE)\nendif()\n")

  # pkg-config. Paths are relative to the file, so that the tree may be moved and --prefix may be given late.
  tpce_link_interface(${component} needed_components needed_externals)
  set(PC_REQUIRES)
  set(PC_LIBS)
  foreach(needed ${needed_components})
    tpce_pc_name(${needed} needed_pc)
    list(APPEND PC_REQUIRES "${needed_pc} = ${PROJECT_VERSION}")
  endforeach()
  foreach(external ${needed_externals})
    get_property(pc GLOBAL PROPERTY TPCE_PC_${external})
    get_property(link GLOBAL PROPERTY TPCE_LINK_${external})
    list(APPEND PC_REQUIRES ${pc})
    list(APPEND PC_LIBS ${link})
  endforeach()
  list(JOIN PC_REQUIRES ", " PC_REQUIRES)
  list(JOIN PC_LIBS " " PC_LIBS)
  tpce_pc_name(${component} PC_NAME)
  set(PC_COMPONENT ${component})
  file(RELATIVE_PATH PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" PC_PREFIX ${PC_PREFIX})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/tpce.pc.in ${generated_dir}/${PC_NAME}.pc @ONLY)
  install(FILES ${generated_dir}/${PC_NAME}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

install(EXPORT tpce_targets NAMESPACE tpce:: FILE tpce-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tpce-config.cmake.in ${generated_dir}/tpce-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${generated_dir}/tpce-config-version.cmake COMPATIBILITY SameMinorVersion)
file(GLOB find_modules ${CMAKE_CURRENT_LIST_DIR}/Find*.cmake)
install(FILES ${generated_dir}/tpce-config.cmake ${generated_dir}/tpce-config-version.cmake ${find_modules}
  DESTINATION ${package_dir})

if(TARGET tpce)
  install(TARGETS tpce RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
