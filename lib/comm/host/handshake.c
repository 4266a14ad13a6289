/* handshake.c - mutual proof by HMAC-SHA256 over nonces with a key derived from the job's secret. */
#include "comm/host/handshake.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/host/host_impl.h"

static const double CHALLENGE_S = 5;

void vfm_derive_key(const uint8_t secret[VFM_SECRET], const char *purpose, uint8_t out[VFM_HMAC_BYTES])
{
	vfm_hmac_sha256(secret, VFM_SECRET, purpose, strlen(purpose), out);
}

void vfm_derive_name(const uint8_t secret[VFM_SECRET], char name[VFM_SOCKET_NAME + 1])
{
	uint8_t h[VFM_HMAC_BYTES];
	char *p = name + sprintf(name, "vfm-");

	vfm_derive_key(secret, "vfm socket name", h);
	for (int i = 0; p < name + VFM_SOCKET_NAME; i++)
		p += sprintf(p, "%02x", h[i]);
}

void vfm_make_proof(const uint8_t key[VFM_HMAC_BYTES], bool server, const struct vfm_handshake_hello *h,
	const uint8_t challenge[VFM_NONCE], uint8_t proof[VFM_HMAC_BYTES])
{
	static const char label[2][16] = {"vfm client proof", "vfm server proof"};
	struct {
		char label[16];
		struct vfm_handshake_hello hello;
		uint8_t challenge[VFM_NONCE];
	} m;

	_Static_assert(sizeof(m) == 16 + sizeof(m.hello) + VFM_NONCE && sizeof(m.hello) == 24 + VFM_NONCE,
		"a proof must not cover padding");
	memcpy(m.label, label[server], sizeof(m.label));
	m.hello = *h;
	memcpy(m.challenge, challenge, sizeof(m.challenge));
	vfm_hmac_sha256(key, VFM_HMAC_BYTES, &m, sizeof(m), proof);
}

bool vfm_same_user(int fd)
{
	struct ucred who = {0};
	socklen_t len = sizeof(who);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid();
}

static bool draw_nonce(uint8_t nonce[VFM_NONCE])
{
	return getrandom(nonce, VFM_NONCE, 0) == VFM_NONCE;
}

static bool send_all(int fd, const void *p, size_t n)
{
	/* a message of the handshake fits the buffer of a new socket */
	return send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* ---- the client ---- */

static bool receive_all(struct vfm_hjob *j, int fd, void *to, size_t n, double until)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	for (size_t have = 0; have < n;) {
		ssize_t k = recv(fd, (char *)to + have, n - have, MSG_DONTWAIT);

		if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		if (k > 0) {
			have += (size_t)k;
			continue;
		}
		if (vfm_now() > until || vfm_hjob_check(j, NULL) < 0)
			return false;
		poll(&p, 1, VFM_POLL_MS);
	}
	return true;
}

bool vfm_handshake_connect(struct vfm_hjob *j, int fd, int to, enum vfm_hello_kind kind, uint64_t group, double until)
{
	struct vfm_handshake_hello h = {
		.magic = VFM_HELLO_MAGIC, .kind = kind, .from = j->rank, .to = to, .group = group};
	double soon = vfm_now() + CHALLENGE_S;
	uint8_t challenge[VFM_NONCE], proof[VFM_HMAC_BYTES], got[VFM_HMAC_BYTES];

	if (!draw_nonce(h.nonce) || !send_all(fd, &h, sizeof(h)) ||
		!receive_all(j, fd, challenge, sizeof(challenge), soon < until ? soon : until))
		return false;
	vfm_make_proof(j->key, false, &h, challenge, proof);
	if (!send_all(fd, proof, sizeof(proof)) || !receive_all(j, fd, got, sizeof(got), until))
		return false;
	vfm_make_proof(j->key, true, &h, challenge, proof);
	return vfm_equal_secrets(got, proof, sizeof(proof));
}

/* ---- the server ---- */

/* Ranks of one node connect by local sockets, others by TCP. */
static bool is_plausible(const struct vfm_hjob *j, const struct vfm_half_open *x)
{
	const struct vfm_handshake_hello *h = &x->in.hello;

	return h->magic == VFM_HELLO_MAGIC && h->to == j->rank && h->from >= 0 && h->from < j->size &&
		h->from != j->rank && x->local == (j->node_of[h->from] == j->node_of[j->rank]);
}

enum vfm_handshake vfm_handshake_read(struct vfm_hjob *j, struct vfm_half_open *x)
{
	uint8_t proof[VFM_HMAC_BYTES];

	while (x->have < sizeof(x->in)) {
		size_t end = x->have < sizeof(x->in.hello) ? sizeof(x->in.hello) : sizeof(x->in);
		ssize_t k = recv(x->fd, (char *)&x->in + x->have, end - x->have, MSG_DONTWAIT);

		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			return vfm_now() < x->until ? VFM_HANDSHAKE_WAITS : VFM_HANDSHAKE_REFUSED;
		if (k <= 0)
			return VFM_HANDSHAKE_REFUSED;
		x->have += (size_t)k;
		if (x->have == sizeof(x->in.hello) &&
			(!is_plausible(j, x) || !draw_nonce(x->challenge) ||
				!send_all(x->fd, x->challenge, sizeof(x->challenge))))
			return VFM_HANDSHAKE_REFUSED;
	}
	vfm_make_proof(j->key, false, &x->in.hello, x->challenge, proof);
	return vfm_equal_secrets(proof, x->in.proof, sizeof(proof)) ? VFM_HANDSHAKE_PROVED : VFM_HANDSHAKE_REFUSED;
}

bool vfm_handshake_accept(const struct vfm_hjob *j, const struct vfm_half_open *x)
{
	uint8_t proof[VFM_HMAC_BYTES];

	vfm_make_proof(j->key, true, &x->in.hello, x->challenge, proof);
	return send_all(x->fd, proof, sizeof(proof));
}
