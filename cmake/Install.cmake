# cmake --install: the command with its completions and manual pages, the shared library, its headers and its
# CMake package holdfast.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Static libraries inside keep their names to themselves, so that a program may use a llama.cpp of its own.
set(inner libllama.a libllama-common.a libllama-common-base.a libggml.a libggml-base.a libggml-cpu.a libcpp-httplib.a)
list(JOIN inner ":" inner)
add_library(holdfast_shared SHARED $<TARGET_OBJECTS:holdfast_api>)
target_link_libraries(holdfast_shared PRIVATE holdfast_engine holdfast_text holdfast_options)
target_link_options(holdfast_shared PRIVATE -Wl,--exclude-libs,${inner} -Wl,--no-undefined)
target_include_directories(holdfast_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(holdfast_shared PROPERTIES OUTPUT_NAME holdfast EXPORT_NAME holdfast
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

install(TARGETS holdfast)
install(TARGETS holdfast_shared EXPORT holdfast)
install(DIRECTORY include/holdfast TYPE INCLUDE)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/holdfast)
install(EXPORT holdfast NAMESPACE holdfast:: DESTINATION ${package} FILE holdfastConfig.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/holdfastConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/holdfastConfigVersion.cmake DESTINATION ${package})

# Manual pages and completions: what the command says of itself.
set(manual ${PROJECT_BINARY_DIR}/manual)
add_custom_command(OUTPUT ${manual}/holdfast.bash COMMAND holdfast manual --write ${manual} DEPENDS holdfast VERBATIM)
add_custom_target(manual ALL DEPENDS ${manual}/holdfast.bash)
install(DIRECTORY ${manual}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${manual}/holdfast.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME holdfast)
install(FILES ${manual}/_holdfast DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${manual}/holdfast.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
