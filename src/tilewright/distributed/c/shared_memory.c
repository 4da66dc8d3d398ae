/* shared_memory.c - collective operations between the processes of one Linux machine, in a shared segment.
 *
 * An operation is cut into pieces, which are numbered on from one operation to the next, the same in every
 * process. A piece passes three stages, in the order of the numbers:
 *
 *   write    copy what other processes read of the source into this process's slot,
 *   reduce   combine this process's part of the piece from all slots (sums, maxima, minima),
 *   read     copy what other processes have written or reduced into the target.
 *
 * Each process publishes how many pieces have passed each of its stages. A piece may be reduced once all have
 * written it, and read once all have reduced it. The slots are a ring: a slot may be written again once all
 * have read its last piece. There is no thread: every call advances all operations that have begun as far as
 * the other processes allow. A sum of n bytes moves 4n bytes in each of two processes.
 *
 * Only a sum of more than SMALL bytes is divided like this. Of a smaller one each process writes all and
 * reduces all, which saves waiting for the others' parts; other operations need no second wait either.
 *
 * A process whose engine fails tells its code in the segment, so that the others, which would wait for it,
 * fail at once. One that ends releases a lock, for which sleepers look now and then.
 *
 * The element order of a sum is that of the ranks, so all processes get the same bits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "group.h"

#define LINE 64 /* bytes of a line of the cache */
#define PIECE \
  ((int64_t)1 << 19) /* payload bytes of a slot: larger ones amortize more, smaller stay in the L2 */
#define SLOTS 16     /* slots of a process: how far it can run ahead; few of them stay in the L3 */
#define SMALL (1 << 14) /* bytes up to which waiting twice costs more than reducing everything here */
#define SPINS 100    /* looks at the other processes before other threads get the core between two looks */
#define AWAKE 5e-4   /* seconds without progress before sleeping: waking up costs some tens of microseconds */
#define SLEEP_MS 100 /* the longest sleep between two looks at which processes have ended */

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, SHIFT }; /* as `Kind` of engine.py */
enum { SUM, MAX, MIN };
enum { DONE, FAILED_ENDED = -1, FAILED_LATE = -2, FAILED_OTHER = -3, FAILED_MEMORY = -4, FAILED_TYPE = -5 };
enum { WRITE, REDUCE, READ, STAGES };

/* The values that all processes must agree on. */
typedef struct {
  int64_t number, piece, n;
  int32_t kind, code, bits, reduction, peer, unused;
} label;

typedef struct {
  _Alignas(LINE) _Atomic uint64_t passed[STAGES]; /* pieces */
  _Atomic int32_t pid;
  _Atomic int32_t failed; /* the code by which this process's engine has failed, for good; 0: it has not */
} shared_rank;

typedef struct {
  _Alignas(LINE) _Atomic uint32_t events; /* counts what has happened; sleepers wait for another number */
  _Atomic uint32_t sleepers;
  _Atomic int32_t lost; /* one more than the rank that was found to have ended first; 0: none */
  shared_rank ranks[];
} shared;

typedef struct {
  label label;
  const char* source;
  char* target;
  int64_t width, blocks, step,
      pieces; /* bytes of an element; blocks of the source, elements of one in a piece */
} operation;

typedef struct {
  int64_t operation, piece;
} cursor;

typedef struct {
  shared* segment;
  char* slots;
  size_t bytes;
  int32_t rank, size, file, failed;
  int32_t told; /* one more than the rank whose engine had failed, if that is why this one did */
  double patience;  /* seconds */
  operation* queue; /* a ring of `capacity` operations; number i is at i % capacity */
  int64_t begin, end, capacity;
  cursor at[STAGES];
  pthread_mutex_t lock;
} engine;

/* ---- Elements ---- */

static inline float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static inline float from_bf16(uint16_t x) { return of_bits((uint32_t)x << 16); }

static inline uint16_t to_bf16(float x) {
  uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (uint16_t)(x == x ? rounded : (bits >> 16 | 0x40));
}

