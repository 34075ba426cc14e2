# Finds nvcc, and compiles kernels with it. The CUDA language of CMake is not used: kernels are compiled for the device alone,
# and their machine code is data of an ordinary library, so that host compiler, sanitizers and whoever links the library
# need nothing of CUDA (gpu/cuda_device.cc).
set(TPCE_CUDA AUTO CACHE STRING "Compile the CUDA kernels: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE TPCE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TPCE_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities that kernels are compiled for")
set(TPCE_CUDA_DEFAULT_FOLDER /usr/local/cuda CACHE PATH "Where a toolkit is looked for last")
mark_as_advanced(TPCE_CUDA_DEFAULT_FOLDER)
# The first that knows sm_100.
set(TPCE_NVCC_MINIMUM 12.8)

# Sets TPCE_NVCC, TPCE_NVCC_VERSION and TPCE_CUDA_TOOLKIT to the first nvcc that will do and its folder, and TPCE_NVCC_REFUSED to those
# that will not.
function(tpce_find_nvcc)
  set(candidates)
  foreach(named "${CMAKE_CUDA_COMPILER}" "$ENV{CUDACXX}")
    if(named)
      unset(named_nvcc)
      find_program(named_nvcc NAMES "${named}" NO_CACHE)
      list(APPEND candidates "${named_nvcc}")
    endif()
  endforeach()
  if(NOT candidates)
    # In this order; find_program() would mix it.
    foreach(folder $ENV{PATH} $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin ${PROJECT_SOURCE_DIR}/build/cuda/bin
        ${TPCE_CUDA_DEFAULT_FOLDER}/bin)
      string(REPLACE ":" ";" folders "${folder}")
      foreach(one ${folders})
        if(EXISTS ${one}/nvcc)
          list(APPEND candidates ${one}/nvcc)
        endif()
      endforeach()
    endforeach()
  endif()
  set(refused)
  foreach(candidate ${candidates})
    execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
    if(NOT code EQUAL 0 OR NOT output MATCHES "release [0-9.]+, V([0-9.]+)")
      string(APPEND refused "\n  ${candidate} does not run")
    elseif(CMAKE_MATCH_1 VERSION_LESS TPCE_NVCC_MINIMUM)
      string(APPEND refused "\n  ${candidate} is ${CMAKE_MATCH_1}, needed is ${TPCE_NVCC_MINIMUM}")
    else()
      set(version ${CMAKE_MATCH_1})
      # An nvcc on PATH may be a script that calls one elsewhere.
      execute_process(COMMAND ${candidate} --dryrun -cubin -x cu /dev/null OUTPUT_VARIABLE output ERROR_VARIABLE output)
      string(REGEX MATCH "TOP=([^\n]+)" found "${output}")
      get_filename_component(toolkit "${CMAKE_MATCH_1}" REALPATH)
      if(found AND EXISTS ${toolkit}/bin/fatbinary AND EXISTS ${toolkit}/include/cuda.h)
        set(TPCE_NVCC ${candidate} PARENT_SCOPE)
        set(TPCE_NVCC_VERSION ${version} PARENT_SCOPE)
        set(TPCE_CUDA_TOOLKIT ${toolkit} PARENT_SCOPE)
        break()
      endif()
      string(APPEND refused "\n  ${candidate} has no bin/fatbinary and include/cuda.h in its folder ${toolkit}")
    endif()
  endforeach()
  set(TPCE_NVCC_REFUSED "${refused}" PARENT_SCOPE)
endfunction()

set(TPCE_NVCC "")
if(TPCE_CUDA STREQUAL "AUTO" AND CMAKE_CROSSCOMPILING)
  message(STATUS "CUDA kernels: left out, since this build is for another machine")
