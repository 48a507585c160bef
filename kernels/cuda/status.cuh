/* status.cuh - launches as the host code sees them. */
#ifndef STATUS_CUH
#define STATUS_CUH

#include "cuda.cuh"
#include "launch.h"

/* device.cu: keep the reason for device_error(). */
enum status device_failed(const char *what, int error);
enum status device_failed_text(const char *text);

static inline enum status status_of(cudaError_t error)
{
    return error == cudaSuccess ? ST_OK : device_failed("launch", (int)error);
}

/* Blocks along x: groups of `per_group` panels of every part (of the first alone where gate and up go together). */
static inline uint32_t groups(const struct product_args *a, uint32_t per_group)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < (a->kind == PRODUCT_GATE ? 1 : a->n_parts); i++)
        n += (a->part[i].n_panels + per_group - 1) / per_group;
    return n;
}

#endif
