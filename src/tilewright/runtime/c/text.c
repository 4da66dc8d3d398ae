/* text.c - error messages, without the C library's formatting: one path for every target. */
#include "internal.h"

#include <stdarg.h>

#define CAPACITY 1024

static
#if TW_THREADS
    _Thread_local
#endif
    char last_error[CAPACITY];

typedef struct {
  char* at;
  char* end; /* where the final zero goes at the latest */
} writer;

static void put(writer* out, const char* text) {
  while (*text && out->at < out->end) *out->at++ = *text++;
}

static void put_int(writer* out, int64_t value) {
  char digits[24];
  int at = (int)sizeof digits - 1;
  digits[at] = 0;
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do digits[--at] = (char)('0' + rest % 10);
  while ((rest /= 10) > 0);
  if (value < 0) digits[--at] = '-';
  put(out, digits + at);
}

int tw_fail(int status, const char* format, ...) {
  writer out = {last_error, last_error + CAPACITY - 1};
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
    } else if (out.at < out.end) {
      *out.at++ = *format;
    }
  }
  va_end(arguments);
  *out.at = 0;
  return status;
}

void tw_clear_error(void) { last_error[0] = 0; }

const char* tw_last_error(void) { return last_error; }

const char* tw_dtype_name(int32_t code, int32_t bits, char* name) {
  static const char* const names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  static const char* const narrow[] = {"e3m4",   "e4m3",     "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2",
                                       "e5m2fnuz", "e8m0fnu", "e2m3fn",     "e3m2fn", "e2m1fn"};
  writer out = {name, name + 31};
  if (code >= 7 && code < 18) { /* DLPack's floats of 8 bits, then of 6 and 4 */
    put(&out, "float");
    put_int(&out, bits);
    put(&out, "_");
    put(&out, narrow[code - 7]);
  } else if (code >= 0 && code < 7) {
    put(&out, names[code]);
    if (code != kDLBool || bits != 8) put_int(&out, bits);
  } else {
    put(&out, "dtype ");
    put_int(&out, code);
    put(&out, " of ");
    put_int(&out, bits);
    put(&out, " bits");
  }
  *out.at = 0;
  return name;
}

int tw_text_equal(const char* left, const char* right) {
  while (*left && *left == *right) ++left, ++right;
  return *left == *right;
}
