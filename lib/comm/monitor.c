/* The monitor: a thread in each rank.  It accepts connections, sends heartbeats with the current calls of this rank to
 * rank 0, and receives failures of the job, which the monitor of rank 0 detects (failure_detector.c). */
#include "comm/monitor.h"

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

/* ---- the state of the job ---- */

const char *vfm_rank_str(struct vfm_hjob *j, int rank, char *buf, size_t len)
{
	const struct vfm_endpoint *e = vfm_endpoint_of(j, rank, NULL);

	snprintf(buf, len, "rank %d (%s)", rank, e ? e->host : "?");
	return buf;
}

int vfm_hjob_check(struct vfm_hjob *j, struct vfm_err *err)
{
	if (!atomic_load_explicit(&j->failed, memory_order_acquire))
		return 0;
	return vfm_fail(err, VFM_EENV, "%s", j->why);
}

static void set_job_failed(struct vfm_hjob *j, const char *why)
{
	pthread_mutex_lock(&j->fail_lock);
	if (!atomic_load(&j->failed)) {
		snprintf(j->why, sizeof(j->why), "%s", why);
		vfm_record_dump(j, j->why); /* first: a thread that sees the flag may end the process */
		atomic_store(&j->failed, true);
	}
	pthread_mutex_unlock(&j->fail_lock);
}

static void wake_monitor(struct vfm_hjob *j)
{
	uint64_t one = 1;

	if (write(j->wake, &one, sizeof(one)) < 0)
		return; /* the counter is full: the thread is awake */
}

