/* The monitor: one thread a rank.  It answers whoever connects, tells rank 0 once a second what this rank is
 * doing, and hears how the job fares.  Rank 0's decides: a connection that ends without a good-bye is a
 * death; beats that cease, a stop; a wait beyond the time-out is followed from rank to rank to the one that
 * waits for nobody. */
#include "comm/comm_impl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { BEAT = 1, ASK, FAIL, BYE };
enum { ACTS = 12, HELLOS = 512, MSG_MAGIC = 0x76666d32 };

struct mon_act {
	char name[16];
	uint64_t group, number, bytes;
	int32_t kind, peer;
	double age, waits;          /* seconds; waits < 0: does not wait */
};

struct mon_msg {
	uint32_t magic, type;
	int32_t rank;
	uint32_t n;
	struct mon_act act[ACTS];
	char why[VFM_WHY_MAX];
};

struct mon_conn {
	int fd, rank;
	size_t have;                /* bytes of in */
	struct mon_msg in;
	struct vfm_buf out;
};

struct mon_hello {
	int fd;
	double until;
	size_t have;
	struct vfm_hello h;
};

struct mon_peer {               /* what rank 0 knows; the others: of rank 0 */
	struct mon_conn *conn;
	bool joined, bye, dead;
	double heard;               /* vfm_now of the last message */
	struct mon_msg last;
};

struct vfm_mon {
	struct mon_peer *peer;      /* [size] */
	struct mon_hello hello[HELLOS];
	int n_hello;
	double beat, looked;        /* last beat sent; last pass of the loop */
	double asked;               /* rank 0: when all were asked for their state; 0: not */
	int dying;                  /* rank 0: who died, while the others are asked; -1 */
	atomic_bool stop;
	double stop_since;
	pthread_mutex_t lock;       /* report, joining */
	char report[VFM_WHY_MAX];   /* for rank 0 */
	int joining;                /* a connection to rank 0 that the thread takes over; -1 */
};

/* ---- the state of the job ---- */

const char *vfm_rank_str(struct vfm_hjob *j, int rank, char *buf, size_t len)
{
	snprintf(buf, len, "rank %d (%s)", rank, j->card[rank].host);
	return buf;
}

int vfm_hjob_check(struct vfm_hjob *j, struct vfm_err *err)
{
	if (!atomic_load_explicit(&j->failed, memory_order_acquire))
		return 0;
	return vfm_fail(err, VFM_EENV, "%s", j->why);
}

static void set_failed(struct vfm_hjob *j, const char *why)
{
	pthread_mutex_lock(&j->fail_lock);
	if (!atomic_load(&j->failed)) {
		snprintf(j->why, sizeof(j->why), "%s", why);
		vfm_record_dump(j, j->why); /* first: whoever sees the flag may end the process */
		atomic_store(&j->failed, true);
	}
	pthread_mutex_unlock(&j->fail_lock);
}

static void wake(struct vfm_hjob *j)
{
	uint64_t one = 1;

	if (write(j->wake, &one, sizeof(one)) < 0)
		return; /* it is awake already */
}

