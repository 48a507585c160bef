/* job_json.h - a job as JSON, in the shape of the OpenAI batch object, with what is Weir's own beside it. */
#ifndef JOB_JSON_H
#define JOB_JSON_H

#include <jansson.h>

#include "job_store.h"
#include "runner.h"

/* The runner knows more of a job that has not ended: what runs, why it waits, when it may end.  NULL: out of memory. */
json_t *job_json(const struct job_row *row, struct runner *runner);

#endif
