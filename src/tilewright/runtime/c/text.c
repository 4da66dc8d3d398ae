/* text.c - error messages and strings. The formatting is our own because wasm32 has no C library; all targets
 * use the same code. */
#include "internal.h"

#include <stdarg.h>

#define CAPACITY 1024 /* bytes of an error message, including the final zero byte */

/* Returns the calling thread's message. */
static char* last_error(void) {
#if TW_THREADS && !TW_THREAD_LOCALS
  return tw_thread_memory(CAPACITY);
#else
  static
#if TW_THREAD_LOCALS
      _Thread_local
#endif
      char message[CAPACITY];
  return message;
#endif
}

/* Writes text to a buffer of fixed size; text that does not fit is cut. */
typedef struct {
  char* next; /* the position of the next character */
  char* end;  /* the last byte of the buffer, which is kept for the final zero byte */
} writer;

static void put(writer* out, const char* text) {
  while (*text && out->next < out->end) *out->next++ = *text++;
}

static void put_int(writer* out, int64_t value) {
  char digits[24];
  int first = (int)sizeof digits - 1;
  digits[first] = 0;
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do digits[--first] = (char)('0' + rest % 10);
  while ((rest /= 10) > 0);
  if (value < 0) digits[--first] = '-';
  put(out, digits + first);
}

int tw_fail(int status, const char* format, ...) {
  char* message = last_error();
  writer out = {message, message + CAPACITY - 1};
  va_list arguments;
  va_start(arguments, format);
  for (; *format; ++format) {
    if (*format == '%' && format[1] == 's') {
      const char* text = va_arg(arguments, const char*);
      put(&out, text ? text : "?");
      ++format;
    } else if (*format == '%' && format[1] == 'd') {
      put_int(&out, va_arg(arguments, int64_t));
      ++format;
    } else if (out.next < out.end) {
      *out.next++ = *format;
    }
  }
  va_end(arguments);
  *out.next = 0;
  return status;
}

void tw_clear_error(void) { last_error()[0] = 0; }

const char* tw_last_error(void) { return last_error(); }

const char* tw_dtype_name(int32_t code, int32_t bits, char* name) {
  static const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  static const char* const narrow_floats[] = {"e3m4",     "e4m3",   "e4m3b11fnuz", "e4m3fn",
                                              "e4m3fnuz", "e5m2",   "e5m2fnuz",    "e8m0fnu",
                                              "e2m3fn",   "e3m2fn", "e2m1fn"};
  writer out = {name, name + 31};
  if (code >= 7 && code < 18) { /* DLPack's codes 7 to 17: floats of 8 bits, then of 6 and 4 bits */
    put(&out, "float");
    put_int(&out, bits);
    put(&out, "_");
    put(&out, narrow_floats[code - 7]);
  } else if (code >= 0 && code < 7) {
    put(&out, kinds[code]);
    if (code != kDLBool || bits != 8) put_int(&out, bits);
  } else {
    put(&out, "dtype ");
    put_int(&out, code);
    put(&out, " of ");
    put_int(&out, bits);
    put(&out, " bits");
  }
  *out.next = 0;
  return name;
}

int tw_text_equal(const char* left, const char* right) {
  while (*left && *left == *right) ++left, ++right;
  return *left == *right;
}
