/* kernels_scalar.c - the kernels in plain C: the specification, the oracle of the vector ones, and what runs on machines
 * without any of their instruction sets (aarch64 among them). */
#define VEC_SCALAR
#define KERNELS_TABLE kernels_scalar
#define KERNELS_NAME  "scalar"
#include "kernels_body.h"
