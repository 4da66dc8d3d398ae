/* cpu.c - does this processor, as its system has set it up, run the instructions the kernels were compiled
 * to?
 *
 * Feature names are LLVM's. On x86-64 an instruction set counts only if the system also saves its
 * registers (XCR0). */
#include "internal.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
enum { SSE_STATE = 0x2, AVX_STATE = 0x6, AVX512_STATE = 0xe6, AMX_STATE = 0x60000, APX_STATE = 0x80000 };

static const struct {
  const char* name;
  uint32_t leaf, subleaf, reg, bit, state; /* state: the bits of XCR0 that must be set */
} known[] = {
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

static uint64_t saved_state(void) {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* no OSXSAVE */
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (uint64_t)d << 32 | a;
}

static const char* missing(const char* feature) {
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    if (!tw_text_equal(known[i].name, feature)) continue;
    uint32_t registers[4] = {0};
    if (!__get_cpuid_count(known[i].leaf, known[i].subleaf, &registers[EAX], &registers[EBX], &registers[ECX],
                           &registers[EDX]) ||
        !(registers[known[i].reg] >> known[i].bit & 1))
      return "this processor does not have it";
    if ((saved_state() & known[i].state) != known[i].state) return "the operating system has not enabled it";
    if (known[i].state == AMX_STATE && !tw_allow_amx()) return "the operating system refuses this process the use of it";
    return NULL;
  }
  return "this runtime does not know how to look for it";
}

#elif defined(__aarch64__)

static const struct {
  const char *name, *apple;
  int word, bit; /* of AT_HWCAP (1) or AT_HWCAP2 (2), see the kernel's arm64/elf_hwcaps */
} known[] = {
    {"fp-armv8", "hw.optional.floatingpoint", 1, 0},
    {"neon", "hw.optional.AdvSIMD", 1, 1},
    {"aes", "hw.optional.arm.FEAT_AES", 1, 3},
    {"sha2", "hw.optional.arm.FEAT_SHA256", 1, 6},
    {"crc", "hw.optional.armv8_crc32", 1, 7},
    {"lse", "hw.optional.arm.FEAT_LSE", 1, 8},
    {"fullfp16", "hw.optional.arm.FEAT_FP16", 1, 10},
    {"rdm", "hw.optional.arm.FEAT_RDM", 1, 12},
    {"jsconv", "hw.optional.arm.FEAT_JSCVT", 1, 13},
    {"complxnum", "hw.optional.arm.FEAT_FCMA", 1, 14},
    {"rcpc", "hw.optional.arm.FEAT_LRCPC", 1, 15},
    {"dotprod", "hw.optional.arm.FEAT_DotProd", 1, 20},
    {"sve", "hw.optional.arm.FEAT_SVE", 1, 22},
    {"fp16fml", "hw.optional.arm.FEAT_FHM", 1, 23},
    {"sve2", "hw.optional.arm.FEAT_SVE2", 2, 1},
    {"i8mm", "hw.optional.arm.FEAT_I8MM", 2, 13},
    {"bf16", "hw.optional.arm.FEAT_BF16", 2, 14},
    {"sme", "hw.optional.arm.FEAT_SME", 2, 23},
};

static const char* missing(const char* feature) {
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    if (!tw_text_equal(known[i].name, feature)) continue;
#if defined(__APPLE__)
    return tw_hardware_named(known[i].apple) ? NULL : "this processor does not have it";
#elif defined(__linux__)
    return tw_hardware_bits(known[i].word) >> known[i].bit & 1 ? NULL : "this processor does not have it";
#else
    return known[i].bit < 2 && known[i].word == 1 ? NULL : "this system does not tell whether it is there";
#endif
  }
  return "this runtime does not know how to look for it";
}

#elif defined(__riscv)

static const char* missing(const char* feature) {
  if (!feature[0] || feature[1]) return "this runtime does not know how to look for it";
  return tw_hardware_bits(1) >> (feature[0] - 'a') & 1 ? NULL : "this processor does not have it"; /* m a f d c v */
}

#elif defined(__wasm__)

static const char* missing(const char* feature) {
  (void)feature;
  return NULL; /* an engine that lacks an instruction has refused the module already */
}

#else

static const char* missing(const char* feature) {
  (void)feature;
  return "this runtime does not know how to look for it";
}

#endif

int tw_check_cpu(const char* features) {
  for (const char* at = features ? features : ""; *at;) {
    char name[32];
    size_t length = 0;
    for (; *at && *at != ','; ++at)
      if (*at != '+' && *at != ' ' && length < sizeof name - 1) name[length++] = *at;
    name[length] = 0;
    if (*at == ',') ++at;
    const char* why = length ? missing(name) : NULL;
    if (why)
      return tw_fail(TW_ERROR_CPU, "the model was compiled for a processor with '%s' (all it needs: %s), but %s", name,
                     features, why);
  }
  return TW_OK;
}
