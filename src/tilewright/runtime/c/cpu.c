/* cpu.c - checks that the processor and the operating system support the features that the kernels use.
 *
 * The names of features are LLVM's. On x86-64 an instruction set is usable only if the operating system also
 * saves its registers when it switches threads, which XCR0 tells. */
#include "internal.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
enum { SSE_STATE = 0x2, AVX_STATE = 0x6, AVX512_STATE = 0xe6, AMX_STATE = 0x60000, APX_STATE = 0x80000 };

/* clang-format off */
static const struct {
  const char* name;
  uint32_t leaf, subleaf, reg, bit; /* the bit of CPUID */
  uint32_t state;                  /* the bits of XCR0 that must be set */
} known_features[] = {
    {"cx8", 1, 0, EDX, 8, 0},
    {"cmov", 1, 0, EDX, 15, 0},
    {"mmx", 1, 0, EDX, 23, 0},
    {"fxsr", 1, 0, EDX, 24, 0},
    {"sse", 1, 0, EDX, 25, 0},
    {"sse2", 1, 0, EDX, 26, 0},
    {"sse3", 1, 0, ECX, 0, 0},
    {"pclmul", 1, 0, ECX, 1, 0},
    {"ssse3", 1, 0, ECX, 9, 0},
    {"fma", 1, 0, ECX, 12, AVX_STATE},
    {"cx16", 1, 0, ECX, 13, 0},
    {"sse4.1", 1, 0, ECX, 19, 0},
    {"sse4.2", 1, 0, ECX, 20, 0},
    {"crc32", 1, 0, ECX, 20, 0},
    {"movbe", 1, 0, ECX, 22, 0},
    {"popcnt", 1, 0, ECX, 23, 0},
    {"aes", 1, 0, ECX, 25, 0},
    {"xsave", 1, 0, ECX, 26, SSE_STATE},
    {"avx", 1, 0, ECX, 28, AVX_STATE},
    {"f16c", 1, 0, ECX, 29, AVX_STATE},
    {"bmi", 7, 0, EBX, 3, 0},
    {"avx2", 7, 0, EBX, 5, AVX_STATE},
    {"bmi2", 7, 0, EBX, 8, 0},
    {"avx512f", 7, 0, EBX, 16, AVX512_STATE},
    {"avx512dq", 7, 0, EBX, 17, AVX512_STATE},
    {"avx512ifma", 7, 0, EBX, 21, AVX512_STATE},
    {"avx512cd", 7, 0, EBX, 28, AVX512_STATE},
    {"avx512bw", 7, 0, EBX, 30, AVX512_STATE},
    {"avx512vl", 7, 0, EBX, 31, AVX512_STATE},
    {"avx512vbmi", 7, 0, ECX, 1, AVX512_STATE},
    {"avx512vbmi2", 7, 0, ECX, 6, AVX512_STATE},
    {"gfni", 7, 0, ECX, 8, 0},
    {"vaes", 7, 0, ECX, 9, AVX_STATE},
    {"vpclmulqdq", 7, 0, ECX, 10, AVX_STATE},
    {"avx512vnni", 7, 0, ECX, 11, AVX512_STATE},
    {"avx512bitalg", 7, 0, ECX, 12, AVX512_STATE},
    {"avx512vpopcntdq", 7, 0, ECX, 14, AVX512_STATE},
    {"avx512fp16", 7, 0, EDX, 23, AVX512_STATE},
    {"amx-bf16", 7, 0, EDX, 22, AMX_STATE},
    {"amx-tile", 7, 0, EDX, 24, AMX_STATE},
    {"amx-int8", 7, 0, EDX, 25, AMX_STATE},
    {"avxvnni", 7, 1, EAX, 4, AVX_STATE},
    {"avx512bf16", 7, 1, EAX, 5, AVX512_STATE},
    {"amx-fp16", 7, 1, EAX, 21, AMX_STATE},
    {"avxifma", 7, 1, EAX, 23, AVX_STATE},
    {"avxvnniint8", 7, 1, EDX, 4, AVX_STATE},
    {"avxneconvert", 7, 1, EDX, 5, AVX_STATE},
    {"avxvnniint16", 7, 1, EDX, 10, AVX_STATE},
    {"avx10.1", 7, 1, EDX, 19, AVX512_STATE},
    {"egpr", 7, 1, EDX, 21, APX_STATE},
    {"sahf", 0x80000001, 0, ECX, 0, 0},
    {"lzcnt", 0x80000001, 0, ECX, 5, 0},
};
/* clang-format on */

