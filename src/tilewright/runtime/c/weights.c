/* weights.c - finds the weights of a context: embedded in the library, in memory of the caller, or in a
 * weights file. */
#include "internal.h"

static const uint8_t MAGIC[8] = {'T', 'I', 'L', 'E', 'W', 'G', 'T', 1};

/* Whether the weights have the checksum `hash`; 0: there is no checksum to compare with. */
static int matches(const uint8_t* weights, uint64_t hash) {
  return !hash || tw_hash(weights, (uint64_t)tw_module.weights_size) == hash;
}

/* Uses the weights that are embedded in the library. `skip_verify`: does not compute their checksum. */
static int use_embedded(const uint8_t** weights, int skip_verify) {
  static _Atomic int verified; /* by any context of this process: the weights are constant */
  int64_t expected = tw_module.weights_size;
  const tw_blob* blob = &tw_blob_weights;
  if (blob->size == 0)
    return tw_fail(
        TW_ERROR_ARGUMENT,
        "the model's %d bytes of weights are not embedded: set weights or weights_path in tw_options",
        expected);
  if (blob->size != expected)
    return tw_fail(TW_ERROR_DAMAGED,
                   "damaged file: the library embeds %d bytes of weights, expected %d: save the model again",
                   blob->size, expected);
  *weights = blob->distance ? (const uint8_t*)blob + blob->distance : blob->bytes;
  if (skip_verify || atomic_load(&verified)) return TW_OK;
  if (!matches(*weights, (uint64_t)blob->hash))
    return tw_fail(TW_ERROR_DAMAGED,
                   "damaged file: the embedded weights differ from their checksum: save the model again");
  atomic_store(&verified, 1);
  return TW_OK;
}

/* Uses the weights at tw_options.weights. */
static int use_caller_memory(const tw_options* options, const uint8_t** weights) {
  int64_t expected = tw_module.weights_size;
  if (options->weights_size != (uint64_t)expected)
    return tw_fail(TW_ERROR_ARGUMENT, "the model has %d bytes of weights, got %d in tw_options", expected,
                   (int64_t)options->weights_size);
  if ((uintptr_t)options->weights % TW_ALIGNMENT)
    return tw_fail(TW_ERROR_ARGUMENT, "the weights in tw_options must be aligned to %d bytes",
                   (int64_t)TW_ALIGNMENT);
  *weights = options->weights;
  if (!(options->flags & TW_SKIP_VERIFY) && !matches(*weights, (uint64_t)tw_blob_weights.hash))
    return tw_fail(TW_ERROR_DAMAGED,
                   "the weights in tw_options differ from those that the model was compiled "
                   "with: pass the weights that were saved with this library");
  return TW_OK;
}

/* Writes an identity as 32 hexadecimal digits and a zero byte to `text`, and returns `text`. */
static const char* hexadecimal(const uint8_t* identity, char* text) {
  static const char digits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    text[2 * i] = digits[identity[i] >> 4];
    text[2 * i + 1] = digits[identity[i] & 15];
  }
  text[32] = 0;
  return text;
}

static int bytes_equal(const uint8_t* left, const uint8_t* right, int count) {
  while (count > 0 && *left == *right) --count, ++left, ++right;
  return count == 0;
}

/* The identity of libraries that are not saved with a weights file. */
static const uint8_t UNCHECKED[16];

/* Maps the weights file `path` into `mapping` and checks its header against this library. With `verify` it
 * also compares the checksum of the weights, which reads the whole file. */
static int use_file(const char* path, const uint8_t** weights, tw_mapping* mapping, int verify) {
  uint64_t expected_size = (uint64_t)tw_module.weights_size;
  const char* problem = tw_map_file(path, mapping);
  if (problem) return tw_fail(TW_ERROR_FILE, "%s: the weights cannot be read: %s", path, problem);
  const tw_weights_header* header = (const void*)mapping->data;
  if (mapping->size < TW_WEIGHTS_START || !bytes_equal(header->magic, MAGIC, sizeof MAGIC))
    return tw_fail(TW_ERROR_DAMAGED, "%s: not a weights file of Tilewright", path);
  if (header->version != TW_WEIGHTS_VERSION)
    return tw_fail(
        TW_ERROR_ABI,
        "%s: the file has format version %d, this library reads version %d: compile the model again", path,
        (int64_t)header->version, (int64_t)TW_WEIGHTS_VERSION);
  const uint8_t* expected = tw_blob_weights.identity;
  if (!bytes_equal(expected, UNCHECKED, 16) && !bytes_equal(header->identity, expected, 16)) {
    char expected_text[33], found_text[33];
    hexadecimal(expected, expected_text), hexadecimal(header->identity, found_text);
    if (header->size != expected_size)
      return tw_fail(
          TW_ERROR_DAMAGED,
          "%s: these weights belong to another model: this library was compiled for %s (%d bytes), "
          "the file holds %s (%d bytes)",
          path, expected_text, (int64_t)expected_size, found_text, (int64_t)header->size);
    return tw_fail(
        TW_ERROR_DAMAGED,
        "%s: these weights belong to another model, or to another compilation of it: this library "
        "was compiled for %s, the file holds %s; both have %d bytes, so their values or order differ",
        path, expected_text, found_text, (int64_t)expected_size);
  }
  if (header->size != expected_size)
    return tw_fail(TW_ERROR_DAMAGED, "%s: the model has %d bytes of weights, the file holds %d", path,
                   (int64_t)expected_size, (int64_t)header->size);
  if (mapping->size - TW_WEIGHTS_START != expected_size)
    return tw_fail(TW_ERROR_DAMAGED, "%s: damaged file: %d bytes expected, %d found", path,
                   (int64_t)(TW_WEIGHTS_START + expected_size), (int64_t)mapping->size);
  *weights = mapping->data + TW_WEIGHTS_START;
  if (verify && !matches(*weights, header->hash))
    return tw_fail(TW_ERROR_DAMAGED, "%s: damaged file: the weights differ from their checksum", path);
  return TW_OK;
}

int tw_weights_are_own(const tw_options* options) {
  if (options && options->weights) return !(options->flags & TW_SKIP_VERIFY);
  return !(options && options->weights_path) || !bytes_equal(tw_blob_weights.identity, UNCHECKED, 16);
}

int tw_find_weights(const tw_options* options, const uint8_t** weights, tw_mapping* mapping) {
  *weights = NULL;
  if (tw_module.weights_size == 0) return TW_OK;
  if (options && options->weights) return use_caller_memory(options, weights);
  if (options && options->weights_path)
    return use_file(options->weights_path, weights, mapping, (options->flags & TW_VERIFY_FILE) != 0);
  return use_embedded(weights, options && (options->flags & TW_SKIP_VERIFY));
}
