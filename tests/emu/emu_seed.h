/* emu_seed.h - the emulation's seed for tests written in C. */
#ifndef EMU_SEED_H
#define EMU_SEED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void emu_seed(uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
