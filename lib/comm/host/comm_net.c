/* Addresses, connections, and messages over sockets.  Each rank listens on a local (abstract) socket and, in a job of
 * several nodes, on a TCP port of each address that it publishes.  Every connection begins with handshake.h.
 */
#include "comm/host/host_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/hash.h"

/* An address may belong to several hosts (bridges of containers): a rank is reached by another one of its addresses, or
 * has ended if all refuse for this time. */
static const double REFUSED_S = 2;

/* ---- listening and the published endpoint ---- */

static socklen_t make_unix_address(struct sockaddr_un *a, const struct vfm_endpoint *of)
{
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	vfm_derive_name(of->secret, a->sun_path + 1);
	return (socklen_t)(a->sun_path + 1 + VFM_SOCKET_NAME - (char *)a);
}

static socklen_t inet_address_len(const union vfm_inet_address *a)
{
	return a->any.sa_family == AF_INET ? sizeof(a->v4) : sizeof(a->v6);
}

static int listen_on(struct vfm_hjob *j, const struct sockaddr *addr, socklen_t len, struct vfm_err *err)
{
	int s = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

	if (s < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot open a socket");
	if (addr->sa_family == AF_INET6)
		setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(s, addr, len) < 0 || listen(s, 1024) < 0) {
		vfm_fail_errno(err, VFM_EENV, "cannot listen for other ranks");
		close(s);
		return VFM_EENV;
	}
	j->listen[j->n_listen++] = s;
	return 0;
}

/* Listens on each address of *self, and on no other.  Removes addresses that cannot be used. */
static int listen_on_addresses(struct vfm_hjob *j, struct vfm_endpoint *self, struct vfm_err *err)
{
	int n = self->n_addr;

	self->n_addr = 0;
	for (int k = 0; k < n; k++) {
		union vfm_inet_address *a = &self->addr[self->n_addr];
		socklen_t len = sizeof(*a);

		*a = self->addr[k];
		if (listen_on(j, &a->any, inet_address_len(a), err) < 0)
			continue;
		if (getsockname(j->listen[j->n_listen - 1], &a->any, &len) < 0)
			return vfm_fail_errno(err, VFM_EENV, "cannot read a socket's port");
		self->n_addr++;
	}
	return self->n_addr ? 0 : VFM_EENV;
}

static bool is_virtual_interface(const char *name)
{
	static const char *const pattern[] = {"docker*", "virbr*", "veth*", "br-*", "cni*", "flannel*", "tun*", "tap*"};

	for (size_t i = 0; i < sizeof(pattern) / sizeof(pattern[0]); i++)
		if (fnmatch(pattern[i], name, 0) == 0)
			return true;
	return false;
}

static void add_address(struct vfm_endpoint *self, const struct sockaddr *sa)
{
	if (self->n_addr < VFM_HC_ADDRS)
		memcpy(&self->addr[self->n_addr++], sa,
			sa->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
}

/* Selects the addresses of a pass: IPv4 of physical interfaces, then their IPv6, then both of virtual interfaces. */
static bool is_candidate_interface(int pass, const struct ifaddrs *i, const char *only)
{
	int family = i->ifa_addr ? i->ifa_addr->sa_family : 0;

	if ((family != AF_INET && family != AF_INET6) || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
		return false;
	if (only && fnmatch(only, i->ifa_name, 0) != 0)
		return false;
	if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr))
		return false;
	return pass / 2 == (!only && is_virtual_interface(i->ifa_name)) && pass % 2 == (family == AF_INET6);
}

