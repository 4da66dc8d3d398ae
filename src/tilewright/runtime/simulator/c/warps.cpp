/* Warp functions: lanes that name the same mask wait for each other; the last one computes all results. */

static uint32_t segment_of(const tw_sim_thread* thread) {
  uint32_t width = thread->width;
  return thread->lane & ~(width - 1);
}

/* The lane that a shuffle reads; -1: the caller's own value, because the segment ends before it. */
static int source_lane(const tw_sim_thread* t) {
  int lane = (int)t->lane, first = (int)segment_of(t), end = first + (int)t->width, source;
  switch (t->operation) {
    case TW_SIM_SHUFFLE:
      return first + (t->selector & (int)(t->width - 1));
    case TW_SIM_SHUFFLE_UP:
      source = lane - t->selector;
      return source < first ? -1 : source;
    case TW_SIM_SHUFFLE_DOWN:
      source = lane + t->selector;
      return source >= end ? -1 : source;
    default:
      source = lane ^ t->selector;
      return source >= end || source < 0 ? -1 : source;
  }
}

static void complete(tw_worker* worker, uint32_t warp, tw_group* group, tw_sim_thread* self) {
  uint64_t arrived = group->arrived, votes = 0;
  uint32_t operation = group->operation, first = warp * TW_SIM_WARP;
  tw_sim_thread** threads = worker->thread + first;
  if (operation == TW_SIM_MATRIX) multiply_matrices(worker, warp, group);
  if (operation == TW_SIM_BALLOT)
    for (uint64_t rest = arrived; rest; rest &= rest - 1) {
      int lane = __builtin_ctzll(rest);
      if (threads[lane]->operand) votes |= (uint64_t)1 << lane;
    }
  for (uint64_t rest = arrived; rest; rest &= rest - 1) {
    tw_sim_thread* t = threads[__builtin_ctzll(rest)];
    switch (operation) {
      case TW_SIM_BALLOT:
        t->result = votes;
        break;
      case TW_SIM_ACTIVE:
        t->result = arrived;
        break;
      case TW_SIM_MATCH_ANY:
      case TW_SIM_MATCH_ALL: {
        uint64_t equal = 0;
        for (uint64_t others = arrived; others; others &= others - 1) {
          int lane = __builtin_ctzll(others);
          if (threads[lane]->operand == t->operand) equal |= (uint64_t)1 << lane;
        }
        t->result = operation == TW_SIM_MATCH_ANY || equal == arrived ? equal : 0;
        break;
      }
      case TW_SIM_SYNC:
      case TW_SIM_MATRIX:
        break;
      default: {
        int source = source_lane(t);
        t->result = t->operand;
        if (source < 0) break;
        if (arrived >> source & 1) {
          t->result = threads[source]->operand;
          break;
        }
#ifdef TW_SIM_CHECKED
        char text[160];
        snprintf(text, sizeof text, "lane %u reads lane %d, which %s", t->lane, source,
                 present_lanes(worker, warp) >> source & 1 ? "does not take part in the shuffle"
                                                           : "has ended or does not exist");
        report(worker, t, TW_SIM_LANE, t->site, text);
        leave(worker);
#endif
      }
    }
  }
  *group = worker->warp[warp].group[--worker->warp[warp].groups];
  if (operation == TW_SIM_SYNC) check_warp(worker, warp, arrived);
  for (uint64_t rest = arrived; rest; rest &= rest - 1) {
    tw_sim_thread* t = threads[__builtin_ctzll(rest)];
    if (t != self) make_ready(worker, t);
  }
}

