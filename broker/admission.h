/* admission.h - may this message become a request?  Whose it is, for which model, and whether there is room for it.
 *
 * What is found goes into a struct admission, step by step; the first step that says no leaves its error there, to be told to the sender.  The
 * only thing a step enters anywhere is the sender's connection (admission_client); admission_undo() takes it back. */
#ifndef ADMISSION_H
#define ADMISSION_H

#include "broker.h"

struct sender { /* of the message at hand */
    struct peer peer;
    uid_t uid;                    /* NO_UID: it came by tcp, and is whoever its key is */
    uint8_t key[CURVE_KEY_BYTES]; /* zeros on ipc */
    char user[USER_NAME_BYTES];
};

struct admission {
    bool job_line; /* set by the caller: admission_is_job_line() */
    uint32_t model, account, client;
    struct error error; /* once a step said no */
};

/* All steps.  id is that of the request to be; model and on_behalf_of as the message has them, perhaps empty. */
bool admission_take(struct broker *b, const struct sender *from, struct span id, struct span model,
                    struct span on_behalf_of, struct admission *a);
/* The request was not made after all: its connection is forgotten if it has no other. */
void admission_undo(struct broker *b, const struct admission *a);

/* The steps, for a request with an idempotency key: what is known needs no room. */
bool admission_model(const struct broker *b, struct span name, struct admission *a);
bool admission_account(struct broker *b, const struct sender *from, struct span on_behalf_of,
                       struct admission *a);
bool admission_client(struct broker *b, const struct sender *from, struct span id,
                      struct admission *a); /* its entry, made if it has none */

/* A line of a job: the front end has asked whether its user may run it when the job was submitted, and a job that began is finished. */
bool admission_is_job_line(const struct wire_generate *g);
bool admission_is_front_end(const struct broker *b, uid_t uid);
/* The user a message is for: the sender, or whom a front end names.  False with *err. */
bool admission_name(const struct broker *b, const struct sender *from, struct span on_behalf_of,
                    char ret_name[USER_NAME_BYTES], struct error *err);

#endif
