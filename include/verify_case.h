/* verify_case.h - one answer of a batch, the request that it was made from, and whether the same bits come out again.
 *
 * What `weir verify` and `ssh box verify` share: which answers are drawn, what is asked again, how two answers are compared and what is said
 * of it.  No I/O and no broker in it.
 *
 * A record holds what it takes: seed, model, system_fingerprint, and a hash of the token ids of each choice.  The request is that of the
 * input line; a limit of tokens that came from the job is known from answers that ended by it.  What is compared is the `choices` of both
 * records, as JSON with nine digits a number, which tell any two 32-bit floats apart: text, finish reasons, token hashes, log-probabilities.
 *
 * Equal bits are promised within one class (system_fingerprint).  An answer that another class computed is neither equal nor
 * different here: it is not compared, and it is said. */
#ifndef VERIFY_CASE_H
#define VERIFY_CASE_H

#include <jansson.h>

#include "weir_batch.h"

enum { VERIFY_SAMPLE = 16 /* answers, unless told otherwise */, VERIFY_SAMPLE_MAX = 1000 };

enum verify_result { VERIFY_EQUAL, VERIFY_DIFFERS, VERIFY_OTHER_CLASS, VERIFY_NOT_RERUN, VERIFY_RESULTS };

/* Which of the answers that pass by are taken: each has the same chance (reservoir sampling), and a seed takes the same ones again. */
struct verify_draw {
    uint64_t state; /* the seed, before the first answer */
    size_t wanted;
    uint64_t n_seen;
};

/* One more answer passes by.  The place below `wanted` that it takes, from an earlier one or free; SIZE_MAX: it is not taken. */
size_t verify_draw_next(struct verify_draw *d);
/* A seed that nobody asked for: 53 bits, which JSON keeps. */
uint64_t verify_draw_seed(void);

struct verify_case {
    json_t *record;         /* the line of the output; NULL: none */
    const char *custom_id;  /* in record */
    const json_t *body;     /* likewise */
    struct weir_line line;  /* of the input, put there by the caller; custom_id NULL: not found */
    uint64_t seed;
    bool has_seed;
};

/* A line of the output.  false: it is not a record of a batch.  *ret_answer: it is an answer; an error has no bits, and *ret_case is as it was. */
bool verify_case_read(const char *text, size_t bytes, struct verify_case *ret_case, bool *ret_answer);
void verify_case_deinit(struct verify_case *c); /* a zeroed one is fine */

const char *verify_case_class(const struct verify_case *c);
/* The request that gives this answer again; it borrows of *c.  WEIR_OK; WEIR_FAILED: it cannot be made again, and *err says why. */
int verify_case_request(const struct verify_case *c, struct weir_request *ret_request, struct weir_error *err);
/* again: the record of the answer to that request.  ret_why: where they part, in words, unless VERIFY_EQUAL. */
enum verify_result verify_case_compare(const struct verify_case *c, const json_t *again, char *ret_why, size_t room);

/* Is a worker of that class among those of the broker's status?  WEIR_OK; WEIR_FAILED: *err is no_worker and names the classes there are. */
int verify_class_check(const json_t *status, const char *class, struct weir_error *err);

struct verify_report {
    uint64_t n_answers, draw; /* of the output; the seed of the draw */
    unsigned n[VERIFY_RESULTS];
    json_t *lines; /* what is not equal; NULL before the first */
};

const char *verify_result_name(enum verify_result result); /* "differs" */
/* why: NULL of what is equal. */
void verify_report_add(struct verify_report *r, const char *custom_id, enum verify_result result, const char *why);
/* The sum, as a line of text with its newline, or as JSON with the lines in it (NULL: out of memory). */
void verify_report_text(const struct verify_report *r, char *ret_text, size_t room);
json_t *verify_report_json(const struct verify_report *r, const char *class);
void verify_report_deinit(struct verify_report *r);

#endif
