/* profile.c - the times of a context's runs, launches and threads while a profile is enabled. */
#include "internal.h"

#define CLOCK_READS 256 /* that measure what one takes */

static void start(tw_profile* profile) {
  profile->launches.count = profile->launches.missing = 0;
  profile->threads.count = profile->threads.missing = 0;
  profile->run = (tw_run_time){0, 0, 0, 0};
  for (int32_t i = 0; i < tw_module.num_kernels; ++i) profile->nanoseconds[i] = profile->calls[i] = 0;
  uint64_t first = tw_clock(), last = first;
  for (int i = 0; i < CLOCK_READS; ++i) last = tw_clock();
  profile->clock = last - first;
  profile->start = last;
}

int tw_profile_enable(tw_context* context, int on) {
  tw_clear_error();
  if (!context) return tw_fail(TW_ERROR_ARGUMENT, "the context is a null pointer");
  int status = tw_acquire(context);
  if (status) return status;
  tw_profile* profile = tw_profile_of(context);
  profile->on = on;
  tw_pool_measure(tw_pool_of(context), on);
  if (on) start(profile);
  tw_release(context);
  return TW_OK;
}

int tw_profile_read(tw_context* context, uint64_t* nanoseconds, uint64_t* calls, int32_t num_kernels) {
  tw_clear_error();
  if (!context || !nanoseconds || !calls)
    return tw_fail(TW_ERROR_ARGUMENT, "tw_profile_read: an argument is a null pointer");
  if (num_kernels != tw_module.num_kernels)
    return tw_fail(TW_ERROR_ARGUMENT, "the model has %d kernels, got counter arrays for %d",
                   (int64_t)tw_module.num_kernels, (int64_t)num_kernels);
  int status = tw_acquire(context);
  if (status) return status;
  const tw_profile* profile = tw_profile_of(context);
  for (int32_t i = 0; i < num_kernels; ++i) {
    nanoseconds[i] = profile->nanoseconds[i];
    calls[i] = profile->calls[i];
  }
  tw_release(context);
  return TW_OK;
}

static int read_times(tw_context* context, int of_threads, tw_launch_time* to, int64_t capacity,
                      int64_t* count) {
  tw_clear_error();
  if (!context || !count || (!to && capacity > 0))
    return tw_fail(TW_ERROR_ARGUMENT, "%s: an argument is a null pointer",
                   of_threads ? "tw_profile_threads" : "tw_profile_launches");
  int status = tw_acquire(context);
  if (status) return status;
  const tw_profile* profile = tw_profile_of(context);
  const tw_launch_times* times = of_threads ? &profile->threads : &profile->launches;
  *count = times->count + times->missing;
  int64_t copied = capacity < times->count ? capacity : times->count;
  if (copied > 0) __builtin_memcpy(to, times->entries, (size_t)copied * sizeof *to);
  tw_release(context);
  return TW_OK;
}

int tw_profile_launches(tw_context* context, tw_launch_time* launches, int64_t capacity, int64_t* count) {
  return read_times(context, 0, launches, capacity, count);
}

int tw_profile_threads(tw_context* context, tw_launch_time* threads, int64_t capacity, int64_t* count) {
  return read_times(context, 1, threads, capacity, count);
}

int tw_profile_run(tw_context* context, tw_run_time* run) {
  tw_clear_error();
  if (!context || !run)
    return tw_fail(TW_ERROR_ARGUMENT, "tw_profile_run: an argument is a null pointer");
  int status = tw_acquire(context);
  if (status) return status;
  const tw_profile* profile = tw_profile_of(context);
  *run = profile->run;
  run->clock = run->reads * profile->clock / CLOCK_READS;
  tw_release(context);
  return TW_OK;
}

static void keep_time(tw_launch_times* times, tw_launch_time entry) {
  if (times->missing || times->count == TW_MOST_LAUNCHES) {
    ++times->missing;
    return;
  }
  if (times->count == times->capacity) {
    int64_t capacity = 2 * times->capacity + 256;
    tw_launch_time* larger = tw_memory_allocate((size_t)capacity * sizeof *larger);
    if (!larger) {
      ++times->missing; /* the sums of the profile stay right */
      return;
    }
    if (times->count) __builtin_memcpy(larger, times->entries, (size_t)times->count * sizeof *larger);
    tw_memory_free(times->entries);
    times->entries = larger;
    times->capacity = capacity;
  }
  times->entries[times->count++] = entry;
}

void tw_profile_run_begins(tw_profile* profile) {
  profile->run.reads = 1; /* that of the end, or of the begin: half of either lies in between */
  profile->run.begin = tw_clock() - profile->start;
}

void tw_profile_run_ends(tw_profile* profile) { profile->run.end = tw_clock() - profile->start; }

void tw_profile_note(tw_profile* profile, int32_t kernel_index, uint64_t begin, uint64_t end) {
  profile->nanoseconds[kernel_index] += end - begin;
  profile->calls[kernel_index] += 1;
  keep_time(&profile->launches, (tw_launch_time){kernel_index, 0, begin, end});
}

void tw_profile_launch(tw_profile* profile, tw_pool* pool, int32_t kernel_index, tw_kernel kernel,
                       int64_t extent, int64_t grain, void* const* buffers, const int64_t* dims) {
  uint64_t before = tw_clock();
  tw_pool_launch(pool, kernel, extent, grain, buffers, dims);
  uint64_t after = tw_clock(), first = profile->start, begin, end;
  tw_profile_note(profile, kernel_index, before - first, after - first);
  profile->run.reads += 2;
  for (int32_t i = 0; extent > 0 && i < tw_pool_threads(pool); ++i) {
    if (!tw_pool_worked(pool, i, &begin, &end)) continue;
    keep_time(&profile->threads, (tw_launch_time){kernel_index, i, begin - first, end - first});
    if (!i) profile->run.reads += 2;
  }
}

void tw_profile_free(tw_profile* profile) {
  tw_memory_free(profile->launches.entries);
  tw_memory_free(profile->threads.entries);
}
