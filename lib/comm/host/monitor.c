/* The monitor thread of a rank (monitor_impl.h). */
#include "comm/host/monitor_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/par.h"

static const double VERDICT_S = 2.5; /* how long a rank that reports a failure waits for rank 0 to announce it */

static struct mon_peer *parent_of(const struct vfm_hjob *j)
{
	return j->rank == 0 ? NULL : &j->mon->peer[j->mon->tree.parent];
}

/* The wake descriptor, the connections of neighbours with their ranks in who, then those of the acceptor. */
static int fill_poll_set(struct vfm_hjob *j, struct pollfd *p, int *who)
{
	const struct vfm_rank_tree *t = &j->mon->tree;
	int n = 0;

	p[n++] = (struct pollfd){.fd = j->wake, .events = POLLIN};
	for (int i = j->rank == 0 ? 0 : -1; i < t->n; i++) {
		int r = i < 0 ? t->parent : t->child[i];
		const struct mon_conn *c = j->mon->peer[r].conn;

		if (!c || c->fd < 0)
			continue;
		p[n] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | (c->out.len ? POLLOUT : 0))};
		who[n++] = r;
	}
	return n;
}

static void serve_monitors(struct vfm_hjob *j, const struct pollfd *p, const int *who, int n)
{
	uint64_t x;

	if (p[0].revents && read(j->wake, &x, sizeof(x)) < 0)
		x = 0; /* another wake-up has reset it */
	for (int i = 1; i < n; i++)
		if (p[i].revents)
			vfm_mon_serve(j, who[i], p[i].revents & POLLOUT);
}

/* Serves requests of other threads of this rank. */
static void run_requests(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	char why[VFM_WHY_MAX];
	int fd;

	pthread_mutex_lock(&m->lock);
	fd = m->joining;
	m->joining = -1;
	memcpy(why, m->report, sizeof(why));
	m->report[0] = '\0';
	pthread_mutex_unlock(&m->lock);
	if (fd >= 0)
		vfm_mon_adopt(j, m->tree.parent, fd);
	if (why[0])
		vfm_report_failure(j, why);
	if (m->reported > 0 && vfm_now() - m->reported > VERDICT_S)
		vfm_announce_failure(j, m->why);
}

/* This process itself was stopped (a suspended job): that time does not count. */
static void forget_pause(struct vfm_hjob *j, double seconds, double now)
{
	for (int r = 0; r < j->size; r++)
		j->mon->peer[r].heard = now;
	pthread_mutex_lock(&j->lock);
	for (struct vfm_activity *d = j->activities; d; d = d->next) {
		double since = atomic_load(&d->wait_since) + seconds;

		atomic_store(&d->wait_since, since < now ? since : now); /* the wait may have begun since */
	}
	pthread_mutex_unlock(&j->lock);
}

static void send_heartbeats(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	const struct mon_peer *self = &m->peer[j->rank], *up = parent_of(j);
	const struct mon_act *wait;
	double now = vfm_now();
	struct mon_msg msg;

	if (now - m->looked > 2)
		forget_pause(j, now - m->looked, now);
	m->looked = now;
	if (now - m->beat < 1)
		return;
	m->beat = now;
	msg = vfm_mon_calls(j, BEAT);
	vfm_mon_post_down(j, &msg);
	if (!up || !up->joined)
		return;
	wait = vfm_longest_wait(self->act, self->n);
	if (!wait || wait->waits <= vfm_shortest_wait_limit(j)) {
		vfm_mon_post(up->conn, &msg);
		return;
	}
	msg.h.type = STATE;
	vfm_mon_tell(j, &msg);
}

static void say_goodbye(struct vfm_hjob *j)
{
	if (j->rank == 0 || j->mon->said_goodbye || !atomic_load(&j->mon->stop))
		return;
	j->mon->said_goodbye = true;
	if (!atomic_load(&j->failed))
		vfm_mon_report(j, GOODBYE, j->rank, NULL);
}

/* Returns a rank that has not ended, or -1. */
static int find_unfinished(const struct vfm_hjob *j)
{
	const struct vfm_mon *m = j->mon;

	for (int r = j->size - 1; r > 0; r--)
		if (!m->peer[r].left && vfm_tree_is_above(&m->tree, j->rank, r) && r != j->rank)
			return r;
	for (int i = 0; i < m->tree.n; i++)
		if (m->peer[m->tree.child[i]].conn)
			return m->tree.child[i];
	return -1;
}

