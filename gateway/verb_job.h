/* verb_job.h - what the verbs in (c) share: handlers of each, and printing of jobs. */
#ifndef VERB_JOB_H
#define VERB_JOB_H

#include <jansson.h>

#include "talk.h"
#include "weir.h"

extern const struct verb_handler verb_help_handler, verb_version_handler, verb_whoami_handler, verb_home_handler, verb_pool_handler,
    verb_tokenize_handler, verb_ask_handler, verb_submit_handler, verb_run_handler, verb_status_handler, verb_list_handler,
    verb_watch_handler, verb_wait_handler, verb_results_handler, verb_change_handler, verb_usage_handler, verb_keys_handler,
    verb_chat_handler, verb_top_handler, verb_trace_handler, verb_verify_handler;

/* Ask (b) with these messages and the options of the command line.  false: it could not be sent, and the verb's `failed` was called. */
bool request_send(struct talk *t, enum door_session session, const struct weir_message *messages, size_t n);

/* Read the text of a reply as JSON.  NULL: the talk has been failed. */
json_t *job_reply_json(struct talk *t, struct door_reader *r, int fd);

/* (b) gave something that cannot be: an internal error, and the talk has been failed. */
void job_internal_failure(struct talk *t, const char *what);

/* Ask (b) about the job of the command line (type: one whose body is a job); for one of a job's files. */
void job_ask(struct talk *t, enum door_type type);
void job_ask_file(struct talk *t, const char *job, enum door_file file);
/* Ask (b) where the answers of t->job lie in its output. */
void job_ask_places(struct talk *t);
/* Keep in t->job the id that (b) has resolved, for the questions that follow: `last` may become another job. */
void job_keep_id(struct talk *t, const json_t *job);
/* Read the job's input, whose descriptor this is, with t->input.  false: the talk has been failed. */
bool job_take_input(struct talk *t, int fd);

/* A table of jobs for people; at most so many lines. */
void job_print_list(struct talk *t, const json_t *jobs, size_t n_max);
/* "45 s", "12 min", "3 h 5 min" */
void job_format_seconds(char *text, size_t bytes, uint64_t s);

/* Print the answers of a job from the first on, until it has ended; then finish with its exit code.  The verb's reply and drained
 * must be these. */
void job_follow_output(struct talk *t, const char *id);
void job_stream_reply(struct talk *t, struct door_reader *r, int fd);
void job_stream_drained(struct talk *t);

/* Ask (b) for what it knows of the pool. */
void pool_ask(struct talk *t, enum door_pool what);

#endif
