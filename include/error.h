/* error.h - what a user did wrong, or what went wrong for them, in words that stay the same.
 *
 *   code     stable, lower_case, from ERROR_LIST: programs compare it
 *   param    the field, line or option at fault; empty when there is none
 *   message  one sentence for people, names values and limits: "prompt has 9,120 tokens, model takes 8,192"
 *
 * Printed as `code: message (param)`.  A struct error owns its text; copying the struct copies it. */
#ifndef ERROR_H
#define ERROR_H

#include <stdbool.h>

#include "status.h"

/* code, the HTTP-like status that job output lines carry, exit code of the command-line client */
#define ERROR_LIST(X)                                                      \
    X(ERR_NONE,                  "",                        200)           \
    X(ERR_INVALID_REQUEST,       "invalid_request",         400)           \
    X(ERR_MALFORMED_MESSAGE,     "malformed_message",       400)           \
    X(ERR_UNKNOWN_FIELD,         "unknown_field",           400)           \
    X(ERR_UNSUPPORTED_PARAMETER, "unsupported_parameter",   400)           \
    X(ERR_INVALID_PARAMETER,     "invalid_parameter",       400)           \
    X(ERR_CONTEXT_OVERFLOW,      "context_overflow",        400)           \
    X(ERR_LIMIT_EXCEEDED,        "limit_exceeded",          400)           \
    X(ERR_MODEL_NOT_FOUND,       "model_not_found",         404)           \
    X(ERR_NOT_FOUND,             "not_found",               404)           \
    X(ERR_PERMISSION_DENIED,     "permission_denied",       403)           \
    X(ERR_VERSION_MISMATCH,      "version_mismatch",        400)           \
    X(ERR_DUPLICATE_ID,          "duplicate_id",            409)           \
    X(ERR_KEY_CONFLICT,          "key_conflict",            409)           \
    X(ERR_BUSY,                  "busy",                    429)           \
    X(ERR_DEADLINE_EXCEEDED,     "deadline_exceeded",       408)           \
    X(ERR_CANCELLED,             "cancelled",               499)           \
    X(ERR_SLOW_READER,           "slow_reader",             499)           \
    X(ERR_WORKER_KILLER,         "request_killed_worker",   500)           \
    X(ERR_NO_WORKER,             "no_worker",               503)           \
    X(ERR_SHUTTING_DOWN,         "shutting_down",           503)           \
    X(ERR_UNREACHABLE,           "broker_unreachable",      503)           \
    X(ERR_INTERNAL,              "internal_error",          500)

enum error_code {
#define X(name, code, http) name,
    ERROR_LIST(X)
#undef X
    ERR_COUNT
};

enum { ERROR_PARAM_BYTES = 96, ERROR_MESSAGE_BYTES = 400 };

struct error {
    enum error_code code;
    char param[ERROR_PARAM_BYTES];
    char message[ERROR_MESSAGE_BYTES];
};

/* Fill *e; too long a text ends in "...", whole UTF-8 characters only.  param may be NULL or "". */
__attribute__((format(printf, 4, 5))) void error_set(struct error *e, enum error_code code, const char *param,
                                                     const char *format, ...);

const char *error_code_name(enum error_code code); /* "context_overflow"; "internal_error" out of range */
int error_code_http(enum error_code code);
enum error_code error_code_from_name(const char *name, unsigned long name_bytes); /* ERR_INTERNAL when unknown */

#endif
