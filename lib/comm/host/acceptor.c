/* Accepts connections from other ranks, in the monitor thread.
 *
 * A connection is half-open until its client has proved to be a rank of this job (handshake.h).  Half-open connections
 * are limited in number and time; a new one replaces the oldest.  A rank has one connection of each kind and group,
 * which a second one cannot replace. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/host/monitor_impl.h"

enum {
	STRANGERS = 256, /* half-open connections beyond two for each child */
	AT_ONCE = 64,    /* accepted before the half-open ones are served again */
};
static const double HANDSHAKE_S = 10;

void vfm_acceptor_init(struct vfm_hjob *j)
{
	struct vfm_acceptor *a = &j->mon->acceptor;

	a->most = STRANGERS + 2 * j->mon->tree.n;
	a->half = vfm_calloc((size_t)a->most, sizeof(*a->half));
}

void vfm_acceptor_release(struct vfm_hjob *j)
{
	struct vfm_acceptor *a = &j->mon->acceptor;

	for (int i = 0; i < a->n; i++)
		close(a->half[i].fd);
	free(a->half);
	*a = (struct vfm_acceptor){0};
}

int vfm_acceptor_limit(const struct vfm_hjob *j)
{
	return j->mon->acceptor.most + j->n_listen;
}

/* ---- connections of ranks ---- */

static bool has_link(struct vfm_hjob *j, const struct vfm_handshake_hello *h)
{
	struct vfm_link *l;

	pthread_mutex_lock(&j->lock);
	for (l = j->links; l && !(l->kind == h->kind && l->group == h->group && l->from == h->from); l = l->next)
		;
	pthread_mutex_unlock(&j->lock);
	return l;
}

/* fd: for a communicator to claim, or -1 */
static void add_link(struct vfm_hjob *j, const struct vfm_handshake_hello *h, int fd)
{
	struct vfm_link *l = vfm_malloc(sizeof(*l));

	*l = (struct vfm_link){.kind = h->kind, .group = h->group, .from = h->from, .fd = fd};
	pthread_mutex_lock(&j->lock);
	l->next = j->links;
	j->links = l;
	pthread_cond_broadcast(&j->came);
	pthread_mutex_unlock(&j->lock);
}

static bool may_connect(struct vfm_hjob *j, const struct vfm_handshake_hello *h)
{
	switch (h->kind) {
	case VFM_HELLO_MONITOR:
		return vfm_tree_parent(&j->mon->tree, h->from) == j->rank && !j->mon->peer[h->from].joined;
	case VFM_HELLO_ARENA:
		return j->owns_shared && j->node_of[h->from] == j->node_of[j->rank] && !has_link(j, h);
	case VFM_HELLO_DATA:
		return !has_link(j, h);
	default:
		return false;
	}
}

/* Passes a proved connection to its user, or closes it.  Sends the proof first, because a user may write immediately.
 */
static void hand_over(struct vfm_hjob *j, const struct vfm_half_open *x)
{
	const struct vfm_handshake_hello *h = &x->in.hello;

	if (!may_connect(j, h) || !vfm_handshake_accept(j, x)) {
		close(x->fd);
	} else if (h->kind == VFM_HELLO_MONITOR) {
		vfm_mon_adopt(j, h->from, x->fd);
	} else if (h->kind == VFM_HELLO_DATA) {
		add_link(j, h, x->fd);
	} else {
		add_link(j, h, -1);
		vfm_net_send_fd(x->fd, j->shared.fd);
		close(x->fd);
	}
}

/* ---- half-open connections, the oldest first ---- */

static void drop_oldest(struct vfm_acceptor *a)
{
	close(a->half[0].fd);
	memmove(a->half, a->half + 1, (size_t)--a->n * sizeof(*a->half));
}

/* accept fails for lack of a descriptor also if no connection waits. */
static bool has_waiting(int listener)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

/* Ranks wait for a descriptor, and no half-open connection occupies one.  While the job starts, none becomes free. */
static void wait_for_descriptor(struct vfm_hjob *j, int errnum)
{
	char who[96], why[VFM_WHY_MAX];

	if (errnum == EMFILE && !atomic_load(&j->started) && !atomic_load(&j->failed) && j->mon->reported <= 0) {
		snprintf(why, sizeof(why), "%s cannot accept the connections of other ranks: %s (see ulimit -n)",
			vfm_rank_str(j, j->rank, who, sizeof(who)), strerror(errnum));
		vfm_report_failure(j, why);
	}
	poll(NULL, 0, 20); /* do not spin */
}

static void accept_some(struct vfm_hjob *j, int listener, bool local)
{
	struct vfm_acceptor *a = &j->mon->acceptor;

	for (int i = 0; i < AT_ONCE; i++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;
		bool full = fd < 0 && (errno == EMFILE || errno == ENFILE);

		if (full && !has_waiting(listener))
			return;
		if (full && a->n > 0) {
			drop_oldest(a);
			continue;
		}
		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
				wait_for_descriptor(j, errno);
			return;
		}
		if (local && !vfm_same_user(fd)) {
			close(fd);
			continue;
		}
		if (!local)
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (a->n == a->most)
			drop_oldest(a);
		a->half[a->n++] = (struct vfm_half_open){.fd = fd, .local = local, .until = vfm_now() + HANDSHAKE_S};
	}
}

int vfm_acceptor_poll_set(const struct vfm_hjob *j, struct pollfd *p)
{
	const struct vfm_acceptor *a = &j->mon->acceptor;
	int n = 0;

	for (int i = 0; i < a->n; i++)
		p[n++] = (struct pollfd){.fd = a->half[i].fd, .events = POLLIN};
	for (int i = 0; i < j->n_listen; i++)
		p[n++] = (struct pollfd){.fd = j->listen[i], .events = POLLIN};
	return n;
}

void vfm_acceptor_serve(struct vfm_hjob *j, const struct pollfd *p)
{
	struct vfm_acceptor *a = &j->mon->acceptor;
	const struct pollfd *listener = p + a->n;
	double now = vfm_now();
	int kept = 0;

	for (int i = 0; i < a->n; i++) {
		struct vfm_half_open *x = &a->half[i];
		enum vfm_handshake state = VFM_HANDSHAKE_WAITS;

		if (p[i].revents || now > x->until)
			state = vfm_handshake_read(j, x);
		if (state == VFM_HANDSHAKE_WAITS)
			a->half[kept++] = *x;
		else if (state == VFM_HANDSHAKE_PROVED)
			atomic_fetch_add(&j->n_accepted, 1), hand_over(j, x);
		else
			close(x->fd);
	}
	a->n = kept;
	for (int i = 0; i < j->n_listen; i++)
		if (listener[i].revents)
			accept_some(j, j->listen[i], i == 0);
}
