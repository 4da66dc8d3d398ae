# The target @name@::@name@. find_package(@name@ CONFIG REQUIRED PATHS FOLDER) reads this file.
cmake_minimum_required(VERSION 3.16)

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" _@name@_processor)
if(CMAKE_GENERATOR_PLATFORM)
  string(TOLOWER "${CMAKE_GENERATOR_PLATFORM}" _@name@_processor)
endif()
if(CMAKE_OSX_ARCHITECTURES)
  string(TOLOWER "${CMAKE_OSX_ARCHITECTURES}" _@name@_processor)
endif()
set(_@name@_default "")
@choices@
set(@upper@_TARGET "${_@name@_default}" CACHE STRING "The library of @name@: @places@")
set(_@name@_base "${CMAKE_CURRENT_LIST_DIR}/lib/${@upper@_TARGET}")
if(@upper@_TARGET STREQUAL "" OR NOT IS_DIRECTORY "${_@name@_base}")
  message(FATAL_ERROR "@name@ has libraries for @places@, not for ${CMAKE_SYSTEM_NAME} on "
    "${_@name@_processor}; set @upper@_TARGET to choose one")
endif()

if(NOT TARGET @name@::@name@)
  add_library(@name@::@name@ @library_kind@ IMPORTED GLOBAL)
  set_target_properties(@name@::@name@ PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
@properties@
endif()
