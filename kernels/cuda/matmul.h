/* matmul.h - matrix products of bf16 by a library, for fast prefill: y [rows][n] = (or +=) x [rows][k] times w [n][k] transposed,
 * sums in float.  matmul.cu is cuBLASLt; tests/emu/matmul_emu.cc is plain loops.
 *
 * For one shape (n, k and the strides) there is one algorithm, chosen at the start for MATMUL_ROWS rows and kept for any number:
 * no split over k, no workspace, so what a row gives does not depend on the others.
 *
 * Strides are in elements; w, x and y are aligned to 16 bytes, as is every row of them.  Threads: one. */
#ifndef MATMUL_H
#define MATMUL_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MATMUL_ROWS = 512, MATMUL_SHAPES_MAX = 64 };

struct matmul_shape {
    uint32_t n, k, w_stride, x_stride, y_stride;
};

struct matmul; /* opaque */

/* Load the library.  ST_OK; ST_UNSUPPORTED: it is not here, or too old (*err says which); ST_NOMEM; ST_SYSTEM. */
MUST_CHECK enum status matmul_open(struct matmul **ret_matmul, struct error *err);
void matmul_close(struct matmul *m); /* NULL is fine */
/* Of the library: part of what results depend on. */
uint64_t matmul_version(const struct matmul *m);

/* Choose the algorithm of a shape, if that is not done yet.  ST_OK; ST_UNSUPPORTED: there is none without a split; ST_LIMIT: too
 * many shapes. */
MUST_CHECK enum status matmul_choose(struct matmul *m, const struct matmul_shape *shape);

/* A product of a shape that was chosen.  ST_OK or ST_SYSTEM. */
MUST_CHECK enum status matmul_run(struct matmul *m, const struct matmul_shape *shape, const uint16_t *w, const uint16_t *x, float *y,
                                  uint32_t rows, bool add, device_stream s);

#ifdef __cplusplus
}
#endif

#endif