int vfm_hjob_fail(struct vfm_hjob *j, struct vfm_err *err, const char *fmt, ...)
{
	char why[VFM_WHY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (!j->monitor_runs) {
		set_failed(j, why);
		return vfm_hjob_check(j, err);
	}
	pthread_mutex_lock(&j->mon->lock);
	if (!j->mon->report[0])
		snprintf(j->mon->report, sizeof(j->mon->report), "%s", why);
	pthread_mutex_unlock(&j->mon->lock);
	wake(j);
	for (double until = vfm_now() + 3; !atomic_load(&j->failed) && vfm_now() < until;)
		poll(NULL, 0, 5);
	set_failed(j, why);
	return vfm_hjob_check(j, err);
}

static void sig_str(const struct vfm_sig *s, char *buf, size_t len)
{
	const char *kind = s->kind < VFM_C_KINDS ? vfm_coll_name[s->kind] : "something else";

	if (s->kind == VFM_C_BARRIER)
		snprintf(buf, len, "%s number %llu", kind, (unsigned long long)s->number);
	else if (s->kind == VFM_C_EXCHANGE)
		snprintf(buf, len, "message number %llu of %llu bytes", (unsigned long long)s->number, (unsigned long long)s->bytes);
	else
		snprintf(buf, len, "%s number %llu (%llu bytes of %s)", kind, (unsigned long long)s->number, (unsigned long long)s->bytes,
			s->dtype < VFM_DTYPE_N ? vfm_dtype_name((enum vfm_dtype)s->dtype) : "?");
}

int vfm_hjob_mismatch(struct vfm_hcomm *g, int peer, const struct vfm_sig *mine, const struct vfm_sig *theirs, struct vfm_err *err)
{
	char a[96], b[96], sa[128], sb[128];
	const char *more = "";

	sig_str(mine, sa, sizeof(sa));
	sig_str(theirs, sb, sizeof(sb));
	if (!strcmp(sa, sb))
		more = ", with other counts";
	return vfm_hjob_fail(g->job, err, "the ranks of '%s' do not do the same: %s is in %s, %s in %s%s", g->c.name,
		vfm_rank_str(g->job, g->world[g->c.rank], a, sizeof(a)), sa, vfm_rank_str(g->job, g->world[peer], b, sizeof(b)), sb, more);
}

int vfm_hjob_lost(struct vfm_hcomm *g, int peer, const char *what, struct vfm_err *err)
{
	struct vfm_hjob *j = g->job;
	char a[96];

	for (double until = vfm_now() + 2; !atomic_load(&j->failed) && vfm_now() < until;)
		poll(NULL, 0, 10);
	TRY(vfm_hjob_check(j, err));
	return vfm_hjob_fail(j, err, "lost %s in %s number %llu of '%s': %s", vfm_rank_str(j, g->world[peer], a, sizeof(a)),
		vfm_coll_name[atomic_load(&g->act.kind)], (unsigned long long)atomic_load(&g->act.number), g->c.name, what);
}

void vfm_wait_begin(struct vfm_hcomm *g, int peer)
{
	atomic_store(&g->act.peer, g->world[peer]);
	if (!atomic_load(&g->act.waits)) {
		atomic_store(&g->act.wait_since, vfm_now());
		atomic_store(&g->act.waits, true);
	}
}

void vfm_wait_end(struct vfm_hcomm *g)
{
	if (atomic_load_explicit(&g->act.waits, memory_order_relaxed))
		atomic_store(&g->act.waits, false);
}

int vfm_wait_check(struct vfm_hcomm *g, struct vfm_err *err)
{
	struct vfm_hjob *j = g->job;
	double t = vfm_now() - atomic_load(&g->act.wait_since);
	char a[96], b[96];

	TRY(vfm_hjob_check(j, err));
	if (!atomic_load(&g->act.waits) || t < 1.5 * j->timeout + 5)
		return 0;
	return vfm_hjob_fail(j, err, "%s waits for %s in %s number %llu of '%s' since %.1f s", vfm_rank_str(j, j->rank, a, sizeof(a)),
		vfm_rank_str(j, atomic_load(&g->act.peer), b, sizeof(b)), vfm_coll_name[atomic_load(&g->act.kind)],
		(unsigned long long)atomic_load(&g->act.number), g->c.name, t);
}

/* ---- messages ---- */

static void fill_beat(struct vfm_hjob *j, struct mon_msg *m)
{
	double now = vfm_now();

	*m = (struct mon_msg){.magic = MSG_MAGIC, .type = BEAT, .rank = j->rank};
	pthread_mutex_lock(&j->lock);
	for (struct vfm_doing *d = j->doing; d && m->n < ACTS; d = d->next) {
		struct mon_act *a = &m->act[m->n];

		if (!atomic_load(&d->busy))
			continue;
		snprintf(a->name, sizeof(a->name), "%s", d->name);
		a->group = d->id;
		a->number = atomic_load(&d->number);
		a->bytes = atomic_load(&d->bytes);
		a->kind = atomic_load(&d->kind);
		a->age = now - atomic_load(&d->since);
		a->waits = atomic_load(&d->waits) ? now - atomic_load(&d->wait_since) : -1;
		a->peer = atomic_load(&d->peer);
		m->n++;
	}
	pthread_mutex_unlock(&j->lock);
}

void vfm_doing_add(struct vfm_hjob *j, struct vfm_doing *a, const char *name, uint64_t id)
{
	a->name = name;
	a->id = id;
	pthread_mutex_lock(&j->lock);
	a->next = j->doing;
	j->doing = a;
	pthread_mutex_unlock(&j->lock);
}

void vfm_doing_remove(struct vfm_hjob *j, struct vfm_doing *a)
{
	pthread_mutex_lock(&j->lock);
	for (struct vfm_doing **p = &j->doing; *p; p = &(*p)->next)
		if (*p == a) {
			*p = a->next;
			break;
		}
	pthread_mutex_unlock(&j->lock);
}

static void conn_free(struct mon_conn *c)
{
	if (!c)
		return;
	close(c->fd);
	vfm_buf_release(&c->out);
	free(c);
}

/* false: the connection is gone. */
static bool flush(struct mon_conn *c)
{
	while (c->out.len) {
		ssize_t k = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k < 0)
			return errno == EAGAIN || errno == EINTR;
		memmove(c->out.data, c->out.data + k, c->out.len - (size_t)k);
		c->out.len -= (size_t)k;
	}
	return true;
}

