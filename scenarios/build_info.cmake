# Writes OUTPUT from TEMPLATE with the commit of SOURCE_DIR; outside a checkout, or without git, the commit is empty.
find_program(GIT git)
set(COMMIT "")
set(DIRTY false)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse HEAD
    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(DIRTY true)
  endif()
endif()
if(SANITIZE)
  string(APPEND FLAGS " -fsanitize=${SANITIZE}")
endif()
string(STRIP "${FLAGS}" FLAGS)
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
