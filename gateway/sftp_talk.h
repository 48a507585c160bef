/* sftp_talk.h - the sftp subsystem on one channel of a connection process: between sftp.h, the channel and the door.
 *
 * Bytes that the session does not take stay with libssh, whose window then closes: the client waits.  sftp_talk_step() offers them again. */
#ifndef SFTP_TALK_H
#define SFTP_TALK_H

#include "sftp.h"
#include "talk.h"

extern const struct verb_handler sftp_talk_handler;

/* Data of the channel, from libssh's callback; how many bytes were taken. */
size_t sftp_talk_data(struct talk *t, struct span data);
/* Once a turn: take what was left, go on with an upload that is being unpacked.  true: it has more to do at once. */
bool sftp_talk_step(struct talk *t, uint64_t now_ns);
/* It could take more now than it could in the step: its output has left meanwhile. */
bool sftp_talk_wants(const struct talk *t);
void sftp_talk_free(struct sftp_talk *s); /* NULL is fine */

/* The programs that copy files over ssh in ways of their own: what is said to them.  NULL: it is none of them. */
const char *sftp_talk_instead_of(const char *command);

#endif