/* The bits of XCR0: the sets of registers that the operating system saves. */
static uint64_t enabled_state(void) {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* no OSXSAVE, so xgetbv is not allowed */
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (uint64_t)d << 32 | a;
}

/* Returns NULL if the feature can be used, else the reason why not, for an error message. */
static const char* why_unavailable(const char* feature) {
  for (size_t i = 0; i < sizeof known_features / sizeof *known_features; ++i) {
    if (!tw_text_equal(known_features[i].name, feature)) continue;
    uint32_t registers[4] = {0};
    if (!__get_cpuid_count(known_features[i].leaf, known_features[i].subleaf, &registers[EAX],
                           &registers[EBX], &registers[ECX], &registers[EDX]) ||
        !(registers[known_features[i].reg] >> known_features[i].bit & 1))
      return "the processor does not have it";
    if ((enabled_state() & known_features[i].state) != known_features[i].state)
      return "the operating system has not enabled it";
    if (known_features[i].state == AMX_STATE && !tw_request_amx())
      return "the operating system does not permit this process to use it";
    return NULL;
  }
  return "this runtime cannot detect it";
}

#elif defined(__aarch64__)

/* clang-format off */
static const struct {
  const char *name, *apple;
  int word, bit; /* bit of AT_HWCAP (word 1) or AT_HWCAP2 (word 2): Linux, arch/arm64, elf_hwcaps */
  int windows;   /* PF_ARM_...: IsProcessorFeaturePresent; 0: it tells nothing */
} known_features[] = {
    {"aes", "hw.optional.arm.FEAT_AES", 1, 3, 30},
    {"sha2", "hw.optional.arm.FEAT_SHA256", 1, 6, 30},
    {"crc", "hw.optional.armv8_crc32", 1, 7, 31},
    {"lse", "hw.optional.arm.FEAT_LSE", 1, 8, 34},
    {"fullfp16", "hw.optional.arm.FEAT_FP16", 1, 10, 67},
    {"rdm", "hw.optional.arm.FEAT_RDM", 1, 12, 0},
    {"jsconv", "hw.optional.arm.FEAT_JSCVT", 1, 13, 44},
    {"complxnum", "hw.optional.arm.FEAT_FCMA", 1, 14, 0},
    {"rcpc", "hw.optional.arm.FEAT_LRCPC", 1, 15, 45},
    /* macOS 11 has no name for dot products. Apple's processors have them if they have this feature. */
    {"dotprod", "hw.optional.armv8_2_fhm", 1, 20, 43},
    {"sve", "hw.optional.arm.FEAT_SVE", 1, 22, 46},
    {"fp16fml", "hw.optional.arm.FEAT_FHM", 1, 23, 0},
    {"sve2", "hw.optional.arm.FEAT_SVE2", 2, 1, 47},
    {"i8mm", "hw.optional.arm.FEAT_I8MM", 2, 13, 66},
    {"bf16", "hw.optional.arm.FEAT_BF16", 2, 14, 68},
    {"sme", "hw.optional.arm.FEAT_SME", 2, 23, 0},
};
/* clang-format on */

/* Returns the bits of a register of SVE, which the processor must have. */
static int sve_bits(void) {
  register uint64_t bytes __asm__("x0");
  __asm__ volatile(".inst 0x04bf5020" : "=r"(bytes)); /* rdvl x0, #1, which assemblers know with +sve only */
  return (int)(8 * bytes);
}

/* Returns NULL if the registers of SVE have the number of bits in `digits`, else the reason why not. */
static const char* why_other_width(const char* digits) {
  int bits = 0;
  for (; *digits >= '0' && *digits <= '9'; ++digits) bits = 10 * bits + (*digits - '0');
  if (bits < 128 || *digits) return "this runtime cannot detect it";
  return sve_bits() == bits ? NULL : "the processor's registers of SVE have another width";
}

