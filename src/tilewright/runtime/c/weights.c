/* weights.c - where a context's weights are: in the library, in the caller's memory, or in a file beside
 * it. */
#include "internal.h"

static const uint8_t MAGIC[8] = {'T', 'I', 'L', 'E', 'W', 'G', 'T', 1};

static int verify(const uint8_t* weights, uint64_t hash, const char* problem) {
  if (!hash || tw_hash(weights, (uint64_t)tw_module.weights_size) == hash) return TW_OK;
  return tw_fail(TW_ERROR_DAMAGED, problem);
}

static int find_embedded(const uint8_t** weights, int trusted) {
  static _Atomic int verified; /* once for all contexts */
  int64_t wanted = tw_module.weights_size;
  const tw_blob* blob = &tw_blob_weights;
  if (blob->size == 0)
    return tw_fail(TW_ERROR_ARGUMENT,
                   "the model's %d bytes of weights are not embedded: pass them, or the file they lie in, in tw_options",
                   wanted);
  if (blob->size != wanted)
    return tw_fail(TW_ERROR_DAMAGED, "damaged file: %d bytes of weights expected, %d embedded", wanted, blob->size);
  *weights = blob->distance ? (const uint8_t*)blob + blob->distance : blob->bytes;
  if (trusted || atomic_load(&verified)) return TW_OK;
  int status =
      verify(*weights, (uint64_t)blob->hash, "damaged file: the embedded weights differ from what was compiled");
  if (!status) atomic_store(&verified, 1);
  return status;
}

static int take_given(const tw_options* options, const uint8_t** weights) {
  int64_t wanted = tw_module.weights_size;
  if (options->weights_size != (uint64_t)wanted)
    return tw_fail(TW_ERROR_ARGUMENT, "the model has %d bytes of weights, got %d", wanted,
                   (int64_t)options->weights_size);
  if ((uintptr_t)options->weights % TW_ALIGNMENT)
    return tw_fail(TW_ERROR_ARGUMENT, "the weights must start at a multiple of %d bytes", (int64_t)TW_ALIGNMENT);
  *weights = options->weights;
  return options->flags & TW_SKIP_VERIFY ? TW_OK
                                         : verify(*weights, (uint64_t)tw_blob_weights.hash,
                                                  "the weights given are not those the model was compiled with");
}

static const char* hexadecimal(const uint8_t* identity, char* text) {
  static const char digits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    text[2 * i] = digits[identity[i] >> 4];
    text[2 * i + 1] = digits[identity[i] & 15];
  }
  text[32] = 0;
  return text;
}

static int same(const uint8_t* left, const uint8_t* right, int count) {
  while (count > 0 && *left == *right) --count, ++left, ++right;
  return count == 0;
}

static int map_file(const char* path, const uint8_t** weights, tw_mapping* mapping, int whole) {
  static const uint8_t nothing[16];
  uint64_t wanted = (uint64_t)tw_module.weights_size;
  const char* problem = tw_map_file(path, mapping);
  if (problem) return tw_fail(TW_ERROR_FILE, "%s: the weights cannot be read: %s", path, problem);
  const tw_weights_header* header = (const void*)mapping->data;
  if (mapping->size < TW_WEIGHTS_START || !same(header->magic, MAGIC, sizeof MAGIC))
    return tw_fail(TW_ERROR_DAMAGED, "%s: is no file of Tilewright's weights", path);
  if (header->version != TW_WEIGHTS_VERSION)
    return tw_fail(TW_ERROR_ABI, "%s: its format is version %d, this library reads version %d: compile the model again",
                   path, (int64_t)header->version, (int64_t)TW_WEIGHTS_VERSION);
  const uint8_t* expected = tw_blob_weights.identity;
  if (!same(expected, nothing, 16) && !same(header->identity, expected, 16)) {
    char own[33], found[33];
    hexadecimal(expected, own), hexadecimal(header->identity, found);
    if (header->size != wanted)
      return tw_fail(TW_ERROR_DAMAGED,
                     "%s: these weights belong to another model: this library was compiled for %s (%d bytes), the file "
                     "holds %s (%d bytes)",
                     path, own, (int64_t)wanted, found, (int64_t)header->size);
    return tw_fail(TW_ERROR_DAMAGED,
                   "%s: these weights belong to another model, or to another compilation of it: this library was compiled "
                   "for %s, the file holds %s; both are of %d bytes, so their values or order differ",
                   path, own, found, (int64_t)wanted);
  }
  if (header->size != wanted)
    return tw_fail(TW_ERROR_DAMAGED, "%s: the model has %d bytes of weights, the file holds %d", path, (int64_t)wanted,
                   (int64_t)header->size);
  if (mapping->size - TW_WEIGHTS_START != wanted)
    return tw_fail(TW_ERROR_DAMAGED, "%s: damaged file: %d bytes expected, %d found", path,
                   (int64_t)(TW_WEIGHTS_START + wanted), (int64_t)mapping->size);
  *weights = mapping->data + TW_WEIGHTS_START;
  return whole ? verify(*weights, header->hash, "damaged file: the weights differ from their checksum") : TW_OK;
}

int tw_find_weights(const tw_options* options, const uint8_t** weights, tw_mapping* mapping) {
  *weights = NULL;
  if (tw_module.weights_size == 0) return TW_OK;
  if (options && options->weights) return take_given(options, weights);
  if (options && options->weights_path)
    return map_file(options->weights_path, weights, mapping, (options->flags & TW_VERIFY_FILE) != 0);
  return find_embedded(weights, options && (options->flags & TW_SKIP_VERIFY));
}