static void post(struct mon_peer *p, const struct mon_msg *m)
{
	if (!p->conn || (p->conn->out.len > 16 * sizeof(*m) && m->type == BEAT))
		return;
	vfm_buf_add(&p->conn->out, m, sizeof(*m));
	flush(p->conn);
}

static void post_all(struct vfm_hjob *j, const struct mon_msg *m)
{
	for (int r = 0; r < j->size; r++)
		post(&j->mon->peer[r], m);
}

static void fail_msg(struct vfm_hjob *j, struct mon_msg *m, const char *why)
{
	*m = (struct mon_msg){.magic = MSG_MAGIC, .type = FAIL, .rank = j->rank};
	snprintf(m->why, sizeof(m->why), "%s", why);
}

/* The monitor thread's set_failed: the others first, since this process may end as soon as its threads know. */
static void verdict(struct vfm_hjob *j, const char *why)
{
	struct mon_msg m;

	if (j->rank == 0 && !atomic_load(&j->failed)) {
		fail_msg(j, &m, why);
		post_all(j, &m);
	}
	set_failed(j, why);
}

/* ---- rank 0 judges ---- */

static double silent(struct vfm_hjob *j, int r)
{
	return r == j->rank ? 0 : vfm_now() - j->mon->peer[r].heard;
}

/* The longest wait of any rank for r. */
static const struct mon_act *waits_for(struct vfm_hjob *j, int r, int *who)
{
	const struct mon_act *best = NULL;

	for (int q = 0; q < j->size; q++)
		for (uint32_t i = 0; q != r && i < j->mon->peer[q].last.n; i++) {
			const struct mon_act *a = &j->mon->peer[q].last.act[i];

			if (a->waits >= 0 && a->peer == r && (!best || a->waits > best->waits)) {
				best = a;
				*who = q;
			}
		}
	return best;
}

static void what_it_did(struct vfm_hjob *j, int r, char *buf, size_t len)
{
	const struct mon_msg *m = &j->mon->peer[r].last;

	if (!m->n)
		snprintf(buf, len, "in no collective when last heard");
	else
		snprintf(buf, len, "last heard in %s number %llu of '%s'", vfm_coll_name[m->act[0].kind], (unsigned long long)m->act[0].number,
			m->act[0].name);
}

/* "rank 3 (node2) died (last heard in …); rank 0 (node0) waits for it in all_reduce number 812 of 'tp' since 4.1 s" */
static void convict(struct vfm_hjob *j, int r, const char *crime)
{
	char who[96], waiter[96], did[160], why[VFM_WHY_MAX];
	const struct mon_act *a;
	int q = 0, n;

	fill_beat(j, &j->mon->peer[j->rank].last);
	a = waits_for(j, r, &q);
	what_it_did(j, r, did, sizeof(did));
	n = snprintf(why, sizeof(why), "%s %s (%s)", vfm_rank_str(j, r, who, sizeof(who)), crime, did);
	if (a && n > 0 && (size_t)n < sizeof(why))
		snprintf(why + n, sizeof(why) - (size_t)n, "; %s waits for it in %s number %llu of '%s' since %.1f s",
			vfm_rank_str(j, q, waiter, sizeof(waiter)), vfm_coll_name[a->kind], (unsigned long long)a->number, a->name, a->waits);
	verdict(j, why);
}

static const struct mon_act *act_in(const struct mon_msg *m, uint64_t group)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (m->act[i].group == group)
			return &m->act[i];
	return NULL;
}

