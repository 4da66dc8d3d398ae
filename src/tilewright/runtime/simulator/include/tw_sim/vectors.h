/* Vector types of CUDA C++ and HIP, with the sizes and alignments that the CUDA programming guide lists. */
#ifndef TW_SIM_VECTORS_H
#ifdef TW_SIM_CHECKED
/* Copies are functions, because the compiler checks the alignment of what a reference is bound to. */
#define TW_SIM_VECTOR2(name, base, align)                          \
  struct __attribute__((aligned(align))) name {                    \
    base x, y;                                                     \
    name() = default;                                              \
    TW_SIM_LIGHT constexpr name(base x, base y) : x(x), y(y) {}    \
    TW_SIM_LIGHT constexpr name(const name& o) : x(o.x), y(o.y) {} \
    TW_SIM_LIGHT constexpr name& operator=(const name& o) {        \
      x = o.x, y = o.y;                                            \
      return *this;                                                \
    }                                                              \
  };
#define TW_SIM_VECTOR4(name, base, align)                                                   \
  struct __attribute__((aligned(align))) name {                                             \
    base x, y, z, w;                                                                        \
    name() = default;                                                                       \
    TW_SIM_LIGHT constexpr name(base x, base y, base z, base w) : x(x), y(y), z(z), w(w) {} \
    TW_SIM_LIGHT constexpr name(const name& o) : x(o.x), y(o.y), z(o.z), w(o.w) {}          \
    TW_SIM_LIGHT constexpr name& operator=(const name& o) {                                 \
      x = o.x, y = o.y, z = o.z, w = o.w;                                                   \
      return *this;                                                                         \
    }                                                                                       \
  };
#else
#define TW_SIM_VECTOR2(name, base, align)       \
  struct __attribute__((aligned(align))) name { \
    base x, y;                                  \
  };
#define TW_SIM_VECTOR4(name, base, align)       \
  struct __attribute__((aligned(align))) name { \
    base x, y, z, w;                            \
  };
#endif

#define TW_SIM_VECTOR(name, base, align2, align4)                                              \
  struct name##1 { base x; };                                                                  \
  TW_SIM_VECTOR2(name##2, base, align2)                                                        \
  struct name##3 { base x, y, z; };                                                            \
  TW_SIM_VECTOR4(name##4, base, align4)                                                        \
  static inline constexpr name##1 make_##name##1(base x) { return {x}; }                       \
  static inline constexpr name##2 make_##name##2(base x, base y) { return {x, y}; }            \
  static inline constexpr name##3 make_##name##3(base x, base y, base z) { return {x, y, z}; } \
  static inline constexpr name##4 make_##name##4(base x, base y, base z, base w) { return {x, y, z, w}; }

TW_SIM_VECTOR(char, signed char, 2, 4)
TW_SIM_VECTOR(uchar, unsigned char, 2, 4)
TW_SIM_VECTOR(short, short, 4, 8)
TW_SIM_VECTOR(ushort, unsigned short, 4, 8)
TW_SIM_VECTOR(int, int, 8, 16)
TW_SIM_VECTOR(uint, unsigned int, 8, 16)
TW_SIM_VECTOR(long, long, 16, 16)
TW_SIM_VECTOR(ulong, unsigned long, 16, 16)
TW_SIM_VECTOR(longlong, long long, 16, 16)
TW_SIM_VECTOR(ulonglong, unsigned long long, 16, 16)
TW_SIM_VECTOR(float, float, 8, 16)
TW_SIM_VECTOR(double, double, 16, 16)
#undef TW_SIM_VECTOR
#endif
