/* The checks of wgmma: accumulators and operands between an instruction and the wait for it. */
#ifdef TW_SIM_CUDA

/* Accumulators, or a factor, in the memory of a thread. */
struct tw_sim_accumulators {
  tw_sim_accumulators* next;
  char* place;
  char* values; /* of accumulators that are pending; their own memory is poisoned */
  uint32_t size, group, line, pending, touched, is_factor; /* a factor may be read at any time */
};

/* An operand in shared memory that an instruction that is pending may still read. */
struct tw_sim_operand {
  tw_sim_operand* next;
  tw_described matrix;
  uint32_t lines, depth, size, group, line, epoch;
};

static void check_registers(tw_sim_thread* self, uintptr_t address, uint64_t size, int access,
                            uint32_t code) {
  for (tw_sim_accumulators* a = self->accumulators; a; a = a->next) {
    if (address >= (uintptr_t)a->place + a->size || address + size <= (uintptr_t)a->place) continue;
    if (a->is_factor && !(access & TW_WRITES)) continue;
    if (a->pending) {
      set_codes(worker_of(self), code, TW_LINE | a->line);
      fail(self, TW_SIM_ASYNC, line_of(code),
           "%s of byte %llu of the %s of a wgmma; its thread has not waited for it", access_name(access),
           (unsigned long long)(address - (uintptr_t)a->place), a->is_factor ? "factor" : "accumulators");
    }
    a->touched = 1;
  }
}

/* Call a function for each run of 16 bytes of an operand. */
template <class F>
static void each_run(const tw_described& m, uint32_t lines, uint32_t depth, uint32_t size, F function) {
  uint32_t each = 16 / size;
  for (uint32_t line = 0; line < lines; line += m.transposed ? each : 1)
    for (uint32_t term = 0; term < depth; term += m.transposed ? 1 : each)
      function(address_of(m, line, term, size));
}

static void check_operand(tw_sim_thread* self, const tw_described& m, uint32_t lines, uint32_t depth,
                          uint32_t size, uint32_t line) {
  tw_checker* c = worker_of(self)->checker;
  each_run(m, lines, depth, size, [&](uintptr_t address) {
    check_access(address, 16, TW_READS, TW_LINE | line);
    tw_area* area = find_area(c, address);
    if (!area || area->kind != TW_SHARED)
      fail(self, TW_SIM_BOUNDS, line, "the descriptor of a wgmma names memory that is not shared memory");
    uint64_t first = (address - area->begin) / area->granule;
    for (uint64_t i = 0; i < 16 / area->granule; ++i) {
      const tw_record* write = &area->cells[first + i].write;
      uint32_t writer = write->warp * TW_SIM_WARP + __builtin_ctzll(write->lanes);
      if (c->async_fences[writer] > write->async_fences || c->async_epoch[self->linear] > write->epoch)
        continue;
      set_codes(worker_of(self), TW_LINE | line, write->code);
      char text[200];
      place_text(text, sizeof text, area, address + i * area->granule);
      fail(self, TW_SIM_ASYNC, line,
           "a wgmma reads %s, which a thread wrote without fence.proxy.async behind the write", text);
    }
  });
  tw_sim_operand* operand = (tw_sim_operand*)calloc(1, sizeof *operand);
  *operand = {self->operands, m, lines, depth, size, self->wgmma_group, line, c->epoch};
  self->operands = operand;
}

static tw_sim_accumulators* accumulators_at(tw_sim_thread* self, void* d) {
  tw_sim_accumulators* a = self->accumulators;
  while (a && a->place != d) a = a->next;
  return a;
}

static void begin_accumulation(tw_sim_thread* self, const tw_sim_wgmma*, void* d, uint32_t bytes,
                               uint32_t line) {
  if (!self->lane) ++worker_of(self)->checker->wgmma_calls[self->warp];
  tw_sim_accumulators* a = accumulators_at(self, d);
  if (a && a->size != bytes) {
    if (a->pending)
      fail(self, TW_SIM_ASYNC, line, "a wgmma of another shape, of line %u, has these accumulators", a->line);
    a->values = (char*)realloc(a->values, bytes);
    a->size = bytes;
    a->touched = 1;
  }
  int fenced = a ? !a->touched : self->wgmma_fenced;
  if (!a) {
    a = (tw_sim_accumulators*)calloc(1, sizeof *a);
    a->place = (char*)d;
    a->values = (char*)malloc(bytes);
    a->size = bytes;
    a->next = self->accumulators;
    self->accumulators = a;
  }
  if (!fenced)
    fail(self, TW_SIM_ASYNC, line, "a wgmma needs wgmma.fence behind other accesses to its accumulators");
  if (!a->pending) {
    memcpy(a->values, d, bytes);
    memset(d, 0xff, bytes);
  }
  a->pending = 1;
  a->group = self->wgmma_group;
  a->line = line;
}