/* The conversions of 16-bit floats without branches are those of Maratyszcza's FP16 library. */
static inline float from_f16(uint16_t x) {
  uint32_t w = (uint32_t)x << 16, sign = w & 0x80000000u, two = w + w;
  float normal = of_bits((two >> 4) + (0xe0u << 23)) * 0x1.0p-112f;
  float small = of_bits((two >> 17) | (126u << 23)) - 0.5f;
  return of_bits(sign | (two < (1u << 27) ? bits_of(small) : bits_of(normal)));
}

static inline uint16_t to_f16(float x) {
  uint32_t w = bits_of(x), two = w + w, bias = two & 0xff000000u;
  float base = (of_bits(w & 0x7fffffffu) * 0x1.0p+112f) * 0x1.0p-110f;
  bias = bias < 0x71000000u ? 0x71000000u : bias;
  uint32_t bits = bits_of(of_bits((bias >> 1) + 0x07800000u) + base);
  uint32_t rest = (bits >> 13 & 0x7c00) + (bits & 0x0fff);
  return (uint16_t)((w >> 16 & 0x8000) | (two > 0xff000000u ? 0x7e00 : rest));
}

#define SAME(x) (x)
#define BLOCK 1024 /* elements that are combined at a time, in the L1 cache */

/* Combines n elements of `count` arrays in their order. T: an element; A: what it is computed in; U: what
 * sums are computed in, unsigned for integers, which wrap around. */
#define COMBINE(NAME, T, A, U, LOAD, STORE)                                                     \
  static void combine_##NAME(T* y, const T* const* x, int count, int64_t n, int how) { \
    A sum[BLOCK];                                                                               \
    for (int64_t at = 0; at < n; at += BLOCK) {                                                 \
      int64_t m = n - at < BLOCK ? n - at : BLOCK;                                              \
      for (int64_t i = 0; i < m; ++i) sum[i] = LOAD(x[0][at + i]);                              \
      for (int k = 1; k < count; ++k) {                                                         \
        const T* z = x[k] + at;                                                                 \
        if (how == SUM)                                                                         \
          for (int64_t i = 0; i < m; ++i) sum[i] = (A)((U)sum[i] + (U)LOAD(z[i]));              \
        else if (how == MAX) /* NaN if one is */                                                \
          for (int64_t i = 0; i < m; ++i)                                                       \
            sum[i] = sum[i] >= LOAD(z[i]) || sum[i] != sum[i] ? sum[i] : LOAD(z[i]);            \
        else                                                                                    \
          for (int64_t i = 0; i < m; ++i)                                                       \
            sum[i] = sum[i] <= LOAD(z[i]) || sum[i] != sum[i] ? sum[i] : LOAD(z[i]);            \
      }                                                                                         \
      for (int64_t i = 0; i < m; ++i) y[at + i] = STORE(sum[i]);                                \
    }                                                                                           \
  }

COMBINE(f32, float, float, float, SAME, SAME)
COMBINE(f64, double, double, double, SAME, SAME)
COMBINE(f16, uint16_t, float, float, from_f16, to_f16)
COMBINE(bf16, uint16_t, float, float, from_bf16, to_bf16)
COMBINE(i8, int8_t, int8_t, uint8_t, SAME, SAME)
COMBINE(i16, int16_t, int16_t, uint16_t, SAME, SAME)
COMBINE(i32, int32_t, int32_t, uint32_t, SAME, SAME)
COMBINE(i64, int64_t, int64_t, uint64_t, SAME, SAME)
COMBINE(u8, uint8_t, uint8_t, uint8_t, SAME, SAME)
COMBINE(u16, uint16_t, uint16_t, uint16_t, SAME, SAME)
COMBINE(u32, uint32_t, uint32_t, uint32_t, SAME, SAME)
COMBINE(u64, uint64_t, uint64_t, uint64_t, SAME, SAME)

typedef void (*combine)(void*, const void* const*, int, int64_t, int);

