/* device_graphs.c - runs that were noted as graphs: a run with the sizes and addresses of an earlier one
 * starts the same work, unless the host program reads a value of the device. */
#include "device.h"

#if TW_HAS_GRAPHS

enum {
  KEPT = 64,   /* graphs of a context */
  SEEN = 4096, /* runs that are remembered until they are seen again */
  UNUSED = 256 /* runs without use after which a graph may be replaced; else many sizes in turn would make
                  every run a capture, which takes longer than the run */
};

typedef struct {
  uint64_t hash;
  int64_t* key; /* NULL: unused */
  int32_t length;
  uint64_t used; /* the number of the last run that replayed it */
  void* graph;
} kept;

struct tw_graphs {
  kept entries[KEPT];
  uint64_t seen[SEEN]; /* hashes of runs, 0: none */
  uint64_t runs;
  int64_t* key; /* of the run that is looked for */
  int32_t length, capacity;
};

tw_graphs* tw_graphs_create(void) {
  tw_graphs* made = tw_memory_allocate(sizeof *made);
  if (made) __builtin_memset(made, 0, sizeof *made);
  return made;
}

static void forget(kept* entry, tw_queue* queue) {
  if (!entry->key) return;
  tw_queue_forget(queue, entry->graph);
  tw_memory_free(entry->key);
  entry->key = NULL;
}

void tw_graphs_destroy(tw_graphs* graphs, tw_queue* queue) {
  if (!graphs) return;
  for (int32_t i = 0; i < KEPT; ++i) forget(&graphs->entries[i], queue);
  tw_memory_free(graphs->key);
  tw_memory_free(graphs);
}

int64_t* tw_graphs_key(tw_graphs* graphs, int32_t length) {
  if (length > graphs->capacity) {
    int64_t* larger = tw_memory_allocate((size_t)length * sizeof(int64_t));
    if (!larger) return NULL;
    tw_memory_free(graphs->key);
    graphs->key = larger;
    graphs->capacity = length;
  }
  graphs->length = length;
  return graphs->key;
}

/* FNV-1a over words, with a shift so that high bits reach low ones; never 0. */
static uint64_t hash_of(const int64_t* key, int32_t length) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int32_t i = 0; i < length; ++i) {
    hash = (hash ^ (uint64_t)key[i]) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash ? hash : 1;
}

static int same_key(const kept* entry, const tw_graphs* graphs, uint64_t hash) {
  if (!entry->key || entry->hash != hash || entry->length != graphs->length) return 0;
  for (int32_t i = 0; i < graphs->length; ++i)
    if (entry->key[i] != graphs->key[i]) return 0;
  return 1;
}

void* tw_graphs_find(tw_graphs* graphs) {
  uint64_t hash = hash_of(graphs->key, graphs->length);
  ++graphs->runs;
  for (int32_t i = 0; i < KEPT; ++i)
    if (same_key(&graphs->entries[i], graphs, hash)) {
      graphs->entries[i].used = graphs->runs;
      return graphs->entries[i].graph;
    }
  return NULL;
}

/* The place of the next graph; NULL: all are in use. */
static kept* place_of_next(tw_graphs* graphs) {
  kept* oldest = &graphs->entries[0];
  for (int32_t i = 0; i < KEPT && oldest->key; ++i)
    if (!graphs->entries[i].key || graphs->entries[i].used < oldest->used) oldest = &graphs->entries[i];
  return oldest->key && graphs->runs - oldest->used < UNUSED ? NULL : oldest;
}

int tw_graphs_wanted(tw_graphs* graphs) {
  uint64_t hash = hash_of(graphs->key, graphs->length);
  return graphs->seen[hash % SEEN] == hash && place_of_next(graphs);
}

void tw_graphs_note(tw_graphs* graphs) {
  uint64_t hash = hash_of(graphs->key, graphs->length);
  graphs->seen[hash % SEEN] = hash;
}

void* tw_graphs_keep(tw_graphs* graphs, tw_queue* queue, void* graph) {
  kept* place = place_of_next(graphs);
  int64_t* key = place ? tw_memory_allocate((size_t)graphs->length * sizeof(int64_t)) : NULL;
  if (!key) {
    tw_queue_forget(queue, graph);
    return NULL;
  }
  forget(place, queue);
  __builtin_memcpy(key, graphs->key, (size_t)graphs->length * sizeof(int64_t));
  *place = (kept){hash_of(key, graphs->length), key, graphs->length, graphs->runs, graph};
  return graph;
}

#else
typedef int tw_device_graphs_unused; /* C11 requires a declaration in every file */
#endif
