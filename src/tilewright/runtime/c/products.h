/* products.h - products of matrices by a vendor's library on a device. */
#ifndef TILEWRIGHT_PRODUCTS_H_
#define TILEWRIGHT_PRODUCTS_H_

#include "device.h"

#if TW_ON_DEVICE

/* What the library has made for the products of a queue. */
typedef struct tw_products tw_products;

/* Whether the kernel with this number is a call of a library. */
static inline int tw_is_product(int32_t kernel) { return tw_device_module.kernels[kernel].module < 0; }

/* Starts a product on the queue's `stream`; the rest as of tw_queue_launch. */
int tw_product_launch(tw_products** products, int32_t kernel, const int64_t* launch, void* const* buffers,
                      void* stream);
void tw_products_destroy(tw_products* products);

#endif
#endif /* TILEWRIGHT_PRODUCTS_H_ */
