# cmake -DSOURCE_DIR=... -DOUTPUT=... -P commit.cmake
# Writes the C++ source that says which commit the sources are of, "782eae41b9c2" or, where a tracked file differs from it,
# "782eae41b9c2-dirty"; nothing where they are no git checkout. Run by every build, so it writes only what has changed.
foreach(variable GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE) # of a hook that builds
  unset(ENV{${variable}})
endforeach()

function(git out)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE_DIR} ${ARGN}
    OUTPUT_VARIABLE output RESULT_VARIABLE code ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${out} "${output}" PARENT_SCOPE)
  set(code "${code}" PARENT_SCOPE)
endfunction()

set(commit "")
git(top rev-parse --show-toplevel)
file(REAL_PATH "${SOURCE_DIR}" sources)
# Not the commit of another project that the sources were unpacked in.
if(code EQUAL 0 AND top STREQUAL sources)
  git(head rev-parse --verify HEAD)
  if(code EQUAL 0)
    # Cut here: how far git itself shortens depends on what else the clone holds.
    string(SUBSTRING "${head}" 0 12 commit)
    git(changes status --porcelain --untracked-files=no)
    if(NOT changes STREQUAL "")
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()

file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[#include "tools/build_info.h"

const char* const tpce::tools::kCommit = "@commit@";
]] @ONLY)
