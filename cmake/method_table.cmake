# Writes the table of all methods: one row per src/methods/<stem>.cc, in sorted order. Adding a
# method is adding its file; nothing else names it. Files named method_* are shared helpers.
function(vq_method_table output_variable)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/methods/*.cc)
  set(stems "")
  foreach(source IN LISTS sources)
    get_filename_component(stem ${source} NAME_WE)
    if(NOT stem MATCHES "^method_")
      list(APPEND stems ${stem})
    endif()
  endforeach()
  list(SORT stems)
  list(LENGTH stems count)

  set(declarations "")
  set(rows "")
  foreach(stem IN LISTS stems)
    string(APPEND declarations "extern const MethodDef method_${stem};\n")
    string(APPEND rows "    &method_${stem},\n")
  endforeach()

  set(file ${PROJECT_BINARY_DIR}/gen/method_table.gen.cc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/method_table.cc.in ${file} @ONLY)  # writes only changes
  set(${output_variable} ${file} PARENT_SCOPE)
endfunction()
