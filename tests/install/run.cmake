# Installs TPCE_BUILD_DIR below WORK_DIR, then builds and runs CONSUMER_DIR with CMake and with pkg-config.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${output}")
  endif()
  message("${output}")
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${TPCE_BUILD_DIR} --prefix ${WORK_DIR}/prefix)
# The tree must not depend on where it was installed.
file(RENAME ${WORK_DIR}/prefix ${WORK_DIR}/moved)
set(prefix ${WORK_DIR}/moved)
if(EXISTS ${prefix}/bin/tpce)
  run(${prefix}/bin/tpce --version)
endif()

run(${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/cmake -G Ninja
  -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/cmake)
run(${WORK_DIR}/cmake/consumer)
run(${WORK_DIR}/cmake/every_component)

# pkg_config_build(<source> <modules...>): compiles and links by what pkg-config says alone, and runs.
function(pkg_config_build source)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ${ARGN}
    OUTPUT_VARIABLE flags RESULT_VARIABLE code ERROR_VARIABLE error OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "pkg-config ${ARGN}: ${error}")
  endif()
  separate_arguments(flags UNIX_COMMAND "${flags}")
  separate_arguments(CXX_FLAGS UNIX_COMMAND "${CXX_FLAGS}")
  run(${CXX} -std=c++20 ${CXX_FLAGS} ${CONSUMER_DIR}/${source}.cc ${flags} -Wl,-rpath,${prefix}/${LIBDIR}
    -o ${WORK_DIR}/${source})
  run(${WORK_DIR}/${source})
endfunction()

set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
file(GLOB modules RELATIVE ${prefix}/${LIBDIR}/pkgconfig ${prefix}/${LIBDIR}/pkgconfig/*.pc)
list(TRANSFORM modules REPLACE "\\.pc$" "")
pkg_config_build(consumer tpce)
pkg_config_build(every_component ${modules})