/* Returns whether the thread may end: after the connections of all children have closed, since they may need it. */
static bool may_end_monitor(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	char why[VFM_WHY_MAX], who[96];
	bool open = m->dying >= 0 && !atomic_load(&j->failed); /* rank 0 has to announce it */
	double now = vfm_now();

	/* A stop request may arrive after the check for the goodbye: the thread ends only after it has sent one. */
	if (!atomic_load(&m->stop) || (j->rank != 0 && !m->said_goodbye))
		return false;
	for (int i = 0; i < m->tree.n; i++) {
		const struct mon_peer *p = &m->peer[m->tree.child[i]];

		open |= p->conn || (!p->joined && !atomic_load(&j->failed));
	}
	if (atomic_load(&j->failed)) {
		m->failed_since = m->failed_since > 0 ? m->failed_since : now;
		return !open || now - m->failed_since > 1;
	}
	if (m->stop_since <= 0 || (open && j->rank != 0))
		m->stop_since = now;
	if (!open)
		return j->rank == 0 || !parent_of(j)->conn || !parent_of(j)->conn->out.len || now - m->stop_since > 2;
	if (j->rank == 0 && now - m->stop_since > j->timeout) {
		snprintf(why, sizeof(why), "%s has not ended %.1f s after rank 0",
			vfm_rank_str(j, find_unfinished(j), who, sizeof(who)), now - m->stop_since);
		vfm_announce_failure(j, why);
	}
	return false;
}

static int choose_poll_ms(const struct vfm_hjob *j)
{
	const struct vfm_mon *m = j->mon;

	if (m->dying >= 0 || m->probed > 0 || m->reported > 0 || atomic_load(&m->stop))
		return 20;
	return m->n_joined < m->tree.n ? 50 : 250;
}

static void *run_monitor(void *arg)
{
	struct vfm_hjob *j = arg;
	struct vfm_mon *m = j->mon;
	size_t most = 2 + (size_t)m->tree.n + (size_t)vfm_acceptor_limit(j);
	struct pollfd *p = vfm_calloc(most, sizeof(*p));
	int *who = vfm_calloc(most, sizeof(*who)), n;

	m->looked = vfm_now();
	while (!may_end_monitor(j)) {
		n = fill_poll_set(j, p, who);
		poll(p, (nfds_t)(n + vfm_acceptor_poll_set(j, p + n)), choose_poll_ms(j));
		serve_monitors(j, p, who, n);
		vfm_acceptor_serve(j, p + n);
		send_heartbeats(j);
		run_requests(j);
		say_goodbye(j);
		if (!atomic_load(&j->failed)) {
			vfm_watch_joins(j);
			vfm_watch_neighbours(j);
		}
		if (!atomic_load(&j->failed) && j->rank == 0)
			vfm_detect_failures(j);
		run_requests(j);
	}
	free(p);
	free(who);
	return NULL;
}

static void wake_monitor(struct vfm_hjob *j)
{
	uint64_t one = 1;

	if (write(j->wake, &one, sizeof(one)) < 0)
		return; /* the counter is full: the thread is awake */
}

int vfm_monitor_start(struct vfm_hjob *j, struct vfm_err *err)
{
	struct vfm_mon *m = vfm_calloc(1, sizeof(*m));
	int rc;

	j->mon = m;
	m->peer = vfm_calloc((size_t)j->size, sizeof(*m->peer));
	m->dying = m->joining = j->wake = -1;
	pthread_mutex_init(&m->lock, NULL);
	for (int r = 0; r < j->size; r++)
		m->peer[r].heard = vfm_now();
	vfm_tree_init(&m->tree, j->node_of, j->size, j->rank);
	if (j->rank != 0) {
		parent_of(j)->conn = vfm_calloc(1, sizeof(struct mon_conn));
		parent_of(j)->conn->fd = -1;
	}
	vfm_acceptor_init(j);
	TRY(vfm_net_reserve_files(j, m->tree.n + 1, err));
	j->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (j->wake < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot make an event descriptor");
	rc = vfm_thread_start(&j->monitor, run_monitor, j);
	if (rc)
		return vfm_fail(err, VFM_EENV, "cannot start the monitor thread: %s", strerror(rc));
	j->monitor_runs = true;
	return 0;
}

int vfm_monitor_join(struct vfm_hjob *j, struct vfm_err *err)
{
	int fd;

	if (j->rank != 0) {
		TRY(vfm_net_connect(j, j->mon->tree.parent, VFM_HELLO_MONITOR, 0, &fd, err));
		pthread_mutex_lock(&j->mon->lock);
		j->mon->joining = fd;
		pthread_mutex_unlock(&j->mon->lock);
		wake_monitor(j);
	}
	atomic_store(&j->joined, true);
	return 0;
}

void vfm_monitor_report(struct vfm_hjob *j, const char *why)
{
	struct vfm_mon *m = j->mon;

	pthread_mutex_lock(&m->lock);
	if (!m->report[0])
		snprintf(m->report, sizeof(m->report), "%s", why);
	pthread_mutex_unlock(&m->lock);
	wake_monitor(j);
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
	for (int r = 0; r < j->size; r++) {
		vfm_mon_close(&m->peer[r]);
		free(m->peer[r].act);
	}
	vfm_watch_joins_end(j);
	vfm_acceptor_release(j);
	if (m->joining >= 0)
		close(m->joining);
	if (j->wake >= 0)
		close(j->wake);
	pthread_mutex_destroy(&m->lock);
	vfm_tree_release(&m->tree);
	free(m->peer);
	free(m);
	j->mon = NULL;
}
