/* parameters.h - the request parameters of other APIs that Weir knows and does not implement.
 *
 * One list for the wire and for job lines, so that both give `unsupported_parameter` and name it: a parameter is never ignored.
 * A client's own data goes into `ext` (in job lines also into keys that begin with x_). */
#ifndef PARAMETERS_H
#define PARAMETERS_H

#include <stdbool.h>

#include "span.h"

/* True for a parameter that the OpenAI API, vLLM or llama.cpp has and Weir has not.  False for our own and for unknown names. */
bool wire_is_unsupported_parameter(struct span name);

#endif
