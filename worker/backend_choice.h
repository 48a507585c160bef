/* backend_choice.h - which backend serves a worker: `auto`, `cpu`, `cuda` or `cuda:K`.
 *
 * The CPU backend is linked in.  The CUDA backend is a plug-in, libweir_cuda.so beside the program (or in ../lib/weir), that
 * exports `const struct backend_api *backend_cuda(void)`; it is loaded only when a GPU may be wanted, so one worker binary
 * serves machines with and without one. */
#ifndef BACKEND_CHOICE_H
#define BACKEND_CHOICE_H

#include "backend.h"
#include "error.h"

enum { BACKEND_REASON_BYTES = 256 };

struct backend_choice {
    const struct backend_api *api;
    uint32_t ordinal;                   /* of the device */
    bool may_fall_back;                 /* auto chose a GPU: if it cannot be opened, the CPU serves */
    char reason[BACKEND_REASON_BYTES];  /* why this one */
};

/* ST_OK; ST_INVALID: not a device name; ST_UNSUPPORTED: no such backend here (*err says why). */
MUST_CHECK enum status backend_choose(const char *device, struct backend_choice *ret_choice, struct error *err);

#endif