static const struct mon_act *longest_wait(const struct mon_msg *m)
{
	const struct mon_act *best = NULL;

	for (uint32_t i = 0; i < m->n; i++)
		if (m->act[i].waits >= 0 && (!best || m->act[i].waits > best->waits))
			best = &m->act[i];
	return best;
}

static bool gone(struct vfm_hjob *j, int r, char *crime, size_t len)
{
	const struct mon_peer *p = &j->mon->peer[r];

	if (r == j->rank)
		return false;
	if (!p->joined)
		snprintf(crime, len, "never came");
	else if (p->bye)
		snprintf(crime, len, "has ended in order, too early");
	else if (silent(j, r) > 2.5 || (j->mon->asked > 0 && p->heard < j->mon->asked))
		snprintf(crime, len, "does not answer since %.1f s: it is stopped, or its node is gone", silent(j, r));
	else
		return false;
	return true;
}

/* From a rank that waits too long to the one that everybody waits for in the end. */
static void follow(struct vfm_hjob *j, const struct mon_act *a)
{
	char *seen = vfm_calloc((size_t)j->size, 1), crime[200];
	const struct mon_act *first = a;
	int r = a->peer;

	for (;;) {
		const struct mon_act *b, *at = a;

		if (r < 0 || r >= j->size || gone(j, r, crime, sizeof(crime)))
			break;
		if (seen[r]) {
			snprintf(crime, sizeof(crime), "waits in a circle: it waits for %d, which waits for it", a->peer);
			break;
		}
		seen[r] = 1;
		b = act_in(&j->mon->peer[r].last, a->group);
		if (b && b->waits < 0 && b->number == at->number) {
			snprintf(crime, sizeof(crime), "does not get on, though it is in the same call since %.1f s", b->age);
			break;
		}
		if (!b || b->waits < 0)
			b = longest_wait(&j->mon->peer[r].last);
		if (!b || (b->group != at->group && b->waits < j->timeout / 4)) {
			snprintf(crime, sizeof(crime), "hangs: it does not come to %s number %llu of '%s'", vfm_coll_name[at->kind],
				(unsigned long long)at->number, at->name);
			break;
		}
		a = b;
		r = b->peer;
	}
	if (r < 0 || r >= j->size)
		r = first->peer;
	free(seen);
	convict(j, r, crime);
}

/* All are asked for their state; true once they have answered or had their time. */
static bool asked_all(struct vfm_hjob *j)
{
	struct mon_msg ask = {.magic = MSG_MAGIC, .type = ASK};
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	bool all = true;

	if (m->asked <= 0) {
		m->asked = now;
		post_all(j, &ask);
		return false;
	}
	for (int r = 1; r < j->size; r++)
		all &= m->peer[r].bye || m->peer[r].dead || !m->peer[r].joined || m->peer[r].heard > m->asked;
	return all || now - m->asked > (m->dying >= 0 ? 0.3 : 1);
}

static void judge(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	const struct mon_act *late = NULL;
	char crime[160];

	if (m->dying >= 0) {
		if (asked_all(j))
			convict(j, m->dying, "died");
		return;
	}
	for (int r = 1; r < j->size; r++)
		if (m->peer[r].joined && !m->peer[r].bye && silent(j, r) > j->beat_timeout && gone(j, r, crime, sizeof(crime))) {
			convict(j, r, crime);
			return;
		}
	fill_beat(j, &m->peer[0].last);
	for (int r = 0; r < j->size && !late; r++)
		for (uint32_t i = 0; i < m->peer[r].last.n && !late; i++) {
			const struct mon_act *a = &m->peer[r].last.act[i];
			bool left = a->peer >= 0 && a->peer < j->size && m->peer[a->peer].bye;

			if (a->waits > (left && j->timeout > 2 ? 2 : j->timeout))
				late = a;
		}
	if (!late)
		m->asked = 0;
	else if (asked_all(j)) {
		for (int r = 0; r < j->size; r++) { /* still, now that all have answered? */
			const struct mon_act *a = longest_wait(&m->peer[r].last);

			if (a && a->waits > (a->peer >= 0 && a->peer < j->size && m->peer[a->peer].bye && j->timeout > 2 ? 2 : j->timeout)) {
				follow(j, a);
				return;
			}
		}
		m->asked = 0;
	}
}

