/* Asynchronous copies from global to shared memory land at once; checker.cpp has those of checked units. */
#ifndef TW_SIM_CHECKED
extern "C" void tw_sim_copy_async(void* to, const void* from, uint32_t size, uint32_t taken, uint32_t) {
  memcpy(to, from, taken);
  memset((char*)to + taken, 0, size - taken);
}
extern "C" void tw_sim_copy_commit(void) {}
extern "C" void tw_sim_copy_wait(uint32_t) {}
#endif