/* Lists the addresses of the interfaces.  On many systems the host name resolves to 127.0.0.1. */
static int list_addresses(struct vfm_endpoint *self, struct vfm_err *err)
{
	const char *only = getenv("VFM_COMM_IFNAME");
	struct sockaddr_in lo = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct ifaddrs *all;

	if (only && !*only)
		only = NULL;
	if (getifaddrs(&all) < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot list the network interfaces");
	for (int pass = 0; pass < 4; pass++)
		for (struct ifaddrs *i = all; i; i = i->ifa_next)
			if (is_candidate_interface(pass, i, only))
				add_address(self, i->ifa_addr);
	freeifaddrs(all);
	if (!self->n_addr && only && strcmp(only, "lo") != 0)
		return vfm_fail(
			err, VFM_EENV, "VFM_COMM_IFNAME: no interface '%s' that is up and has an address", only);
	if (!self->n_addr) {
		self->loopback = 1;
		add_address(self, (struct sockaddr *)&lo);
	}
	return 0;
}

/* Identifies the boot and the network namespace: ranks with equal ids reach each other by 127.0.0.1. */
static void read_net_identity(uint8_t id[16])
{
	char text[64] = {0};
	struct stat st = {0};
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	uint64_t h, ino;

	if (f) {
		if (!fgets(text, sizeof(text), f))
			text[0] = '\0';
		fclose(f);
	}
	stat("/proc/self/ns/net", &st);
	h = vfm_fnv64(text, strlen(text));
	ino = st.st_ino;
	memcpy(id, &h, 8);
	memcpy(id + 8, &ino, 8);
}

int vfm_net_open(struct vfm_hjob *j, struct vfm_err *err)
{
	struct vfm_endpoint *self = vfm_calloc(1, sizeof(*self));
	struct sockaddr_un a = {0};
	socklen_t len;

	atomic_store(&j->endpoint[j->rank], self);
	if (getrandom(self->secret, sizeof(self->secret), 0) != sizeof(self->secret))
		return vfm_fail_errno(err, VFM_EENV, "no random numbers");
	snprintf(self->host, sizeof(self->host), "%.*s", (int)sizeof(self->host) - 1, j->l->host[0] ? j->l->host : "?");
	read_net_identity(self->net);
	len = make_unix_address(&a, self);
	TRY(listen_on(j, (struct sockaddr *)&a, len, err));
	if (j->l->nodes > 1) {
		TRY(list_addresses(self, err));
		TRY(listen_on_addresses(j, self, err));
	}
	_Static_assert(sizeof(*self) <= VFM_PUBLISH_MAX, "a rank must be able to publish its endpoint");
	return vfm_launch_publish(j->l, self, sizeof(*self), err);
}

void vfm_net_close(struct vfm_hjob *j)
{
	while (j->n_listen > 0)
		close(j->listen[--j->n_listen]);
}

/* ---- the endpoints of other ranks ---- */

const struct vfm_endpoint *vfm_endpoint_of(struct vfm_hjob *j, int rank, struct vfm_err *err)
{
	struct vfm_endpoint *e = atomic_load(&j->endpoint[rank]);

	if (e)
		return e;
	pthread_mutex_lock(&j->fetch_lock);
	e = atomic_load(&j->endpoint[rank]); /* another thread may have fetched it */
	if (!e) {
		e = vfm_malloc(sizeof(*e));
		if (vfm_launch_fetch(j->l, rank, e, sizeof(*e), err) < 0) {
			free(e);
			e = NULL;
		} else {
			e->host[sizeof(e->host) - 1] = '\0';
			atomic_store(&j->endpoint[rank], e);
		}
	}
	pthread_mutex_unlock(&j->fetch_lock);
	return e;
}

static int check_loopback(struct vfm_hjob *j, int only, int other, struct vfm_err *err)
{
	const struct vfm_endpoint *a = vfm_endpoint_of(j, only, err), *b = vfm_endpoint_of(j, other, err);

	if (!a || !b)
		return VFM_EENV;
	if (!a->loopback || memcmp(a->net, b->net, sizeof(a->net)) == 0)
		return 0;
	return vfm_fail(err, VFM_EENV,
		"rank %d (%s) has no network address but 127.0.0.1, and rank %d (%s) is on another host: see "
		"VFM_COMM_IFNAME",
		only, a->host, other, b->host);
}

int vfm_net_check(struct vfm_hjob *j, int to, struct vfm_err *err)
{
	const struct vfm_endpoint *e = vfm_endpoint_of(j, to, err), *self = atomic_load(&j->endpoint[j->rank]);

	if (!e)
		return VFM_EENV;
	if (e->n_addr > VFM_HC_ADDRS || (e->n_addr == 0 && j->l->nodes > 1))
		return vfm_fail(err, VFM_EENV, "rank %d sees all ranks on one node, this rank does not", to);
	if (j->node_of[to] == j->node_of[j->rank] && memcmp(e->net, self->net, sizeof(e->net)) != 0)
		return vfm_fail(err, VFM_EENV,
			"rank %d and rank %d are on one node (%s), but in different network namespaces", to, j->rank,
			self->host);
	TRY(check_loopback(j, to, j->rank, err));
	return check_loopback(j, j->rank, to, err);
}

/* ---- connecting ---- */

enum {
	OTHER_FILES = 64, /* of this process, besides connections */
};

/* Raises the soft limit of this process, since a large reduction between nodes connects to all ranks of its group. */
int vfm_net_reserve_files(struct vfm_hjob *j, int monitors, struct vfm_err *err)
{
	rlim_t want = 1024 + 8 * (rlim_t)j->size, need;
	struct rlimit r;
	int log = 0;

	while (1 << log < j->size)
		log++;
	need = (rlim_t)(monitors + j->n_listen + 2 * log + OTHER_FILES);
	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		return 0;
	if (r.rlim_cur < want && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
		setrlimit(RLIMIT_NOFILE, &r);
	}
	if (r.rlim_cur >= need)
		return 0;
	return vfm_fail(err, VFM_EENV,
		"this process may open %llu files, and needs %llu, %llu of them for connections: see ulimit -n",
		(unsigned long long)r.rlim_cur, (unsigned long long)need, (unsigned long long)need - OTHER_FILES);
}

static int poll_fd(int fd, short events, int ms)
{
	struct pollfd p = {.fd = fd, .events = events};

	return poll(&p, 1, ms);
}

int vfm_net_addresses(struct vfm_hjob *j, int to)
{
	const struct vfm_endpoint *e = vfm_endpoint_of(j, to, NULL);

	return !e ? 0 : j->node_of[to] == j->node_of[j->rank] ? 1 : e->n_addr;
}

int vfm_net_dialed(int fd, int ms)
{
	socklen_t size = sizeof(int);
	int e = 0, n = poll_fd(fd, POLLOUT, ms);

	if (n == 0 || (n < 0 && errno == EINTR))
		return EINPROGRESS;
	return n < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &size) < 0 ? errno : e;
}

