# Writes OUTPUT: a line FP8LAB_CUDNN(function) or FP8LAB_NVRTC(function) for each function of these libraries that the
# object files OBJECTS call. NM lists the undefined symbols of an object file.
execute_process(COMMAND ${NM} --undefined-only ${OBJECTS} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "U (cudnn|nvrtc)[A-Z][A-Za-z0-9_]*" names "${symbols}")
list(SORT names)
list(REMOVE_DUPLICATES names)
if(NOT names)
  message(FATAL_ERROR "no call of cuDNN found in ${OBJECTS}; objects for link-time optimisation cannot be read here")
endif()
list(TRANSFORM names REPLACE "^U (cudnn.*)$" "FP8LAB_CUDNN(\\1)\n")
list(TRANSFORM names REPLACE "^U (nvrtc.*)$" "FP8LAB_NVRTC(\\1)\n")
list(JOIN names "" text)
file(WRITE ${OUTPUT} "${text}")