extern "C" uint64_t tw_sim_collective(uint32_t operation, uint64_t mask, uint64_t operand, int32_t selector,
                                      uint32_t width, uint32_t line, uint32_t column) {
  tw_sim_thread* self = tw_sim_self();
  tw_worker* worker = worker_of(self);
  tw_warp* warp = &worker->warp[self->warp];
  uint64_t bit = (uint64_t)1 << self->lane;
  worker->thread[self->linear] = self;
  self->operation = operation;
  self->mask = mask;
  self->operand = operand;
  self->selector = selector;
  self->width = width;
  self->site = line;
  self->column = column;
  if (mask && !(mask & bit))
    fail(self, TW_SIM_MASK, line, "the mask 0x%llx lacks the calling lane %u", (unsigned long long)mask,
         self->lane);
  uint64_t awaited = present_lanes(worker, self->warp);
  if (mask) awaited &= mask;
  tw_group* group = 0;
  for (uint32_t i = 0; i < warp->groups && !group; ++i) {
    tw_group* other = &warp->group[i];
    if (other->mask == mask && other->operation == operation &&
        (mask || (other->line == line && other->column == column)))
      group = other;
  }
  if (!group) {
    group = &warp->group[warp->groups++];
    group->mask = mask;
    group->arrived = 0;
    group->operation = operation;
    group->line = line;
    group->column = column;
    group->selector = selector;
  } else if (operation == TW_SIM_MATRIX &&
             (group->line != line || group->column != column || group->selector != selector)) {
    fail(self, TW_SIM_MASK, line, "other lanes of the warp are at the matrix instruction of line %u",
         group->line);
  }
  group->arrived |= bit;
  if (group->arrived == awaited) complete(worker, self->warp, group, self);
  else suspend(self);
  return self->result;
}

/* After the end of a thread: groups that waited for nobody else are complete. */
static void lane_ended(tw_worker* worker, tw_sim_thread* self) {
  tw_warp* warp = &worker->warp[self->warp];
  if (!warp->groups) return;
  uint64_t present = present_lanes(worker, self->warp);
  for (uint32_t i = 0; i < warp->groups;) {
    tw_group* group = &warp->group[i];
    if (group->arrived == (group->mask ? present & group->mask : present))
      complete(worker, self->warp, group, 0);
    else ++i;
  }
}

/* No thread can run. Functions without a mask are for the lanes that are converged: all lanes that could
 * arrive have done so. In a warp whose lanes wait at several places the first in the text is completed, since
 * branches meet again behind them. Returns whether any thread can run now. */
static int complete_converged(tw_worker* worker) {
  int found = 0;
  uint32_t warps = (worker->block.count + TW_SIM_WARP - 1) / TW_SIM_WARP;
  for (uint32_t w = 0; w < warps; ++w) {
    tw_warp* warp = &worker->warp[w];
    tw_group* first = 0;
    for (uint32_t i = 0; i < warp->groups; ++i) {
      tw_group* group = &warp->group[i];
      if (group->mask) continue;
      if (!first || group->line < first->line ||
          (group->line == first->line && group->column < first->column))
        first = group;
    }
    if (first) {
      complete(worker, w, first, 0);
      found = 1;
    }
  }
  return found;
}

/* Describe why no thread of the block can run. Returns the kind of the fault. */
static int describe_waiting(tw_worker* worker, char* text, size_t size) {
  int n = snprintf(text, size, "all threads wait:"), kind = TW_SIM_DEADLOCK;
  if (worker->waiting_count) {
    n += snprintf(text + n, size - n, " %u of %u threads at the barrier of line %u", worker->waiting_count,
                  worker->block.live, worker->barrier_line);
    kind = TW_SIM_DIVERGENT;
  }
  uint32_t warps = (worker->block.count + TW_SIM_WARP - 1) / TW_SIM_WARP, shown = 0;
  for (uint32_t w = 0; w < warps && shown < 4; ++w)
    for (uint32_t i = 0; i < worker->warp[w].groups && shown < 4; ++i, ++shown) {
      tw_group* group = &worker->warp[w].group[i];
      if (!worker->waiting_count) kind = TW_SIM_MASK;
      n += snprintf(text + n, size - n,
                    "%s lanes 0x%llx of warp %u at the warp function of line %u, mask 0x%llx",
                    worker->waiting_count || shown ? ";" : "", (unsigned long long)group->arrived, w,
                    group->line, (unsigned long long)group->mask);
    }
  return kind;
}
