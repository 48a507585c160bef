/* emu_seed.h - what tests written in C ask of the emulation. */
#ifndef EMU_SEED_H
#define EMU_SEED_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void emu_seed(uint64_t seed);
uint64_t emu_launches(void);     /* kernels launched so far */
uint64_t emu_detours(void);      /* copies so far from or to host memory that the device does not reach by itself */
uint64_t emu_stream_waits(void); /* times so far that a stream was told to wait for another's event */
void emu_graphs(bool on);        /* whether backends opened from now on record graphs; at first they do not */
uint64_t emu_replays(void);      /* graphs launched so far */
void emu_fail_after(uint64_t launches); /* then a launch fails, and all that follows; UINT64_MAX: never */
void emu_memory(uint64_t bytes); /* what the device has free; 8 GiB */

#ifdef __cplusplus
}
#endif

#endif