static int begin_connect(const struct sockaddr *sa, socklen_t len)
{
	int s = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, e = 0;

	if (s < 0)
		return -1;
	if (connect(s, sa, len) < 0 && errno != EINPROGRESS)
		e = errno;
	else if (sa->sa_family != AF_UNIX)
		setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	else if (!vfm_same_user(s)) /* the rank has ended, and another user has taken the name */
		e = ECONNREFUSED;
	if (!e)
		return s;
	close(s);
	errno = e;
	return -1;
}

int vfm_net_dial(struct vfm_hjob *j, int to, int addr)
{
	const struct vfm_endpoint *peer = vfm_endpoint_of(j, to, NULL);
	struct sockaddr_un local;
	socklen_t len;

	if (!peer) {
		errno = EHOSTUNREACH;
		return -1;
	}
	if (j->node_of[to] == j->node_of[j->rank]) {
		len = make_unix_address(&local, peer);
		return begin_connect((struct sockaddr *)&local, len);
	}
	return begin_connect(&peer->addr[addr].any, inet_address_len(&peer->addr[addr]));
}

/* Returns 0 and the proved connection, or the errno of the failure; EPROTO: the other end did not prove itself. */
static int try_connect(
	struct vfm_hjob *j, int to, int addr, enum vfm_hello_kind kind, uint64_t group, double until, int *fd)
{
	int s = vfm_net_dial(j, to, addr), e = s < 0 ? errno : vfm_net_dialed(s, 3000);

	if (e == 0 && vfm_handshake_connect(j, s, to, kind, group, until)) {
		*fd = s;
		atomic_fetch_add(&j->n_dialed, 1);
		return 0;
	}
	if (s >= 0)
		close(s);
	return e ? e : EPROTO;
}

static const char *describe_refusal(int e)
{
	return e == EPROTO ? "it did not prove to be this rank" : e == EINPROGRESS ? "no answer" : strerror(e);
}

