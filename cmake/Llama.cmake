# llama.cpp's static libraries, built once per machine in the per-user cache, as the targets
# holdfast::ggml (tensors, GGUF, the CPU backend) and holdfast::llama (vocabularies, chat templates).
if(HOLDFAST_LLAMA_DIR)
  set(llama_source ${HOLDFAST_LLAMA_DIR})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(llama_source $ENV{XDG_CACHE_HOME}/holdfast/llama.cpp-0.3.36)
else()
  set(llama_source $ENV{HOME}/.cache/holdfast/llama.cpp-0.3.36)
endif()
if(NOT EXISTS ${llama_source}/include/llama.h)
  message(FATAL_ERROR "There is no llama.cpp in '${llama_source}': run scripts/fetch.sh, or set HOLDFAST_LLAMA_DIR.")
endif()

execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/build-llama.sh ${llama_source}
  OUTPUT_VARIABLE llama_build OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

# llama_library(NAME PATH USES...)
function(llama_library name path)
  add_library(${name} STATIC IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${llama_build}/${path} INTERFACE_LINK_LIBRARIES "${ARGN}")
endfunction()
llama_library(llama_ggml_base ggml/src/libggml-base.a Threads::Threads ${CMAKE_DL_LIBS} m)
llama_library(llama_ggml_cpu ggml/src/libggml-cpu.a llama_ggml_base)
llama_library(llama_ggml ggml/src/libggml.a llama_ggml_cpu llama_ggml_base)
llama_library(llama_core src/libllama.a llama_ggml)
llama_library(llama_httplib vendor/cpp-httplib/libcpp-httplib.a Threads::Threads)
llama_library(llama_common_base common/libllama-common-base.a llama_core)
llama_library(llama_common common/libllama-common.a llama_common_base llama_core llama_httplib)

add_library(holdfast::ggml ALIAS llama_ggml)
target_include_directories(llama_ggml SYSTEM INTERFACE ${llama_source}/ggml/include)
add_library(holdfast::llama ALIAS llama_common)
target_include_directories(llama_common SYSTEM INTERFACE
  ${llama_source}/include ${llama_source}/common ${llama_source}/vendor)
