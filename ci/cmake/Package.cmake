# What `cmake --install BUILD --component library` installs: the modules of lib/ as static libraries, their headers, and a CMake
# package, in which the module fp8lab_<module> is fp8lab::<module>.
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fp8lab)
install(EXPORT fp8lab NAMESPACE fp8lab:: FILE fp8labTargets.cmake DESTINATION ${package} COMPONENT library)
install(DIRECTORY lib/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fp8lab COMPONENT library
  FILES_MATCHING PATTERN "*.h" REGEX "/lib/subjects$" EXCLUDE)

# The libraries that those which were built need.
set(FP8LAB_NEEDS Threads fmt yaml-cpp nlohmann_json CLI11)
if(FP8LAB_WITH_CUDA)
  list(APPEND FP8LAB_NEEDS CUDAToolkit)
endif()
configure_file(ci/cmake/fp8labConfig.cmake.in fp8labConfig.cmake @ONLY)
write_basic_package_version_file(fp8labConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fp8labConfig.cmake ${PROJECT_BINARY_DIR}/fp8labConfigVersion.cmake
  DESTINATION ${package} COMPONENT library)