int vfm_net_connect(struct vfm_hjob *j, int to, enum vfm_hello_kind kind, uint64_t group, int *fd, struct vfm_err *err)
{
	bool local = j->node_of[to] == j->node_of[j->rank];
	double start = vfm_now(), until = start + (j->timeout < 30 ? j->timeout : 30), answered = start;
	char who[96], me[96];
	int n, e = 0;

	TRY(vfm_net_check(j, to, err));
	n = vfm_net_addresses(j, to);
	do {
		int refused = 0;

		for (int k = 0; k < n; k++) {
			TRY(vfm_hjob_check(j, err));
			e = try_connect(j, to, k, kind, group, until, fd);
			if (e == 0)
				return 0;
			refused += e == ECONNREFUSED;
		}
		if (e == EMFILE || e == ENFILE)
			break;
		if (refused < n)
			answered = vfm_now();
		else if (local || vfm_now() - answered > REFUSED_S)
			return vfm_hjob_unreachable(j, to, err);
		poll(NULL, 0, 50);
	} while (vfm_now() < until);
	TRY(vfm_hjob_check(j, err));
	vfm_rank_str(j, j->rank, me, sizeof(me));
	vfm_rank_str(j, to, who, sizeof(who));
	if (e == EMFILE || e == ENFILE)
		return vfm_hjob_fail(j, err, "%s cannot connect to %s: %s (see ulimit -n)", me, who, strerror(e));
	return vfm_hjob_fail(j, err, "%s accepted no connection of %s within %.1f s: %s", who, me, vfm_now() - start,
		describe_refusal(e));
}

int vfm_net_send_fd(int sock, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} u;
	char x = 'f';
	struct iovec iov = {&x, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.buf, .msg_controllen = sizeof(u.buf)};
	struct cmsghdr *c;

	memset(&u, 0, sizeof(u));
	c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(sock, &m, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

int vfm_net_recv_fd(int sock, int *fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} u;
	char x;
	struct iovec iov = {&x, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.buf, .msg_controllen = sizeof(u.buf)};
	struct cmsghdr *c;

	if (poll_fd(sock, POLLIN, 10000) != 1 || recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != 1)
		return -1;
	c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	return 0;
}

/* Returns the accepted connection from a peer, or -1 after VFM_POLL_MS. */
static int claim_link(struct vfm_hcomm *g, int peer)
{
	struct vfm_hjob *j = g->job;
	struct timespec until = vfm_time_after(CLOCK_REALTIME, VFM_POLL_MS / 1000.0);
	int fd = -1;

	pthread_mutex_lock(&j->lock);
	for (int round = 0; fd < 0 && round < 2; round++) {
		for (struct vfm_link *k = j->links; k && fd < 0; k = k->next)
			if (k->kind == VFM_HELLO_DATA && k->group == g->id && k->from == g->world[peer]) {
				fd = k->fd;
				k->fd = -1;
			}
		if (fd < 0 && round == 0)
			pthread_cond_timedwait(&j->came, &j->lock, &until);
	}
	pthread_mutex_unlock(&j->lock);
	return fd;
}

/* The lower rank of a pair connects when the socket is first needed; the other one claims the connection. */
static int get_peer_fd(struct vfm_hcomm *g, int peer, int *fd, struct vfm_err *err)
{
	int rc = 0;

	if (g->fd[peer] < 0 && g->c.rank < peer) {
		TRY(vfm_net_connect(g->job, g->world[peer], VFM_HELLO_DATA, g->id, &g->fd[peer], err));
	} else if (g->fd[peer] < 0) {
		vfm_wait_begin(g, peer);
		while (rc >= 0 && (g->fd[peer] = claim_link(g, peer)) < 0)
			rc = vfm_wait_check(g, err);
		vfm_wait_end(g);
	}
	*fd = g->fd[peer];
	return rc;
}

/* ---- messages ---- */

struct socket_head { /* precedes each message */
	struct vfm_call_sig sig;
	uint64_t bytes;
};

struct socket_transfer {
	int fd, peer;
	struct socket_head m;
	size_t head; /* bytes of m that are sent or received */
	char *p;
	size_t n, done;
};

