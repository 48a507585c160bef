/* record.h - a client's request as the flat record a worker reads (work.h), made once when it arrives.
 *
 * The record is also what the broker keeps of a request: prompt, stop strings, bias, sampling.  The frame it came in is given back at
 * once.  What is only known at dispatch (slot, generation, fair tag, tokens so far) is filled in while the record is written into
 * a worker's arena; so the same record serves every worker the request may meet. */
#ifndef RECORD_H
#define RECORD_H

#include <stdint.h>

#include "error.h"
#include "span.h"
#include "status.h"
#include "wire.h"
#include "work.h"

struct record {
    uint8_t *at;    /* struct work_request and its parts, without resume; malloc()ed */
    uint32_t bytes;
};

struct record_context {   /* what the message itself does not say */
    uint64_t scope[2];
    uint64_t arrived_ns, deadline_ns;
    uint64_t seed;
};

struct record_resume {    /* one choice that has begun */
    uint32_t choice, n_ids, released_bytes;
    bool finished;
    const int32_t *ids;
};

/* ST_OK; ST_LIMIT (*err names it); ST_NOMEM. */
MUST_CHECK enum status record_of_generate(const struct wire_generate *g, const struct record_context *c, struct record *ret_record,
                                          struct error *err);
MUST_CHECK enum status record_of_tokenize(struct span text, bool special, const struct record_context *c, struct record *ret_record,
                                          struct error *err);
void record_deinit(struct record *r);

static inline const struct work_request *record_head(const struct record *r)
{
    return (const struct work_request *)r->at;
}

/* The seed is drawn, or known, later. */
void record_set_seed(struct record *r, uint64_t seed);

/* The prompt's bytes as the worker gets them. */
struct span record_prompt(const struct record *r);

/* Bytes of the record together with these resumed choices. */
uint64_t record_resumed_bytes(const struct record *r, const struct record_resume *resume, uint32_t n_resume);

/* Write the record with its resume part to dest, which has record_resumed_bytes() bytes. */
void record_write(const struct record *r, uint32_t slot, uint32_t generation, uint64_t fair_tag, const struct record_resume *resume,
                  uint32_t n_resume, uint8_t *dest);

#endif
