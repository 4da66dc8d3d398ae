/* static.h - a model in static memory: no operating system, no threads, no allocation.
 *
 * The sources of a model define its memory and its functions, and call the runtime below. It is C11 and needs
 * memcpy and the functions of math.h that the kernels call. A context serves one call at a time. */
#ifndef TILEWRIGHT_STATIC_H_
#define TILEWRIGHT_STATIC_H_

#include "names.h" /* gives the global names below the model's prefix */
#include "runtime.h"

enum { TW_STATIC_MESSAGE = 160 }; /* bytes of a message, with its final zero */

struct tw_context {
  uint8_t* arena; /* aligned to 64, as all memory here */
  int64_t arena_size;
  uint8_t* scratch;
  int64_t scratch_size;
  void** states;
  const uint8_t* weights;
  int64_t* symbols;
  char message[TW_STATIC_MESSAGE];
};

/* Runs a function of the model.
 *
 * shapes: the sizes of each input. inputs, outputs: the addresses of the elements, in the order of the
 * model's description. Returns a tw_status; `message` then says what is wrong. */
int tw_static_run(tw_context* context, int32_t function, const int64_t* const* shapes, void** inputs,
                  void** outputs);

/* Gives all states their initial values. */
void tw_static_reset(tw_context* context);

/* Reports that the weights have not been set. Returns TW_ERROR_ARGUMENT. */
int tw_static_no_weights(tw_context* context);

#endif /* TILEWRIGHT_STATIC_H_ */