/* The function for elements of DLPack's type; NULL if there is none. */
static combine combine_of(int32_t code, int32_t bits) {
  int size = bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : bits == 64 ? 3 : -1;
  static const combine table[3][4] = {
      {(combine)combine_i8, (combine)combine_i16, (combine)combine_i32, (combine)combine_i64},
      {(combine)combine_u8, (combine)combine_u16, (combine)combine_u32, (combine)combine_u64},
      {NULL, (combine)combine_f16, (combine)combine_f32, (combine)combine_f64},
  };
  if (code == 4) return bits == 16 ? (combine)combine_bf16 : NULL;
  return size < 0 || code < 0 || code > 2 ? NULL : table[code][size];
}

/* ---- Pieces ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool is_cut(int32_t kind) { return kind == REDUCE_SCATTER || kind == ALL_TO_ALL; }
static bool reduces(int32_t kind) { return kind == ALL_REDUCE || kind == REDUCE_SCATTER; }

/* Whether each process reduces a part only, and reads the others' parts. */
static bool is_shared_out(const operation* op) {
  return op->label.kind == ALL_REDUCE && op->label.n * op->width > SMALL;
}

static operation* operation_at(engine* e, int64_t number) { return &e->queue[number % e->capacity]; }

static char* slot_of(engine* e, int rank, uint64_t piece) {
  return e->slots + ((size_t)rank * SLOTS + piece % SLOTS) * (size_t)(LINE + PIECE);
}

static char* data_of(engine* e, int rank, uint64_t piece) { return slot_of(e, rank, piece) + LINE; }

/* The elements [from, from + return value) of a block that a piece covers. */
static int64_t range_of(const operation* op, int64_t piece, int64_t* from) {
  *from = piece * op->step;
  return least(op->step, op->label.n / op->blocks - *from);
}

/* The elements [from, from + return value) of `count` that a process reduces: parts are whole lines. */
static int64_t part_of(const engine* e, int rank, int64_t count, int64_t width, int64_t* from) {
  int64_t line = LINE / width;
  int64_t part = ((count + e->size - 1) / e->size + line - 1) / line * line;
  *from = least(rank * part, count);
  return least(part, count - *from);
}

static void write_piece(engine* e, const operation* op, int64_t piece, uint64_t number) {
  char* data = data_of(e, e->rank, number);
  int64_t from, own, count = range_of(op, piece, &from), w = op->width, block = op->label.n / op->blocks;
  memcpy(slot_of(e, e->rank, number), &op->label, sizeof(label));
  if (op->label.kind == BROADCAST && op->label.peer != e->rank) return;
  const char* source = op->source + from * w;
  if (is_shared_out(op)) { /* all but the part that this process reduces */
    int64_t size = part_of(e, e->rank, count, w, &own);
    memcpy(data, source, (size_t)(own * w));
    memcpy(data + (own + size) * w, source + (own + size) * w, (size_t)((count - own - size) * w));
    return;
  }
  for (int64_t k = 0; k < op->blocks; ++k)
    if (op->blocks == 1 || k != e->rank)
      memcpy(data + k * op->step * w, source + k * block * w, (size_t)(count * w));
}

static void reduce_piece(engine* e, const operation* op, int64_t piece, uint64_t number) {
  int64_t from, own = 0, count = range_of(op, piece, &from), w = op->width, block = op->label.n / op->blocks;
  const label* l = &op->label;
  if (!reduces(l->kind)) return;
  int64_t place = 0, block_at = 0, size = count;
  if (l->kind == REDUCE_SCATTER) {
    place = e->rank * op->step; /* in the slots */
    block_at = e->rank * block;
  }
  if (is_shared_out(op)) size = part_of(e, e->rank, count, w, &own);
  const void* parts[e->size];
  for (int k = 0; k < e->size; ++k)
    parts[k] = k == e->rank ? op->source + (block_at + from + own) * w
                            : data_of(e, k, number) + (place + own) * w;
  char* target = op->target + (from + own) * w; /* perhaps the source */
  combine_of(l->code, l->bits)(target, parts, e->size, size, l->reduction);
  if (is_shared_out(op)) memcpy(data_of(e, e->rank, number) + own * w, target, (size_t)(size * w));
}

