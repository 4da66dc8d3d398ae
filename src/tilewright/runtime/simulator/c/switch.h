/* Switching between fibers: tw_sim_switch(&from, to) saves the registers that a call preserves on the running
 * stack, stores its pointer, and continues on the other stack. A new fiber's stack is filled as if it had
 * switched away at its first instruction. The function ends in an ordinary return: fibers mostly wait at the
 * same place, so the processor predicts its address. */
#ifndef TW_SIM_SWITCH_H
#define TW_SIM_SWITCH_H

extern "C" void tw_sim_switch(void** from, void* to) __attribute__((visibility("hidden")));

#ifdef __APPLE__
#define TW_SYMBOL(name) "_" name
#define TW_HIDDEN ".private_extern "
#else
#define TW_SYMBOL(name) name
#define TW_HIDDEN ".hidden "
#endif

#if defined(__x86_64__)
#define TW_SAVED 6  /* words: rbp, rbx, r12 to r15 */
#define TW_RETURN 6 /* the word with the address */
#define TW_FRAME 8  /* words of a new fiber's frame; leaves the stack as a call does */
__asm__(".text\n.globl " TW_SYMBOL("tw_sim_switch") "\n" TW_HIDDEN TW_SYMBOL("tw_sim_switch") "\n"
        ".p2align 4\n" TW_SYMBOL("tw_sim_switch") ":\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n");
#elif defined(__aarch64__)
#define TW_SAVED 20 /* words: d8 to d15, x19 to x30 */
#define TW_RETURN 19
#define TW_FRAME 20
__asm__(".text\n.globl " TW_SYMBOL("tw_sim_switch") "\n" TW_HIDDEN TW_SYMBOL("tw_sim_switch") "\n"
        ".p2align 4\n" TW_SYMBOL("tw_sim_switch") ":\n"
        "  sub sp, sp, #160\n"
        "  stp d8, d9, [sp, #0]\n  stp d10, d11, [sp, #16]\n  stp d12, d13, [sp, #32]\n"
        "  stp d14, d15, [sp, #48]\n  stp x19, x20, [sp, #64]\n  stp x21, x22, [sp, #80]\n"
        "  stp x23, x24, [sp, #96]\n  stp x25, x26, [sp, #112]\n  stp x27, x28, [sp, #128]\n"
        "  stp x29, x30, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp d8, d9, [sp, #0]\n  ldp d10, d11, [sp, #16]\n  ldp d12, d13, [sp, #32]\n"
        "  ldp d14, d15, [sp, #48]\n  ldp x19, x20, [sp, #64]\n  ldp x21, x22, [sp, #80]\n"
        "  ldp x23, x24, [sp, #96]\n  ldp x25, x26, [sp, #112]\n  ldp x27, x28, [sp, #128]\n"
        "  ldp x29, x30, [sp, #144]\n"
        "  add sp, sp, #160\n  ret\n");
#else
#error "the simulator runs on x86-64 and AArch64"
#endif

static inline void* new_stack(void* end, void (*entry)(void)) {
  void** frame = (void**)end - TW_FRAME;
  for (int i = 0; i < TW_FRAME; ++i) frame[i] = 0;
  frame[TW_RETURN] = (void*)entry;
  return frame;
}
#endif
