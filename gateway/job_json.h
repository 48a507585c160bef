/* job_json.h - a job as JSON, in the shape of the OpenAI batch object, with what is Weir's own beside it. */
#ifndef JOB_JSON_H
#define JOB_JSON_H

#include <jansson.h>

#include "job_store.h"
#include "runner.h"

/* live: the running job, for note and eta; NULL when it does not run.  NULL: out of memory. */
json_t *job_json(const struct job_row *row, const struct job *live, uint64_t now_ns);

#endif