/* Note that an instruction reads registers until the wait for it. */
static void begin_factor(tw_sim_thread* self, const void* registers, uint32_t bytes, uint32_t line) {
  tw_sim_accumulators* a = accumulators_at(self, (void*)registers);
  if (a && a->touched)
    fail(self, TW_SIM_ASYNC, line, "a wgmma needs wgmma.fence behind writes to its factor");
  if (!a) {
    a = (tw_sim_accumulators*)calloc(1, sizeof *a);
    a->place = (char*)registers;
    a->size = bytes;
    a->is_factor = 1;
    a->next = self->accumulators;
    self->accumulators = a;
  }
  a->pending = 1;
  a->group = self->wgmma_group;
  a->line = line;
}

static void* accumulator_values(tw_sim_thread* self, void* d) { return accumulators_at(self, d)->values; }

extern "C" void tw_sim_wgmma_fence(void) {
  tw_sim_thread* self = tw_sim_self();
  self->wgmma_fenced = 1;
  for (tw_sim_accumulators* a = self->accumulators; a; a = a->next) a->touched = 0;
}

extern "C" void tw_sim_wgmma_commit(void) { ++tw_sim_self()->wgmma_group; }

extern "C" void tw_sim_wgmma_wait(uint32_t groups) {
  tw_sim_thread* self = tw_sim_self();
  tw_checker* c = worker_of(self)->checker;
  for (tw_sim_operand** link = &self->operands; *link;) {
    tw_sim_operand* operand = *link;
    if (operand->group + groups >= self->wgmma_group) {
      link = &operand->next;
      continue;
    }
    each_run(operand->matrix, operand->lines, operand->depth, operand->size, [&](uintptr_t address) {
      tw_area* area = find_area(c, address);
      uint64_t first = (address - area->begin) / area->granule;
      for (uint64_t i = 0; i < 16 / area->granule; ++i) {
        const tw_record* write = &area->cells[first + i].write;
        if (write->epoch <= operand->epoch) continue;
        set_codes(worker_of(self), TW_LINE | operand->line, write->code);
        char text[200];
        place_text(text, sizeof text, area, address + i * area->granule);
        fail(self, TW_SIM_ASYNC, operand->line,
             "a wgmma reads %s, which is written before its threads have waited for it", text);
      }
    });
    *link = operand->next;
    free(operand);
  }
  for (tw_sim_accumulators* a = self->accumulators; a; a = a->next)
    if (a->pending && a->group + groups < self->wgmma_group) {
      if (!a->is_factor) memcpy(a->place, a->values, a->size);
      a->pending = 0;
    }
}

extern "C" void tw_sim_fence_async(void) {
  tw_sim_thread* self = tw_sim_self();
  tw_checker* c = worker_of(self)->checker;
  ++c->async_fences[self->linear];
  c->async_epoch[self->linear] = c->epoch;
}

/* The warps of a warpgroup have executed the same instructions when they meet at a barrier or end. */
static void check_warpgroups(tw_worker* worker) {
  const uint32_t* calls = worker->checker->wgmma_calls;
  for (uint32_t warp = 0; warp < worker->block.count / 32; ++warp) {
    uint32_t first = warp / 4 * 4;
    if (calls[warp] == calls[first]) continue;
    char text[160];
    snprintf(text, sizeof text, "warp %u has executed %u wgmma, and warp %u of its warpgroup %u", warp,
             calls[warp], first, calls[first]);
    report(worker, 0, TW_SIM_LANE, 0, text);
    leave(worker);
  }
}

static void forget_accumulators(tw_sim_thread* self) {
  while (self->accumulators) {
    tw_sim_accumulators* next = self->accumulators->next;
    free(self->accumulators->values);
    free(self->accumulators);
    self->accumulators = next;
  }
  while (self->operands) {
    tw_sim_operand* next = self->operands->next;
    free(self->operands);
    self->operands = next;
  }
}
#else
static void check_registers(tw_sim_thread*, uintptr_t, uint64_t, int, uint32_t) {}
static void forget_accumulators(tw_sim_thread*) {}
static void check_warpgroups(tw_worker*) {}
#endif