static void read_piece(engine* e, const operation* op, int64_t piece, uint64_t number) {
  int64_t from, own, count = range_of(op, piece, &from), w = op->width, block = op->label.n / op->blocks;
  const label* l = &op->label;
  char* target = op->target + from * w;
  size_t bytes = (size_t)(count * w);
  int origin = l->kind == BROADCAST ? l->peer : ((e->rank - l->peer) % e->size + e->size) % e->size;
  if (l->kind == BROADCAST || l->kind == SHIFT) {
    if (l->kind == BROADCAST && origin == e->rank) memmove(target, op->source + from * w, bytes);
    else memcpy(target, data_of(e, origin, number), bytes);
  }
  for (int k = 0; k < e->size; ++k) {
    const char* data = data_of(e, k, number);
    if (is_shared_out(op) && k != e->rank) {
      int64_t size = part_of(e, k, count, w, &own);
      memcpy(target + own * w, data + own * w, (size_t)(size * w));
    } else if (l->kind == ALL_GATHER) {
      memcpy(target + k * block * w, k == e->rank ? op->source + from * w : data, bytes);
    } else if (l->kind == ALL_TO_ALL) {
      const char* own_block = op->source + (e->rank * block + from) * w;
      memcpy(target + k * block * w, k == e->rank ? own_block : data + e->rank * op->step * w, bytes);
    }
  }
}

/* ---- Progress ---- */

static uint64_t passed(engine* e, int rank, int stage) {
  return atomic_load_explicit(&e->segment->ranks[rank].passed[stage], memory_order_acquire);
}

/* Whether a stage waits for a process: with its next piece, if it has one. */
static bool waits_for(engine* e, int stage, int rank) {
  if (e->at[stage].operation == e->end) return false;
  uint64_t own = passed(e, e->rank, stage);
  if (stage == READ && rank != e->rank && !is_shared_out(operation_at(e, e->at[stage].operation)))
    return false;
  return stage == WRITE ? passed(e, rank, READ) + SLOTS <= own : passed(e, rank, stage - 1) <= own;
}

static bool is_ready(engine* e, int stage) {
  for (int k = 0; k < e->size; ++k)
    if (waits_for(e, stage, k)) return false;
  return e->at[stage].operation != e->end;
}

/* Whether all processes have written the same operation into their slots. */
static bool agrees(engine* e, const operation* op, uint64_t number) {
  for (int k = 0; k < e->size; ++k)
    if (memcmp(slot_of(e, k, number), &op->label, sizeof(label))) return false;
  return true;
}