int vfm_hjob_fail(struct vfm_hjob *j, struct vfm_err *err, const char *fmt, ...)
{
	char why[VFM_WHY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (!j->monitor_runs || !atomic_load(&j->joined)) {
		set_job_failed(j, why);
		return vfm_hjob_check(j, err);
	}
	pthread_mutex_lock(&j->mon->lock);
	if (!j->mon->report[0])
		snprintf(j->mon->report, sizeof(j->mon->report), "%s", why);
	pthread_mutex_unlock(&j->mon->lock);
	wake_monitor(j);
	for (double until = vfm_now() + 3; !atomic_load(&j->failed) && vfm_now() < until;)
		poll(NULL, 0, 5);
	set_job_failed(j, why);
	return vfm_hjob_check(j, err);
}

static void format_signature(const struct vfm_sig *s, char *buf, size_t len)
{
	const char *kind = s->kind < VFM_C_KINDS ? vfm_coll_name[s->kind] : "an unknown call";

	if (s->kind == VFM_C_BARRIER)
		snprintf(buf, len, "%s number %llu", kind, (unsigned long long)s->number);
	else if (s->kind == VFM_C_EXCHANGE)
		snprintf(buf, len, "message number %llu of %llu bytes", (unsigned long long)s->number,
			(unsigned long long)s->bytes);
	else
		snprintf(buf, len, "%s number %llu (%llu bytes of %s)", kind, (unsigned long long)s->number,
			(unsigned long long)s->bytes,
			s->dtype < VFM_DTYPE_N ? vfm_dtype_name((enum vfm_dtype)s->dtype) : "?");
}

int vfm_hjob_mismatch(
	struct vfm_hcomm *g, int peer, const struct vfm_sig *mine, const struct vfm_sig *theirs, struct vfm_err *err)
{
	char a[96], b[96], sa[128], sb[128];
	const char *more = "";

	format_signature(mine, sa, sizeof(sa));
	format_signature(theirs, sb, sizeof(sb));
	if (!strcmp(sa, sb))
		more = ", with different counts";
	return vfm_hjob_fail(g->job, err, "the ranks of '%s' are in different calls: %s is in %s, %s in %s%s",
		g->c.name, vfm_rank_str(g->job, g->world[g->c.rank], a, sizeof(a)), sa,
		vfm_rank_str(g->job, g->world[peer], b, sizeof(b)), sb, more);
}

int vfm_hjob_lost(struct vfm_hcomm *g, int peer, const char *what, struct vfm_err *err)
{
	struct vfm_hjob *j = g->job;
	char a[96];

	for (double until = vfm_now() + 2; !atomic_load(&j->failed) && vfm_now() < until;)
		poll(NULL, 0, 10);
	TRY(vfm_hjob_check(j, err));
	return vfm_hjob_fail(j, err, "lost %s in %s number %llu of '%s': %s",
		vfm_rank_str(j, g->world[peer], a, sizeof(a)), vfm_coll_name[atomic_load(&g->act.kind)],
		(unsigned long long)atomic_load(&g->act.number), g->c.name, what);
}

int vfm_hjob_unreachable(struct vfm_hjob *j, int rank, struct vfm_err *err)
{
	char a[96], b[96];

	for (double until = vfm_now() + 2; atomic_load(&j->joined) && vfm_now() < until; poll(NULL, 0, 10))
		TRY(vfm_hjob_check(j, err));
	return vfm_hjob_fail(j, err, "%s ended before %s could connect to it", vfm_rank_str(j, rank, a, sizeof(a)),
		vfm_rank_str(j, j->rank, b, sizeof(b)));
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
	return vfm_hjob_fail(j, err, "%s has waited for %s in %s number %llu of '%s' for %.1f s",
		vfm_rank_str(j, j->rank, a, sizeof(a)), vfm_rank_str(j, atomic_load(&g->act.peer), b, sizeof(b)),
		vfm_coll_name[atomic_load(&g->act.kind)], (unsigned long long)atomic_load(&g->act.number), g->c.name,
		t);
}

/* ---- messages ---- */

void vfm_mon_heartbeat(struct vfm_hjob *j, struct mon_msg *m)
{
	double now = vfm_now();

	*m = (struct mon_msg){.magic = MSG_MAGIC, .type = HEARTBEAT, .rank = j->rank};
	pthread_mutex_lock(&j->lock);
	for (struct vfm_activity *d = j->activities; d && m->n < ACTS; d = d->next) {
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

void vfm_activity_add(struct vfm_hjob *j, struct vfm_activity *a, const char *name, uint64_t id)
{
	a->name = name;
	a->id = id;
	pthread_mutex_lock(&j->lock);
	a->next = j->activities;
	j->activities = a;
	pthread_mutex_unlock(&j->lock);
}

void vfm_activity_remove(struct vfm_hjob *j, struct vfm_activity *a)
{
	pthread_mutex_lock(&j->lock);
	for (struct vfm_activity **p = &j->activities; *p; p = &(*p)->next)
		if (*p == a) {
			*p = a->next;
			break;
		}
	pthread_mutex_unlock(&j->lock);
}

static void mon_conn_free(struct mon_conn *c)
{
	if (!c)
		return;
	close(c->fd);
	vfm_buf_release(&c->out);
	free(c);
}

/* Returns false if the connection is closed. */
static bool flush_conn(struct mon_conn *c)
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

static void post_to_peer(struct mon_peer *p, const struct mon_msg *m)
{
	if (!p->conn || (p->conn->out.len > 16 * sizeof(*m) && m->type == HEARTBEAT))
		return;
	vfm_buf_add(&p->conn->out, m, sizeof(*m));
	flush_conn(p->conn);
}

void vfm_mon_post(struct vfm_hjob *j, const struct mon_msg *m)
{
	for (int r = 0; r < j->size; r++)
		post_to_peer(&j->mon->peer[r], m);
}

static void make_fail_msg(struct vfm_hjob *j, struct mon_msg *m, const char *why)
{
	*m = (struct mon_msg){.magic = MSG_MAGIC, .type = FAIL, .rank = j->rank};
	snprintf(m->why, sizeof(m->why), "%s", why);
}

void vfm_announce_failure(struct vfm_hjob *j, const char *why)
{
	struct mon_msg m;

	if (j->rank == 0 && !atomic_load(&j->failed)) {
		make_fail_msg(j, &m, why);
		vfm_mon_post(j, &m);
	}
	set_job_failed(j, why);
}

/* ---- the thread ---- */

static void handle_msg(struct vfm_hjob *j, int r, const struct mon_msg *m)
{
	struct mon_peer *p = &j->mon->peer[r];
	struct mon_msg beat;

	p->heard = vfm_now();
	switch (m->type) {
	case HEARTBEAT:
		p->last = *m;
		if (p->last.n > ACTS)
			p->last.n = 0;
		for (uint32_t i = 0; i < p->last.n; i++) {
			p->last.act[i].name[15] = '\0';
			if (p->last.act[i].kind < 0 || p->last.act[i].kind >= VFM_C_KINDS)
				p->last.act[i].kind = VFM_C_BARRIER;
		}
		break;
	case PROBE:
		vfm_mon_heartbeat(j, &beat);
		post_to_peer(p, &beat);
		break;
	case FAIL: {
		char why[VFM_WHY_MAX];

		memcpy(why, m->why, sizeof(why));
		why[sizeof(why) - 1] = '\0';
		vfm_announce_failure(j, why);
		break;
	}
	case GOODBYE:
		p->left = true;
		p->last.n = 0;
		break;
	default:
		break;
	}
}

static void drop_peer(struct vfm_hjob *j, int r)
{
	struct mon_peer *p = &j->mon->peer[r];

	mon_conn_free(p->conn);
	p->conn = NULL;
	if (p->left || p->dead)
		return;
	p->dead = true;
	if (atomic_load(&j->failed))
		return;
	if (j->rank == 0) {
		if (j->mon->dying < 0) {
			j->mon->dying = r;
			j->mon->probed = 0;
		}
	} else if (!atomic_load(&j->mon->stop)) {
		vfm_declare_failed(j, 0, "died");
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
			drop_peer(j, r);
			return;
		}
		c->have += (size_t)k;
		if (c->have == sizeof(c->in)) {
			c->have = 0;
			if (c->in.magic != MSG_MAGIC) {
				drop_peer(j, r);
				return;
			}
			handle_msg(j, r, &c->in);
		}
	}
}

void vfm_mon_adopt(struct vfm_hjob *j, int r, int fd)
{
	struct mon_peer *p = &j->mon->peer[r];
	struct mon_msg beat;

	mon_conn_free(p->conn);
	p->conn = vfm_calloc(1, sizeof(*p->conn));
	p->conn->fd = fd;
	p->conn->rank = r;
	j->mon->n_joined += !p->joined;
	p->joined = true;
	p->heard = vfm_now();
	vfm_mon_heartbeat(j, &beat);
	post_to_peer(p, &beat);
	if (atomic_load(&j->failed)) {
		make_fail_msg(j, &beat, j->why);
		post_to_peer(p, &beat);
	}
}

/* The wake descriptor, the connections of the monitors with their ranks in who, then those of the acceptor. */
static int fill_poll_set(struct vfm_hjob *j, struct pollfd *p, int *who)
{
	struct vfm_mon *m = j->mon;
	int n = 0;

	p[n++] = (struct pollfd){.fd = j->wake, .events = POLLIN};
	for (int r = 0; r < j->size; r++)
		if (m->peer[r].conn) {
			p[n] = (struct pollfd){.fd = m->peer[r].conn->fd,
				.events = (short)(POLLIN | (m->peer[r].conn->out.len ? POLLOUT : 0))};
			who[n++] = r;
		}
	return n;
}

static void serve_monitors(struct vfm_hjob *j, const struct pollfd *p, const int *who, int n)
{
	struct vfm_mon *m = j->mon;
	uint64_t x;

	if (p[0].revents && read(j->wake, &x, sizeof(x)) < 0)
		x = 0; /* another wake-up has reset it */
	for (int i = 1; i < n; i++) {
		if (!p[i].revents || !m->peer[who[i]].conn)
			continue;
		if ((p[i].revents & POLLOUT) && !flush_conn(m->peer[who[i]].conn))
			drop_peer(j, who[i]);
		else
			read_conn(j, who[i]);
	}
}

/* Serves requests of other threads of this rank. */
static void run_requests(struct vfm_hjob *j)
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
		vfm_mon_adopt(j, 0, fd);
	if (why[0] && j->rank == 0) {
		vfm_announce_failure(j, why);
	} else if (why[0]) {
		make_fail_msg(j, &msg, why);
		post_to_peer(&m->peer[0], &msg);
	}
}

static void send_heartbeats(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	struct mon_msg msg;

	if (now - m->looked > 2) { /* this process itself was stopped (a suspended job): that time does not count */
		for (int r = 0; r < j->size; r++)
			m->peer[r].heard = now;
		pthread_mutex_lock(&j->lock);
		for (struct vfm_activity *d = j->activities; d; d = d->next)
			atomic_store(&d->wait_since, atomic_load(&d->wait_since) + now - m->looked);
		pthread_mutex_unlock(&j->lock);
	}
	m->looked = now;
	if (now - m->beat < 1)
		return;
	m->beat = now;
	vfm_mon_heartbeat(j, &msg);
	vfm_mon_post(j, &msg);
}

/* Returns whether the thread may end.  That of rank 0 ends last, since the others may need it. */
static bool may_end_monitor(struct vfm_hjob *j, bool said_goodbye)
{
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	char why[VFM_WHY_MAX], who[96];
	int left = -1;

	/* A stop request may arrive after the check for the goodbye: the thread ends only after it has sent one. */
	if (!atomic_load(&m->stop) || (j->rank != 0 && !said_goodbye))
		return false;
	if (m->stop_since <= 0)
		m->stop_since = now;
	for (int r = 0; r < j->size; r++)
		if (m->peer[r].conn && !(j->rank == 0 && m->peer[r].left && !m->peer[r].conn->out.len))
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
		snprintf(why, sizeof(why), "%s has not ended %.1f s after rank 0",
			vfm_rank_str(j, left, who, sizeof(who)), now - m->stop_since);
		vfm_announce_failure(j, why);
	}
	return false;
}

