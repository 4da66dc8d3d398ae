/* Conversions of 16-bit floats that compilers call where the processor has no instruction for them. */
#include "tw_sim/narrow.h"

#define HELPER extern "C" __attribute__((weak, visibility("hidden")))
HELPER float __extendhfsf2(_Float16 x) { return tw_sim_f16::decode(__builtin_bit_cast(uint16_t, x)); }
HELPER _Float16 __truncsfhf2(float x) { return __builtin_bit_cast(_Float16, tw_sim_encode<10, 5>(x)); }
HELPER _Float16 __truncdfhf2(double x) { return __builtin_bit_cast(_Float16, tw_sim_encode<10, 5>(x)); }
HELPER __bf16 __truncsfbf2(float x) { return __builtin_bit_cast(__bf16, tw_sim_encode<7, 8>(x)); }
HELPER __bf16 __truncdfbf2(double x) { return __builtin_bit_cast(__bf16, tw_sim_encode<7, 8>(x)); }