/* The others watch rank 0 only. */
static void watch_zero(struct vfm_hjob *j)
{
	struct mon_peer *p = &j->mon->peer[0];
	char crime[160];

	if (p->joined && !p->bye && silent(j, 0) > j->beat_timeout + 0.5 && gone(j, 0, crime, sizeof(crime)))
		convict(j, 0, crime);
}

/* ---- the thread ---- */

static void take_msg(struct vfm_hjob *j, int r, const struct mon_msg *m)
{
	struct mon_peer *p = &j->mon->peer[r];
	struct mon_msg beat;

	p->heard = vfm_now();
	switch (m->type) {
	case BEAT:
		p->last = *m;
		if (p->last.n > ACTS)
			p->last.n = 0;
		for (uint32_t i = 0; i < p->last.n; i++) {
			p->last.act[i].name[15] = '\0';
			if (p->last.act[i].kind < 0 || p->last.act[i].kind >= VFM_C_KINDS)
				p->last.act[i].kind = VFM_C_BARRIER;
		}
		break;
	case ASK:
		fill_beat(j, &beat);
		post(p, &beat);
		break;
	case FAIL: {
		char why[VFM_WHY_MAX];

		memcpy(why, m->why, sizeof(why));
		why[sizeof(why) - 1] = '\0';
		verdict(j, why);
		break;
	}
	case BYE:
		p->bye = true;
		p->last.n = 0;
		break;
	default:
		break;
	}
}

static void hang_up(struct vfm_hjob *j, int r)
{
	struct mon_peer *p = &j->mon->peer[r];

	conn_free(p->conn);
	p->conn = NULL;
	if (p->bye || p->dead)
		return;
	p->dead = true;
	if (atomic_load(&j->failed))
		return;
	if (j->rank == 0) {
		if (j->mon->dying < 0) {
			j->mon->dying = r;
			j->mon->asked = 0;
		}
	} else if (!atomic_load(&j->mon->stop)) {
		convict(j, 0, "died");
	}
}

static void read_conn(struct vfm_hjob *j, int r)
{
	struct mon_conn *c = j->mon->peer[r].conn;

	while (c) {
		ssize_t k = recv(c->fd, (char *)&c->in + c->have, sizeof(c->in) - c->have, MSG_DONTWAIT);

		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (k <= 0) {
			hang_up(j, r);
			return;
		}
		c->have += (size_t)k;
		if (c->have == sizeof(c->in)) {
			c->have = 0;
			if (c->in.magic != MSG_MAGIC) {
				hang_up(j, r);
				return;
			}
			take_msg(j, r, &c->in);
		}
	}
}

static void add_conn(struct vfm_hjob *j, int r, int fd)
{
	struct mon_peer *p = &j->mon->peer[r];
	struct mon_msg beat;

	conn_free(p->conn);
	p->conn = vfm_calloc(1, sizeof(*p->conn));
	p->conn->fd = fd;
	p->conn->rank = r;
	p->joined = true;
	p->heard = vfm_now();
	fill_beat(j, &beat);
	post(p, &beat);
	if (atomic_load(&j->failed)) {
		fail_msg(j, &beat, j->why);
		post(p, &beat);
	}
}

static void add_pending(struct vfm_hjob *j, const struct vfm_hello *h, int fd)
{
	struct vfm_pending *p = vfm_calloc(1, sizeof(*p));

	p->group = h->group;
	p->from = h->from;
	p->fd = fd;
	pthread_mutex_lock(&j->lock);
	p->next = j->pending;
	j->pending = p;
	pthread_cond_broadcast(&j->came);
	pthread_mutex_unlock(&j->lock);
}

/* A hello has come in whole: who is it? */
static void answer(struct vfm_hjob *j, struct mon_hello *x)
{
	const struct vfm_hello *h = &x->h;
	uint32_t yes = VFM_HELLO_MAGIC;

	if (h->magic != VFM_HELLO_MAGIC || memcmp(h->token, j->card[0].token, 16) != 0 || h->to != j->rank || h->from < 0 || h->from >= j->size ||
		send(x->fd, &yes, sizeof(yes), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(yes)) {
		close(x->fd);
		return;
	}
	if (h->kind == VFM_HELLO_MONITOR && j->rank == 0) {
		add_conn(j, h->from, x->fd);
	} else if (h->kind == VFM_HELLO_DATA) {
		add_pending(j, h, x->fd);
	} else {
		if (h->kind == VFM_HELLO_ARENA && j->leads)
			vfm_net_send_fd(x->fd, j->arena_fd);
		close(x->fd);
	}
}

/* true: done with it */
static bool read_hello(struct vfm_hjob *j, struct mon_hello *x)
{
	ssize_t k = recv(x->fd, (char *)&x->h + x->have, sizeof(x->h) - x->have, MSG_DONTWAIT);

	if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (vfm_now() < x->until)
			return false;
		close(x->fd);
		return true;
	}
	if (k <= 0) {
		close(x->fd);
		return true;
	}
	x->have += (size_t)k;
	if (x->have < sizeof(x->h))
		return false;
	answer(j, x);
	return true;
}