static const char* why_unavailable(const char* feature) {
  /* Programs for 64-bit ARM may use these on every system. */
  if (tw_text_equal(feature, "fp-armv8") || tw_text_equal(feature, "neon")) return NULL;
  if (feature[0] == 's' && feature[1] == 'v' && feature[2] == 'e' && feature[3] >= '0' && feature[4]) {
    const char* missing = why_unavailable("sve");
    return missing ? missing : why_other_width(feature + 3);
  }
  for (size_t i = 0; i < sizeof known_features / sizeof *known_features; ++i) {
    if (!tw_text_equal(known_features[i].name, feature)) continue;
#if defined(__APPLE__)
    return tw_sysctl_feature(known_features[i].apple) ? NULL : "the processor does not have it";
#elif defined(__linux__)
    return tw_hwcap(known_features[i].word) >> known_features[i].bit & 1 ? NULL
                                                                         : "the processor does not have it";
#elif defined(_WIN32)
    if (!known_features[i].windows) return "the runtime cannot detect it on this operating system";
    return tw_has_feature(known_features[i].windows) ? NULL : "the processor does not have it";
#else
    return "the runtime cannot detect it on this operating system";
#endif
  }
  return "this runtime cannot detect it";
}

#elif defined(__arm__)

static const char* why_unavailable(const char* feature) {
  /* Bits of AT_HWCAP: Linux, arch/arm, uapi/asm/hwcap.h */
  static const struct {
    const char* name;
    int bit;
  } known_features[] = {{"neon", 12}, {"vfp3", 13}, {"vfp4", 16}};
  if (tw_text_equal(feature, "v7")) return NULL; /* this code itself is for ARMv7 */
  for (size_t i = 0; i < sizeof known_features / sizeof *known_features; ++i)
    if (tw_text_equal(known_features[i].name, feature))
      return tw_hwcap(1) >> known_features[i].bit & 1 ? NULL : "the processor does not have it";
  return "this runtime cannot detect it";
}

#elif defined(__riscv)

static const char* why_unavailable(const char* feature) {
  const char* missing = "the processor does not have it";
  if (feature[0] && !feature[1]) /* The extension with the letter x is bit x - 'a'. */
    return tw_hwcap(1) >> (feature[0] - 'a') & 1 ? NULL : missing;
  int bits = 0; /* "zvl256b": vector registers have at least 256 bits */
  if (feature[0] != 'z' || feature[1] != 'v' || feature[2] != 'l') return "this runtime cannot detect it";
  for (const char* digit = feature + 3; *digit >= '0' && *digit <= '9'; ++digit)
    bits = 10 * bits + (*digit - '0');
  if (!(tw_hwcap(1) >> ('v' - 'a') & 1)) return missing;
  long bytes;
  __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes)); /* vlenb */
  return 8 * bytes >= bits ? NULL : "the processor's vector registers are narrower";
}

#elif defined(__hexagon__)

static const char* why_unavailable(const char* feature) {
  (void)feature;
  return NULL; /* Linux on Hexagon tells nothing of the vector coprocessor. */
}

#elif defined(__wasm__)

static const char* why_unavailable(const char* feature) {
  (void)feature;
  return NULL; /* an engine without an instruction does not load a module that uses it */
}

#else

static const char* why_unavailable(const char* feature) {
  (void)feature;
  return "this runtime cannot detect it";
}

#endif

int tw_check_cpu(const char* features) {
  for (const char* next = features ? features : ""; *next;) {
    char name[32];
    size_t length = 0;
    for (; *next && *next != ','; ++next)
      if (*next != '+' && *next != ' ' && length < sizeof name - 1) name[length++] = *next;
    name[length] = 0;
    if (*next == ',') ++next;
    const char* reason = length ? why_unavailable(name) : NULL;
    if (reason)
      return tw_fail(TW_ERROR_CPU,
                     "the model was compiled for a processor with '%s', but %s: compile it for this "
                     "processor (needed features: %s)",
                     name, reason, features);
  }
  return TW_OK;
}
