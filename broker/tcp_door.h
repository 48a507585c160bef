/* tcp_door.h - clients from other machines: a ROUTER on tcp:// with CURVE, and who may use it.
 *
 * Every byte on the wire is CURVE's: the client proves that it has the secret of a public key, the broker that it has that of the server key.
 * libzmq asks the ZAP handler (ZeroMQ RFC 27), which is here, whether a key is known; a key that is not gets an error (400) and no connection.  The
 * property "User-Id" of each message is then the key, and who that is, is looked up for each message: a key that is removed
 * is nobody's at once, its open connections included.
 *
 * A user who holds as many connections as one may gets an error (500) in the handshake, and no other user notices (tcp_peers.h).  For this
 * a connection that has said nothing by TCP_PEERS_SILENT_MS is ended.
 *
 * Bounds.  Anybody who reaches the port may connect and begin a handshake.  libzmq counts nothing, so the door does: it hears from the
 * socket's monitor of each connection and its end, and at n_connections_max a packet filter that drops everything is put on the listening
 * socket: the kernel answers no SYN until there is room again.  Connections that exist go on.  A handshake that is not over after five
 * seconds costs the connection, and one that is silent for thirty is gone.
 *
 * Nothing here blocks. */
#ifndef TCP_DOOR_H
#define TCP_DOOR_H

#include <stdbool.h>
#include <stdint.h>

#include <zmq.h>

#include "curve_key.h"
#include "error.h"
#include "status.h"

struct tcp_door; /* opaque */

struct tcp_door_numbers {
    uint32_t connections;            /* open now */
    /* Since the start.  refused_users: the user had connections enough; silent: ended because it said nothing; shut: how often the door was full. */
    uint64_t accepted, refused_keys, refused_users, failed_handshakes, silent, shut;
};

struct tcp_door_user {
    uint64_t user;            /* the same for all keys of one user */
    uint32_t connections_max; /* that this user may hold at once */
};

/* Whose key is it?  false: nobody's. */
typedef bool tcp_door_judge(void *arg, const uint8_t key[CURVE_KEY_BYTES], struct tcp_door_user *ret_user);

/* uri is tcp://ADDRESS:PORT: an IPv4 address, an IPv6 address in brackets, or * (both kinds; IPv4 alone on a machine without IPv6); port 0 is
 * the kernel's choice.  pair is copied.  context is a zmq context in which nobody else answers ZAP.  ST_OK; ST_INVALID, ST_SYSTEM with *err. */
MUST_CHECK enum status tcp_door_open(void *context, const char *uri, const struct curve_pair *pair, uint32_t n_connections_max,
                                     struct tcp_door **ret_door, struct error *err);
void tcp_door_close(struct tcp_door *d); /* NULL is fine */

void *tcp_door_socket(const struct tcp_door *d);   /* the ROUTER */
void *tcp_door_zap(const struct tcp_door *d);      /* readable: tcp_door_serve() */
void *tcp_door_monitor(const struct tcp_door *d);  /* likewise */
const char *tcp_door_uri(const struct tcp_door *d); /* with the real port */

/* Answer at most so many questions of libzmq, count connections, open or shut. */
void tcp_door_serve(struct tcp_door *d, uint32_t budget, tcp_door_judge *judge, void *arg, uint64_t now_ns);
struct tcp_door_numbers tcp_door_numbers(const struct tcp_door *d);

/* A message has come: note whose the connection is.  m: any frame of it but the first. */
void tcp_door_heard(struct tcp_door *d, zmq_msg_t *m);
/* The key that CURVE has verified for a frame of a message.  ST_OK; ST_INVALID: it has none. */
MUST_CHECK enum status tcp_door_key_of(zmq_msg_t *m, uint8_t ret_key[CURVE_KEY_BYTES]);

/* Split tcp://ADDRESS:PORT.  ST_OK or ST_INVALID with *err. */
MUST_CHECK enum status tcp_door_check_uri(const char *uri, struct error *err);

#endif