static int choose_poll_ms(const struct vfm_hjob *j)
{
	const struct vfm_mon *m = j->mon;

	if (m->dying >= 0 || m->probed > 0 || atomic_load(&m->stop))
		return 20;
	return j->rank == 0 && m->n_joined < j->size - 1 ? 50 : 250;
}

static void *run_monitor(void *arg)
{
	struct vfm_hjob *j = arg;
	struct vfm_mon *m = j->mon;
	size_t most = 1 + (size_t)j->size + (size_t)vfm_acceptor_limit(j);
	struct pollfd *p = vfm_calloc(most, sizeof(*p));
	int *who = vfm_calloc(most, sizeof(*who)), n;
	struct mon_msg bye = {.magic = MSG_MAGIC, .type = GOODBYE, .rank = j->rank};
	bool said_goodbye = false;

	m->looked = vfm_now();
	while (!may_end_monitor(j, said_goodbye)) {
		n = fill_poll_set(j, p, who);
		poll(p, (nfds_t)(n + vfm_acceptor_poll_set(j, p + n)), choose_poll_ms(j));
		serve_monitors(j, p, who, n);
		vfm_acceptor_serve(j, p + n);
		send_heartbeats(j);
		run_requests(j);
		if (j->rank != 0 && atomic_load(&m->stop) && !said_goodbye) {
			said_goodbye = true;
			if (!atomic_load(&j->failed))
				post_to_peer(&m->peer[0], &bye);
		}
		if (!atomic_load(&j->failed)) {
			if (j->rank == 0)
				vfm_watch_joins(j);
			if (j->rank == 0)
				vfm_detect_failures(j);
			else if (!said_goodbye)
				vfm_detect_rank0_failure(j);
			run_requests(j);
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
	for (int r = 0; r < j->size; r++)
		m->peer[r].heard = vfm_now();
	vfm_acceptor_init(j);
	pthread_mutex_init(&m->lock, NULL);
	j->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (j->wake < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot make an event descriptor");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old); /* the compute threads handle signals */
	rc = pthread_create(&j->monitor, NULL, run_monitor, j);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return vfm_fail(err, VFM_EENV, "cannot start the monitor thread: %s", strerror(rc));
	j->monitor_runs = true;
	return 0;
}

int vfm_monitor_join(struct vfm_hjob *j, struct vfm_err *err)
{
	int fd;

	if (j->rank != 0) {
		TRY(vfm_net_connect(j, 0, VFM_HELLO_MONITOR, 0, &fd, err));
		pthread_mutex_lock(&j->mon->lock);
		j->mon->joining = fd;
		pthread_mutex_unlock(&j->mon->lock);
		wake_monitor(j);
	}
	atomic_store(&j->joined, true);
	return 0;
}

void vfm_monitor_stop(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;

	if (!m)
		return;
	if (j->monitor_runs) {
		atomic_store(&m->stop, true);
		wake_monitor(j);
		pthread_join(j->monitor, NULL);
		j->monitor_runs = false;
	}
	for (int r = 0; r < j->size; r++)
		mon_conn_free(m->peer[r].conn);
	vfm_watch_joins_end(j);
	vfm_acceptor_release(j);
	if (m->joining >= 0)
		close(m->joining);
	if (j->wake >= 0)
		close(j->wake);
	pthread_mutex_destroy(&m->lock);
	free(m->peer);
	free(m);
	j->mon = NULL;
}