elseif(TPCE_CUDA)
  tpce_find_nvcc()
  if(TPCE_NVCC)
    list(JOIN TPCE_CUDA_ARCHITECTURES ", sm_" architectures)
    message(STATUS "CUDA kernels: sm_${architectures}, by ${TPCE_NVCC} ${TPCE_NVCC_VERSION}")
  elseif(TPCE_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA kernels: left out, no nvcc was found (scripts/get-cuda installs one)${TPCE_NVCC_REFUSED}")
  else()
    message(FATAL_ERROR "TPCE_CUDA is ${TPCE_CUDA}, and no nvcc of version ${TPCE_NVCC_MINIMUM} or later was found on PATH, in CUDA_HOME, or "
      "in build/cuda, where scripts/get-cuda installs one.${TPCE_NVCC_REFUSED}")
  endif()
endif()

# NCCL's header, beside nvcc or where scripts/get-cuda --nccl puts it. TPCE_NCCL_VERSION is set where it will do.
set(TPCE_NCCL_MINIMUM 2.18) # the first whose calls need not block, in the form used here
set(TPCE_NCCL_VERSION "")
if(TPCE_NVCC)
  find_path(TPCE_NCCL_INCLUDE nccl.h HINTS ${TPCE_CUDA_TOOLKIT}/include ${PROJECT_SOURCE_DIR}/build/nccl/include
    DOC "Folder of nccl.h")
  mark_as_advanced(TPCE_NCCL_INCLUDE)
  if(TPCE_NCCL_INCLUDE)
    file(STRINGS ${TPCE_NCCL_INCLUDE}/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^;]*MAJOR ([0-9]+);[^;]*MINOR ([0-9]+)" "\\1.\\2" nccl_version "${nccl_lines}")
    if(nccl_version VERSION_GREATER_EQUAL TPCE_NCCL_MINIMUM)
      set(TPCE_NCCL_VERSION ${nccl_version})
      message(STATUS "NCCL: calls as in ${TPCE_NCCL_INCLUDE}/nccl.h, version ${nccl_version}")
    endif()
  endif()
  if(NOT TPCE_NCCL_VERSION)
    message(STATUS "NCCL: left out, no nccl.h of ${TPCE_NCCL_MINIMUM} or later was found (scripts/get-cuda --nccl installs one)")
  endif()
endif()

# nvcc preprocesses with a host compiler that it must know; it knows g++ best.
find_program(TPCE_CUDA_HOST_COMPILER NAMES g++ clang++ DOC "Compiler whose headers kernels are compiled with")
mark_as_advanced(TPCE_CUDA_HOST_COMPILER)

# tpce_cuda_kernels(<library> <source.cu> ...): compiles each source to a cubin for each architecture, with a .log of registers and
# spills beside it, and adds them to the library as one image, tpce_<name>_image of the source <name>.cu. The properties TPCE_CUBINS and
# TPCE_CUBIN_FOLDER of the library tell where the cubins are.
function(tpce_cuda_kernels library)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cubin)
  set(flags -std=c++20 -O3 -lineinfo -I${PROJECT_SOURCE_DIR} -ccbin ${TPCE_CUDA_HOST_COMPILER}
    # Bits are a promise: no contraction, no flush-to-zero, IEEE division and square root.
    -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
    -Xptxas -v
    # A conversion that a requires-clause rules out is warned of as one that is never used.
    -diag-suppress 554)
  if(TPCE_WERROR)
    list(APPEND flags -Werror all-warnings)
  endif()
  set(all_cubins)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    set(cubins)
    set(images)
    foreach(architecture ${TPCE_CUDA_ARCHITECTURES})
      set(cubin ${folder}/${name}.sm_${architecture}.cubin)
      add_custom_command(OUTPUT ${cubin}
        COMMAND ${CMAKE_COMMAND} -DLOG=${cubin}.log -P ${PROJECT_SOURCE_DIR}/cmake/run_logged.cmake --
          ${TPCE_NVCC} ${flags} -arch=sm_${architecture} -cubin -MD -MF ${cubin}.d -o ${cubin} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
        DEPFILE ${cubin}.d
        COMMENT "Compiling ${source} for sm_${architecture}"
        VERBATIM)
      list(APPEND cubins ${cubin})
      list(APPEND images --image3=kind=elf,sm=${architecture},file=${cubin})
    endforeach()
    set(image ${folder}/${name}.fatbin)
    add_custom_command(OUTPUT ${image}
      COMMAND ${TPCE_CUDA_TOOLKIT}/bin/fatbinary -64 --compress-all --create=${image} ${images}
      DEPENDS ${cubins}
      COMMENT "Joining the machine code of ${source}"
      VERBATIM)
    set(NAME tpce_${name}_image)
    set(FILE ${image})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/embed.cc.in ${folder}/${name}_image.cc @ONLY)
    set_source_files_properties(${folder}/${name}_image.cc PROPERTIES OBJECT_DEPENDS ${image})
    target_sources(${library} PRIVATE ${folder}/${name}_image.cc)
    list(APPEND all_cubins ${cubins})
  endforeach()
  add_custom_target(${library}_cubins DEPENDS ${all_cubins})
  set_target_properties(${library} PROPERTIES TPCE_CUBINS "${all_cubins}" TPCE_CUBIN_FOLDER ${folder})
endfunction()
