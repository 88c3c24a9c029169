# The card's attention: attention_sources and attention_libraries of lib/backend.
set(attention_sources
  cuda/attention.cpp
  cuda/attention_general_backward.cu
  cuda/attention_general_forward.cu
  cuda/attention_scalars.cu
  cuda/attention_tensor.cpp
  cuda/attention_widen.cu
  cuda/tensor_map.cpp)
set(attention_libraries "")

# Hopper's own matrix instructions, which no other architecture has and no PTX carries on.
add_library(fp8lab_hopper OBJECT
  cuda/attention_tensor_backward.cu
  cuda/attention_tensor_forward.cu
  cuda/attention_tensor_rows.cu)
set_target_properties(fp8lab_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
target_include_directories(fp8lab_hopper PRIVATE ${PROJECT_SOURCE_DIR}/lib)
target_link_libraries(fp8lab_hopper PRIVATE fp8lab_settings)
list(APPEND attention_sources $<TARGET_OBJECTS:fp8lab_hopper>)

# Attention through cuDNN: its headers and those of its header-only frontend are needed when the project is built, the library itself is
# looked for when a program runs, last where it is now.
#   FP8LAB_CUDNN_FRONTEND_INCLUDE: the folder with cudnn_frontend.h. The Python package nvidia-cudnn-frontend has it, and is found.
#   FP8LAB_CUDNN_INCLUDE: the folder with cudnn.h. The CUDA Toolkit's may have it; the Python package nvidia-cudnn-cu13 does.

set(python_packages "")
find_program(FP8LAB_PYTHON python3)
mark_as_advanced(FP8LAB_PYTHON)
if(FP8LAB_PYTHON)
  execute_process(COMMAND ${FP8LAB_PYTHON} -c "import site, sys; print(';'.join(p for p in sys.path if p.endswith('-packages')))"
    OUTPUT_VARIABLE python_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(frontend_hints "")
set(cudnn_hints ${CUDAToolkit_INCLUDE_DIRS})
set(cudnn_library_hints ${CUDAToolkit_LIBRARY_DIR})
foreach(packages ${python_packages})
  list(APPEND frontend_hints ${packages}/include)
  list(APPEND cudnn_hints ${packages}/nvidia/cudnn/include)
  list(APPEND cudnn_library_hints ${packages}/nvidia/cudnn/lib)
endforeach()
find_path(FP8LAB_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${frontend_hints})
find_path(FP8LAB_CUDNN_INCLUDE cudnn_backend.h HINTS ${FP8LAB_CUDNN_FRONTEND_INCLUDE} ${cudnn_hints})
find_library(FP8LAB_CUDNN_LIBRARY NAMES libcudnn.so.9 cudnn HINTS ${cudnn_library_hints})
find_library(FP8LAB_NVRTC_LIBRARY NAMES libnvrtc.so.13 nvrtc HINTS ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(FP8LAB_CUDNN_LIBRARY FP8LAB_NVRTC_LIBRARY)

if(FP8LAB_CUDNN_FRONTEND_INCLUDE AND FP8LAB_CUDNN_INCLUDE)
  list(APPEND attention_sources cuda/attention_cudnn.cpp cuda/cudnn_library.cpp)
  list(APPEND attention_libraries fp8lab_cudnn_headers)
  fp8lab_folder_of(FP8LAB_CUDNN_FOLDER "${FP8LAB_CUDNN_LIBRARY}" cuda/cudnn_library.cpp)
  fp8lab_folder_of(FP8LAB_NVRTC_FOLDER "${FP8LAB_NVRTC_LIBRARY}" cuda/cudnn_library.cpp)
  # Headers that make graphs, once for each shape; optimising them would take minutes.
  set_source_files_properties(cuda/attention_cudnn.cpp PROPERTIES COMPILE_OPTIONS -O1)
  add_library(fp8lab_cudnn_headers INTERFACE)
  target_include_directories(fp8lab_cudnn_headers SYSTEM INTERFACE ${FP8LAB_CUDNN_FRONTEND_INCLUDE} ${FP8LAB_CUDNN_INCLUDE})
  target_compile_definitions(fp8lab_cudnn_headers INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
  message(STATUS "Attention through cuDNN: ${FP8LAB_CUDNN_FRONTEND_INCLUDE}")
else()
  list(APPEND attention_sources cuda/attention_no_cudnn.cpp)
  message(STATUS "Attention through cuDNN: not built (needs cudnn.h and the Python package nvidia-cudnn-frontend)")
endif()
