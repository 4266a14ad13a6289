/* handshake.h - a handshake by which both ends of a new connection prove that they are ranks of this job.
 *
 *   client  hello       purpose of the connection, and the nonce of the client
 *   server  challenge   the nonce of the server
 *   client  proof       HMAC-SHA256(key, "client" | hello | challenge)
 *   server  proof       HMAC-SHA256(key, "server" | hello | challenge); accepts the connection
 *
 * Each rank draws a secret and publishes it through the launch (PMI2's key-value space, or memory of forked ranks).
 * HMAC-SHA256 with different labels derives the key from the secret of rank 0, and the name of a rank's local socket
 * from its own secret; no secret passes a connection.  A proof contains both nonces, so it is valid for one connection
 * and cannot be replayed or reflected.  A local peer must also have this process's user id.
 *
 * The traffic after the handshake is neither encrypted nor authenticated.
 */
#ifndef VFM_COMM_HOST_HANDSHAKE_H
#define VFM_COMM_HOST_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/hash.h"

enum {
	VFM_SECRET = 32,
	VFM_NONCE = 32,
	VFM_HELLO_MAGIC = 0x76666d33,
	VFM_SOCKET_NAME = 40, /* characters of a local socket's name, without NUL */
};

enum vfm_hello_kind { VFM_HELLO_ARENA = 1, VFM_HELLO_MONITOR, VFM_HELLO_DATA };
struct vfm_handshake_hello {
	uint32_t magic, kind;
	int32_t from, to;
	uint64_t group;
	uint8_t nonce[VFM_NONCE];
};

/* out = HMAC-SHA256(secret, purpose) */
void vfm_derive_key(const uint8_t secret[VFM_SECRET], const char *purpose, uint8_t out[VFM_HMAC_BYTES]);
void vfm_derive_name(const uint8_t secret[VFM_SECRET], char name[VFM_SOCKET_NAME + 1]); /* "vfm-" and 36 hex digits */

/* Computes the proof of the server or the client. */
void vfm_make_proof(const uint8_t key[VFM_HMAC_BYTES], bool server, const struct vfm_handshake_hello *h,
	const uint8_t challenge[VFM_NONCE], uint8_t proof[VFM_HMAC_BYTES]);

/* Returns whether the peer of a local socket has the user id of this process. */
bool vfm_same_user(int fd);

struct vfm_hjob;

/* The client's side; blocks.  Waits for the challenge until `until` or 5 s, and for the server's proof until `until`:
 * the server may have accepted the connection by then, and it accepts only one.  Returns false if the peer did not
 * prove itself, or if the job has failed.  The caller owns fd. */
bool vfm_handshake_connect(struct vfm_hjob *j, int fd, int to, enum vfm_hello_kind kind, uint64_t group, double until);

/* The server's side of one accepted connection; never blocks. */
struct vfm_half_open {
	int fd;
	bool local;   /* the connection came through the local socket */
	double until; /* vfm_now */
	size_t have;  /* bytes of `in` */
	struct {
		struct vfm_handshake_hello hello;
		uint8_t proof[VFM_HMAC_BYTES];
	} in;
	uint8_t challenge[VFM_NONCE];
};
enum vfm_handshake { VFM_HANDSHAKE_WAITS, VFM_HANDSHAKE_PROVED, VFM_HANDSHAKE_REFUSED };

/* Reads from the client.  PROVED: the client is rank in.hello.from; the caller accepts it or closes the connection. */
enum vfm_handshake vfm_handshake_read(struct vfm_hjob *j, struct vfm_half_open *x);
/* Sends the server's proof.  Returns false if the connection is broken. */
bool vfm_handshake_accept(const struct vfm_hjob *j, const struct vfm_half_open *x);

#endif