static void accept_all(struct vfm_hjob *j, int listener, bool local)
{
	while (j->mon->n_hello < HELLOS) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;
		struct ucred who = {0};
		socklen_t len = sizeof(who);

		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR)
				poll(NULL, 0, 20); /* no descriptors left: not to spin */
			return;
		}
		if (local && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 || who.uid != geteuid())) {
			close(fd);
			continue;
		}
		if (!local)
			setsockopt(fd, 6 /* IPPROTO_TCP */, 1 /* TCP_NODELAY */, &on, sizeof(on));
		j->mon->hello[j->mon->n_hello++] = (struct mon_hello){.fd = fd, .until = vfm_now() + 10};
	}
}

static int poll_set(struct vfm_hjob *j, struct pollfd *p, int *who)
{
	struct vfm_mon *m = j->mon;
	int n = 0, listeners[2] = {j->listen_unix, j->listen_tcp};

	p[n] = (struct pollfd){.fd = j->wake, .events = POLLIN};
	who[n++] = -1;
	for (int i = 0; i < 2; i++)
		if (listeners[i] >= 0 && m->n_hello < HELLOS) {
			p[n] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
			who[n++] = -2 - i;
		}
	for (int i = 0; i < m->n_hello; i++) {
		p[n] = (struct pollfd){.fd = m->hello[i].fd, .events = POLLIN};
		who[n++] = -10;
	}
	for (int r = 0; r < j->size; r++)
		if (m->peer[r].conn) {
			p[n] = (struct pollfd){.fd = m->peer[r].conn->fd, .events = (short)(POLLIN | (m->peer[r].conn->out.len ? POLLOUT : 0))};
			who[n++] = r;
		}
	return n;
}

static void serve(struct vfm_hjob *j, const struct pollfd *p, const int *who, int n)
{
	struct vfm_mon *m = j->mon;
	uint64_t x;
	int kept = 0;

	for (int i = 0; i < n; i++) {
		if (!p[i].revents)
			continue;
		if (who[i] == -1 && read(j->wake, &x, sizeof(x)) < 0)
			continue;
		if (who[i] == -2 || who[i] == -3)
			accept_all(j, p[i].fd, who[i] == -2);
		if (who[i] >= 0 && m->peer[who[i]].conn) {
			if ((p[i].revents & POLLOUT) && !flush(m->peer[who[i]].conn))
				hang_up(j, who[i]);
			else
				read_conn(j, who[i]);
		}
	}
	for (int i = 0; i < m->n_hello; i++)
		if (!read_hello(j, &m->hello[i]))
			m->hello[kept++] = m->hello[i];
	m->n_hello = kept;
}

/* What other threads of this rank want of the monitor. */
static void errands(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	char why[VFM_WHY_MAX];
	struct mon_msg msg;
	int fd;

	pthread_mutex_lock(&m->lock);
	fd = m->joining;
	m->joining = -1;
	memcpy(why, m->report, sizeof(why));
	m->report[0] = '\0';
	pthread_mutex_unlock(&m->lock);
	if (fd >= 0)
		add_conn(j, 0, fd);
	if (why[0] && j->rank == 0) {
		verdict(j, why);
	} else if (why[0]) {
		fail_msg(j, &msg, why);
		post(&m->peer[0], &msg);
	}
}

static void beats(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	struct mon_msg msg;

	if (now - m->looked > 2) { /* this process was stopped itself (a suspended job): that time does not count */
		for (int r = 0; r < j->size; r++)
			m->peer[r].heard = now;
		pthread_mutex_lock(&j->lock);
		for (struct vfm_doing *d = j->doing; d; d = d->next)
			atomic_store(&d->wait_since, atomic_load(&d->wait_since) + now - m->looked);
		pthread_mutex_unlock(&j->lock);
	}
	m->looked = now;
	if (now - m->beat < 1)
		return;
	m->beat = now;
	fill_beat(j, &msg);
	post_all(j, &msg);
}

