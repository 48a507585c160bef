/* request_internal.h - what request.c and request_check.c share; nobody else includes it. */
#ifndef REQUEST_INTERNAL_H
#define REQUEST_INTERNAL_H

#include "request.h"

/* The bytes of a part that was checked. */
const uint8_t *request_part(const struct request *r, struct work_part p);

/* The messages of a checked record, [head.n_messages]. */
void request_messages(const struct request *r, struct chat_message *ret_messages);

/* Read the resumed choice at *at and move on; false at the end, or where the part is cut short. */
bool request_resume_next(const struct request *r, uint32_t *at, struct work_resume *ret_head, const int32_t **ret_ids);

#endif