static bool socket_transfer_done(const struct socket_transfer *x)
{
	return x->fd < 0 || (x->head == sizeof(x->m) && x->done == x->n);
}

/* Returns 1 if bytes were sent, 0 if the socket would block. */
static int send_some(struct vfm_hcomm *g, struct socket_transfer *x, struct vfm_err *err)
{
	struct iovec v[2] = {{(char *)&x->m + x->head, sizeof(x->m) - x->head}, {x->p + x->done, x->n - x->done}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
	ssize_t k = sendmsg(x->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	size_t a;

	if (k < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : vfm_hjob_lost(g, x->peer, strerror(errno), err);
	a = (size_t)k < v[0].iov_len ? (size_t)k : v[0].iov_len;
	x->head += a;
	x->done += (size_t)k - a;
	return k > 0;
}

static int receive_some(
	struct vfm_hcomm *g, struct socket_transfer *x, const struct vfm_call_sig *want, struct vfm_err *err)
{
	bool head = x->head < sizeof(x->m);
	void *to = head ? (char *)&x->m + x->head : x->p + x->done;
	ssize_t k = recv(x->fd, to, head ? sizeof(x->m) - x->head : x->n - x->done, MSG_DONTWAIT);

	if (k == 0)
		return vfm_hjob_lost(g, x->peer, "the connection was closed", err);
	if (k < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : vfm_hjob_lost(g, x->peer, strerror(errno), err);
	if (!head) {
		x->done += (size_t)k;
		return 1;
	}
	x->head += (size_t)k;
	if (x->head == sizeof(x->m) && (memcmp(&x->m.sig, want, sizeof(*want)) != 0 || x->m.bytes != x->n)) {
		struct vfm_call_sig mine = *want, theirs = x->m.sig;

		if (memcmp(&mine, &theirs, sizeof(mine)) == 0)
			mine.bytes = x->n, theirs.bytes = x->m.bytes;
		return vfm_hjob_mismatch(g, x->peer, &mine, &theirs, err);
	}
	return 1;
}

static int wait_for_sockets(
	struct vfm_hcomm *g, const struct socket_transfer *out, const struct socket_transfer *in, struct vfm_err *err)
{
	struct pollfd p[2];
	int n = 0;

	if (!socket_transfer_done(in))
		p[n++] = (struct pollfd){.fd = in->fd, .events = POLLIN};
	if (!socket_transfer_done(out))
		p[n++] = (struct pollfd){.fd = out->fd, .events = POLLOUT};
	vfm_wait_begin(g, !socket_transfer_done(in) ? in->peer : out->peer);
	if (poll(p, (nfds_t)n, VFM_POLL_MS) > 0)
		return vfm_hjob_check(g->job, err);
	return vfm_wait_check(g, err);
}

int vfm_net_exchange(struct vfm_hcomm *g, const struct vfm_call_sig *sig_out, int to, const void *out, size_t n_out,
	const struct vfm_call_sig *sig_in, int from, void *in, size_t n_in, struct vfm_err *err)
{
	struct socket_transfer x = {.fd = -1, .peer = to, .p = (char *)out, .n = n_out},
			       y = {.fd = -1, .peer = from, .p = in, .n = n_in};
	int rc = 0;

	atomic_fetch_add_explicit(&g->job->n_messages, 1, memory_order_relaxed);
	if (to >= 0) {
		x.m = (struct socket_head){.sig = *sig_out, .bytes = n_out};
		TRY(get_peer_fd(g, to, &x.fd, err));
	}
	if (from >= 0)
		TRY(get_peer_fd(g, from, &y.fd, err));
	while (rc >= 0 && (!socket_transfer_done(&x) || !socket_transfer_done(&y))) {
		int a = 0, b = 0;

		if (!socket_transfer_done(&x))
			rc = a = send_some(g, &x, err);
		if (rc >= 0 && !socket_transfer_done(&y))
			rc = b = receive_some(g, &y, sig_in, err);
		if (rc >= 0 && (a > 0 || b > 0))
			vfm_wait_end(g);
		else if (rc >= 0)
			rc = wait_for_sockets(g, &x, &y, err);
	}
	vfm_wait_end(g);
	return rc < 0 ? rc : 0;
}
