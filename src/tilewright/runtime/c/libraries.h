/* libraries.h - vendors' libraries that an artifact calls.
 *
 * A library with TW_LIBRARIES contains a table of them, which the compiler makes. They are opened when the
 * first context is created; an absent one is an error that names it. */
#ifndef TILEWRIGHT_LIBRARIES_H_
#define TILEWRIGHT_LIBRARIES_H_

typedef struct {
  const char* name;             /* as in the compiler's option */
  const char* variable;         /* of the environment, which may have the path */
  const char* package;          /* the Python package that has it */
  const char* const* files;     /* names for the system's loader, ending with NULL */
  const char* const* functions; /* names, ending with NULL */
  void** addresses;             /* of the functions, which tw_open_libraries writes */
} tw_vendor_library;

extern const tw_vendor_library tw_vendor_libraries[];
extern const int tw_num_vendor_libraries;

/* Opens all libraries and finds their functions. Those of `first`, an opened library or NULL, are taken where
 * it has them. Returns a tw_status. */
int tw_open_libraries(void* first);

#endif /* TILEWRIGHT_LIBRARIES_H_ */