/* Rank 0's monitor is the last to go: the others may need it. */
static bool may_end(struct vfm_hjob *j, bool said)
{
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	char why[VFM_WHY_MAX], who[96];
	int left = -1;

	/* The stop may come between the good-bye's turn and this one: nobody leaves without having said it. */
	if (!atomic_load(&m->stop) || (j->rank != 0 && !said))
		return false;
	if (m->stop_since <= 0)
		m->stop_since = now;
	for (int r = 0; r < j->size; r++)
		if (m->peer[r].conn && !(j->rank == 0 && m->peer[r].bye && !m->peer[r].conn->out.len))
			left = r;
	if (j->rank != 0) {
		bool sent = !m->peer[0].conn || !m->peer[0].conn->out.len;

		return sent || now - m->stop_since > 2;
	}
	if (left < 0)
		return true;
	if (atomic_load(&j->failed))
		return now - m->stop_since > 1;
	if (now - m->stop_since > j->timeout) {
		snprintf(why, sizeof(why), "%s has not ended, %.1f s after rank 0", vfm_rank_str(j, left, who, sizeof(who)), now - m->stop_since);
		verdict(j, why);
	}
	return false;
}

static void *monitor(void *arg)
{
	struct vfm_hjob *j = arg;
	struct vfm_mon *m = j->mon;
	size_t most = (size_t)j->size + HELLOS + 8;
	struct pollfd *p = vfm_calloc(most, sizeof(*p));
	int *who = vfm_calloc(most, sizeof(*who)), n;
	struct mon_msg bye = {.magic = MSG_MAGIC, .type = BYE, .rank = j->rank};
	bool said = false;

	m->looked = vfm_now();
	while (!may_end(j, said)) {
		n = poll_set(j, p, who);
		poll(p, (nfds_t)n, m->dying >= 0 || m->asked > 0 || atomic_load(&m->stop) ? 20 : 250);
		serve(j, p, who, n);
		beats(j);
		errands(j);
		if (j->rank != 0 && atomic_load(&m->stop) && !said) {
			said = true;
			if (!atomic_load(&j->failed))
				post(&m->peer[0], &bye);
		}
		if (!atomic_load(&j->failed)) {
			if (j->rank == 0)
				judge(j);
			else if (!said)
				watch_zero(j);
			errands(j);
		}
	}
	free(p);
	free(who);
	return NULL;
}

int vfm_monitor_start(struct vfm_hjob *j, struct vfm_err *err)
{
	struct vfm_mon *m = vfm_calloc(1, sizeof(*m));
	sigset_t all, old;
	int rc;

	j->mon = m;
	m->peer = vfm_calloc((size_t)j->size, sizeof(*m->peer));
	m->dying = m->joining = -1;
	pthread_mutex_init(&m->lock, NULL);
	j->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (j->wake < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot make an event descriptor");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the threads that compute */
	rc = pthread_create(&j->monitor, NULL, monitor, j);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return vfm_fail(err, VFM_EENV, "cannot start the monitor thread: %s", strerror(rc));
	j->monitor_runs = true;
	return 0;
}

int vfm_monitor_join(struct vfm_hjob *j, struct vfm_err *err)
{
	int fd;

	if (j->rank == 0)
		return 0;
	TRY(vfm_net_connect(j, 0, VFM_HELLO_MONITOR, 0, &fd, err));
	pthread_mutex_lock(&j->mon->lock);
	j->mon->joining = fd;
	pthread_mutex_unlock(&j->mon->lock);
	wake(j);
	return 0;
}

void vfm_monitor_stop(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;

	if (!m)
		return;
	if (j->monitor_runs) {
		atomic_store(&m->stop, true);
		wake(j);
		pthread_join(j->monitor, NULL);
		j->monitor_runs = false;
	}
	for (int r = 0; r < j->size; r++)
		conn_free(m->peer[r].conn);
	for (int i = 0; i < m->n_hello; i++)
		close(m->hello[i].fd);
	if (m->joining >= 0)
		close(m->joining);
	if (j->wake >= 0)
		close(j->wake);
	pthread_mutex_destroy(&m->lock);
	free(m->peer);
	free(m);
	j->mon = NULL;
}
