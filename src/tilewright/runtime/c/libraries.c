/* libraries.c - opens vendors' libraries that an artifact calls. */
#include "libraries.h"

#include "internal.h"
#include "platform.h"

#if defined(TW_LIBRARIES)

/* Finds the functions of a library. Returns the name of the first that it lacks. */
static const char* find_functions(const tw_vendor_library* library, void* opened) {
  for (int i = 0; library->functions[i]; ++i) {
    void* found = tw_library_symbol(opened, library->functions[i]);
    if (!found) return library->functions[i];
    __atomic_store_n(&library->addresses[i], found, __ATOMIC_RELEASE);
  }
  return NULL;
}

int tw_open_libraries(void* first) {
  for (int k = 0; k < tw_num_vendor_libraries; ++k) {
    const tw_vendor_library* library = &tw_vendor_libraries[k];
    if (first && tw_library_symbol(first, library->functions[0])) {
      find_functions(library, first);
      continue;
    }
    const char* file = tw_environment(library->variable);
    void* opened = file ? tw_library_open(file) : NULL;
    for (int i = 0; !file && !opened && library->files[i]; ++i) opened = tw_library_open(library->files[i]);
    if (!opened)
      return tw_fail(TW_ERROR_FILE,
                     "the model calls the library '%s', but %s was not found: install it (pip install %s), "
                     "or name its file in %s",
                     library->name, file ? file : library->files[0], library->package, library->variable);
    const char* missing = find_functions(library, opened);
    if (missing)
      return tw_fail(TW_ERROR_FILE, "the library '%s' has no function %s: install a newer version of %s",
                     library->name, missing, library->package);
  }
  return TW_OK;
}

#else
typedef int tw_libraries_unused; /* C11 requires a declaration in every file */
#endif
