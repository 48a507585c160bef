/* startups.h - connections that have not logged in yet: how many may there be, and which one makes room.
 *
 * OpenSSH's MaxStartups refuses *new* connections at random, so a crowd of silent ones keeps people out.  Here a new one is
 * let in and an old one has to go: beyond `free` connections with a probability that rises from percent to 100 at `max`, and
 * beyond per_source of one source always.  The one to go is the oldest that has sent (almost) nothing; if all have, the oldest.
 *
 * Sixty people behind one address who all come in the same second are no attack, and a busy machine needs a while for them.  So one that is
 * younger than STARTUP_SETTLE_NS goes only where there is no other way: at `max`, or for one more from its own source when
 * that is over its share and the door is beyond `free`.
 *
 * Pure: the time, what each has sent and the dice come in as arguments. */
#ifndef STARTUPS_H
#define STARTUPS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    STARTUPS_MAX = 1024,
    STARTUP_SILENT_BYTES = 200, /* less received than this is "silent": an identification line, no key exchange */
};

#define STARTUP_SETTLE_NS 10000000000ull /* ten seconds to say something */

struct startup {
    uint64_t number;         /* of the connection; 0: free slot */
    uint64_t since_ns;
    uint64_t bytes_received; /* kept up to date by the caller before startups_victim() */
    uint8_t source[16];      /* address; IPv4 as ::ffff:a.b.c.d, IPv6 with the lower 64 bits zero */
};

struct startups {
    uint32_t free, percent, max, per_source; /* free <= max <= STARTUPS_MAX */
    uint64_t grace_ns;
    uint32_t n;
    struct startup list[STARTUPS_MAX];
};

/* Which connection must go so that one from source may come in at now_ns.  dice: any 32 random bits.
 * The slot's index, or -1: nobody has to. */
int startups_victim(const struct startups *s, const uint8_t source[16], uint32_t dice, uint64_t now_ns);

/* There must be room: n < max (make it with startups_victim and startups_remove). */
void startups_add(struct startups *s, uint64_t number, const uint8_t source[16], uint64_t now_ns);
bool startups_remove(struct startups *s, uint64_t number); /* false: not there (it has logged in) */

/* The next one whose login grace is over at now_ns: its number, or 0. */
uint64_t startups_overdue(const struct startups *s, uint64_t now_ns);
/* When the first grace ends; UINT64_MAX: nobody waits. */
uint64_t startups_next_ns(const struct startups *s);

#endif
