/* trace_view.h - what `weir trace` and `ssh box trace` show of the broker's answer to "trace", as text: a request as a small timeline,
 * or a list of requests.  Lines have at most 100 columns, but for long names. */
#ifndef TRACE_VIEW_H
#define TRACE_VIEW_H

#include <jansson.h>
#include <stdio.h>

/* One element of "requests", of a trace that was asked for by name. */
void trace_view_request(const json_t *request, FILE *out);
/* The array "requests" of one that was not. */
void trace_view_list(const json_t *requests, FILE *out);

#endif