/* Counts an event and wakes the sleepers. */
static void tell(engine* e) {
  shared* s = e->segment;
  atomic_fetch_add(&s->events, 1);
  if (atomic_load(&s->sleepers)) syscall(SYS_futex, &s->events, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void fail(engine* e, int32_t code) {
  e->failed = code;
  atomic_store(&e->segment->ranks[e->rank].failed, code);
  tell(e);
}

static void pass(engine* e, int stage) {
  cursor* at = &e->at[stage];
  operation* op = operation_at(e, at->operation);
  uint64_t number = passed(e, e->rank, stage);
  op->label.piece = at->piece;
  if (stage == REDUCE && !agrees(e, op, number)) {
    fail(e, FAILED_OTHER);
    return;
  }
  (stage == WRITE ? write_piece : stage == REDUCE ? reduce_piece : read_piece)(e, op, at->piece, number);
  if (++at->piece == op->pieces) *at = (cursor){at->operation + 1, 0};
  atomic_store_explicit(&e->segment->ranks[e->rank].passed[stage], number + 1, memory_order_release);
  tell(e);
}

/* Advances all operations as far as possible; returns whether one advanced. */
static bool advance(engine* e) {
  bool any = false, more = true;
  while (more && !e->failed) {
    more = false;
    for (int stage = STAGES - 1; stage >= 0 && !e->failed; --stage)
      if (is_ready(e, stage)) {
        pass(e, stage);
        any = more = true;
      }
  }
  e->begin = e->at[READ].operation;
  return any;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each process holds a lock on the byte of its rank, which the system releases when the process ends. */
static struct flock lock_of(int rank) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

static bool has_ended(const engine* e, int rank) {
  struct flock lock = lock_of(rank);
  if (atomic_load(&e->segment->ranks[rank].pid) == getpid()) return false; /* threads share their locks */
  return fcntl(e->file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* Whether a stage still waits for a process that takes no further part. */
static bool lacks(engine* e, int rank) {
  advance(e); /* by what it has done before */
  for (int stage = 0; stage < STAGES && !e->failed; ++stage)
    if (waits_for(e, stage, rank)) return true;
  return false;
}

/* Fails if a process has ended that a stage waits for. */
static void look_for_lost(engine* e) {
  for (int k = 0; k < e->size && !e->failed; ++k) {
    if (!has_ended(e, k) || !lacks(e, k)) continue;
    int32_t none = 0;
    atomic_compare_exchange_strong(&e->segment->lost, &none, k + 1);
    fail(e, FAILED_ENDED);
  }
}

/* Fails if the engine of a process has failed that a stage waits for, by the same code. */
static void look_for_failed(engine* e) {
  for (int k = 0; k < e->size && !e->failed; ++k) {
    int32_t code = atomic_load(&e->segment->ranks[k].failed);
    if (!code || !lacks(e, k)) continue;
    e->told = k + 1;
    fail(e, code);
  }
}

static void sleep_until_event(engine* e, uint32_t seen) {
  shared* s = e->segment;
  struct timespec most = {0, SLEEP_MS * 1000000L};
  atomic_fetch_add(&s->sleepers, 1);
  syscall(SYS_futex, &s->events, FUTEX_WAIT, seen, &most, NULL, 0);
  atomic_fetch_sub(&s->sleepers, 1);
}

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* ---- Functions that Python calls ---- */

#define API __attribute__((visibility("default")))

/* Bytes of the segment of a group of `size` processes. */
API int64_t tw_shared_bytes(int32_t size) {
  int64_t head = (int64_t)(sizeof(shared) + (size_t)size * sizeof(shared_rank));
  return (head + 4095) / 4096 * 4096 + size * SLOTS * (LINE + PIECE);
}

/* Joins the group of the segment `file`, a descriptor that stays open; NULL if memory cannot be mapped. */
API engine* tw_shared_join(int32_t file, int32_t rank, int32_t size, double patience) {
  engine* e = calloc(1, sizeof(engine));
  if (!e) return NULL;
  *e = (engine){.rank = rank, .size = size, .file = file, .patience = patience};
  e->bytes = (size_t)tw_shared_bytes(size);
  void* memory = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  struct flock lock = lock_of(rank);
  if (memory == MAP_FAILED || fcntl(file, F_SETLK, &lock)) {
    if (memory != MAP_FAILED) munmap(memory, e->bytes);
    free(e);
    return NULL;
  }
  e->segment = memory;
  e->slots = (char*)memory + (e->bytes - (size_t)(size * SLOTS * (LINE + PIECE)));
  pthread_mutex_init(&e->lock, NULL);
  atomic_store(&e->segment->ranks[rank].pid, getpid());
  return e;
}

API void tw_shared_leave(engine* e) {
  munmap(e->segment, e->bytes);
  pthread_mutex_destroy(&e->lock);
  free(e->queue);
  free(e);
}

/* Begins an operation on n elements; returns its number, or a negative code. */
API int64_t tw_shared_start(engine* e, int32_t kind, int32_t code, int32_t bits, int32_t reduction,
                            int32_t peer, const void* source, void* target, int64_t n) {
  pthread_mutex_lock(&e->lock);
  int64_t number = e->end;
  if (reduces(kind) && !combine_of(code, bits)) {
    pthread_mutex_unlock(&e->lock);
    return FAILED_TYPE;
  }
  if (e->end - e->begin == e->capacity) {
    int64_t capacity = e->capacity ? 2 * e->capacity : 64;
    operation* larger = malloc((size_t)capacity * sizeof(operation));
    if (!larger) {
      fail(e, FAILED_MEMORY);
      pthread_mutex_unlock(&e->lock);
      return FAILED_MEMORY;
    }
    for (int64_t i = e->begin; i < e->end; ++i) larger[i % capacity] = *operation_at(e, i);
    free(e->queue);
    e->queue = larger;
    e->capacity = capacity;
  }
  operation* op = operation_at(e, number);
  memset(op, 0, sizeof *op); /* labels are compared as bytes */
  op->label = (label){number, 0, n, kind, code, bits, reduction, peer, 0};
  op->source = source;
  op->target = target;
  op->width = bits / 8;
  op->blocks = is_cut(kind) ? e->size : 1;
  op->step = PIECE / op->blocks / LINE * LINE / op->width;
  op->pieces = (n / op->blocks + op->step - 1) / op->step;
  if (op->pieces == 0) op->pieces = 1;
  ++e->end;
  advance(e);
  int32_t failed = e->failed;
  pthread_mutex_unlock(&e->lock);
  return failed ? failed : number;
}

/* Waits for an operation; returns 0, or a negative code if it fails. */
API int32_t tw_shared_wait(engine* e, int64_t number) {
  double since = now();
  for (int spins = 0;; ++spins) {
    pthread_mutex_lock(&e->lock);
    uint32_t seen = atomic_load(&e->segment->events);
    if (advance(e)) {
      since = now();
      spins = 0;
    }
    bool sleeps = spins > SPINS && now() - since > AWAKE;
    if (e->at[READ].operation <= number) look_for_failed(e);
    bool complete = e->at[READ].operation > number;
    if (!complete && sleeps && !e->failed) {
      look_for_lost(e);
      complete = e->at[READ].operation > number;
      if (!complete && !e->failed && now() - since > e->patience) fail(e, FAILED_LATE);
    }
    int32_t failed = e->failed;
    pthread_mutex_unlock(&e->lock);
    if (complete) return DONE;
    if (failed) return failed;
    if (sleeps) sleep_until_event(e, seen);
    else if (spins > SPINS) sched_yield();
    else pause_briefly();
  }
}

/* Waits for all operations that have begun; returns 0, or the code by which the group has failed. */
API int32_t tw_shared_settle(engine* e) {
  pthread_mutex_lock(&e->lock);
  int64_t last = e->end - 1;
  pthread_mutex_unlock(&e->lock);
  int32_t status = tw_shared_wait(e, last);
  return status ? status : e->failed;
}

/* ---- Functions that compiled code calls: those of `tw_group` ---- */

API int32_t tw_shared_group_start(const tw_group* group, int32_t kind, int32_t code, int32_t bits,
                                  int32_t reduction, int32_t peer, const void* source, void* target,
                                  int64_t n, int64_t m) {
  (void)m;
  engine* e = group->engine;
  int64_t number = tw_shared_start(e, kind, code, bits, reduction, peer, source, target, n);
  if (number >= 0) return DONE;
  pthread_mutex_lock(&e->lock);
  if (!e->failed) fail(e, (int32_t)number); /* the other processes would wait for this one */
  pthread_mutex_unlock(&e->lock);
  return (int32_t)number;
}

/* An operation that is complete has left the queue. */
API int32_t tw_shared_group_wait(const tw_group* group, void* target) {
  engine* e = group->engine;
  pthread_mutex_lock(&e->lock);
  int64_t number = e->end - 1;
  while (number >= e->begin && operation_at(e, number)->target != target) --number;
  bool found = number >= e->begin;
  pthread_mutex_unlock(&e->lock);
  return found ? tw_shared_wait(e, number) : DONE;
}

/* One more than the rank whose failed engine is why this one has failed; 0: there is none. */
API int32_t tw_shared_told(const engine* e) { return e->told; }

/* Whether the process of a rank was the first that was found to have ended. */
API int32_t tw_shared_lost(const engine* e, int32_t rank) {
  int32_t lost = atomic_load(&e->segment->lost);
  return lost ? lost == rank + 1 : has_ended(e, rank);
}
