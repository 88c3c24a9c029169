# The rest of what `cmake --install BUILD --component program` installs: documents, and what the program prints about itself,
# its manual page and the completion of its command line, in the places where Debian's man and shells look. `cpack
# --config BUILD/CPackConfig.cmake` makes a Debian package of the component.
set(maintainer "fp8lab maintainers <maintainers@users.noreply.a-seed-9ed8ec0b.example>")
set(pages ${CMAKE_CURRENT_BINARY_DIR}/pages)
set(doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/fp8lab)

configure_file(${PROJECT_SOURCE_DIR}/ci/cmake/copyright.in ${pages}/copyright @ONLY)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${pages}/changelog "fp8lab (${PROJECT_VERSION}) unstable; urgency=medium

  * Release ${PROJECT_VERSION}.

 -- ${maintainer}  ${date}
")
install(CODE "
  set(ENV{FP8LAB_CPU_ISA} \"\")
  foreach(page \"man:fp8lab.1\" \"completion bash:fp8lab\" \"completion zsh:_fp8lab\" \"completion fish:fp8lab.fish\")
    string(REGEX MATCH \"^(.*):(.*)$\" page \"\${page}\")
    separate_arguments(words UNIX_COMMAND \"\${CMAKE_MATCH_1}\")
    execute_process(COMMAND \"$<TARGET_FILE:fp8lab>\" \${words} OUTPUT_FILE \"${pages}/\${CMAKE_MATCH_2}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  foreach(page fp8lab.1 changelog)
    file(ARCHIVE_CREATE OUTPUT \"${pages}/\${page}.gz\" PATHS \"${pages}/\${page}\" FORMAT raw COMPRESSION GZip
      COMPRESSION_LEVEL 9 MTIME 0)
  endforeach()
" COMPONENT program)
install(FILES ${pages}/fp8lab.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
install(FILES ${pages}/fp8lab DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions COMPONENT program)
install(FILES ${pages}/_fp8lab DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions COMPONENT program)
install(FILES ${pages}/fp8lab.fish DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d COMPONENT program)
install(FILES ${pages}/copyright ${pages}/changelog.gz ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc} COMPONENT program)

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CONTACT "${maintainer}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "Runs a small, complete training runtime in which defects of FP8 libraries are named switches, and
 measures training before and after each fix: memory, traffic, host time and
 numerical parity with BF16. Plans whether training fits in memory.")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME fp8lab)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # the libraries that the program is linked with
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, python3-matplotlib, python3-jinja2, python3-fastjsonschema")  # for `fp8lab report`
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-venv")  # for `fp8lab subjects --install`
include(CPack)
