/* Finds ranks that end after they have published their addresses and before they connect to their parent.
 *
 * Each rank listens from before it publishes until it ends.  A parent connects, without a handshake, to the children
 * that have not joined; a child whose addresses all refuse has ended.  Any other outcome says nothing, and the failure
 * detector's limits hold. */
#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/host/monitor_impl.h"

static const double FIRST_ROUND_S = 0.3, ROUND_S = 0.5, DIAL_S = 3;

static void end_probe(struct join_probe *x)
{
	if (x->fd >= 0)
		close(x->fd);
	*x = (struct join_probe){.fd = -1};
}

/* Dials the addresses one after the other while they refuse.  Returns true if all have refused. */
static bool advance_probe(struct vfm_hjob *j, struct join_probe *x)
{
	int n = vfm_net_addresses(j, x->rank);

	while (x->addr < n) {
		int e = 0;

		if (x->fd < 0) {
			x->fd = vfm_net_dial(j, x->rank, x->addr);
			e = x->fd < 0 ? errno : 0;
			x->until = vfm_now() + DIAL_S;
		}
		if (x->fd >= 0)
			e = vfm_net_dialed(x->fd, 0);
		if (e == EINPROGRESS && vfm_now() < x->until)
			return false;
		if (e != ECONNREFUSED) {
			end_probe(x);
			return false;
		}
		if (x->fd >= 0)
			close(x->fd);
		x->fd = -1;
		x->addr++;
	}
	return n > 0;
}

void vfm_watch_joins_end(struct vfm_hjob *j)
{
	for (int i = 0; i < JOIN_PROBES; i++)
		if (j->mon->joins.probe[i].rank)
			end_probe(&j->mon->joins.probe[i]);
}

static void begin_probes(struct vfm_hjob *j)
{
	const struct vfm_rank_tree *t = &j->mon->tree;
	struct join_watch *w = &j->mon->joins;
	struct vfm_err err;

	for (int i = 0; i < JOIN_PROBES; i++) {
		if (w->probe[i].rank)
			continue;
		while (w->at < t->n && j->mon->peer[t->child[w->at]].joined)
			w->at++;
		if (w->at == t->n)
			return;
		if (vfm_net_check(j, t->child[w->at], &err) < 0) {
			vfm_report_failure(j, err.msg);
			return;
		}
		w->probe[i] = (struct join_probe){.rank = t->child[w->at++], .fd = -1};
	}
}

void vfm_watch_joins(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	struct join_watch *w = &m->joins;
	double now = vfm_now();

	if (m->n_joined == m->tree.n) {
		vfm_watch_joins_end(j);
		return;
	}
	if (w->next <= 0) {
		w->next = now + FIRST_ROUND_S;
		w->at = m->tree.n;
	}
	if (w->at == m->tree.n && now >= w->next) {
		w->at = 0;
		w->next = now + ROUND_S;
	}
	begin_probes(j);
	for (int i = 0; i < JOIN_PROBES; i++) {
		struct join_probe *x = &w->probe[i];
		struct mon_peer *p = &m->peer[x->rank];
		int rank = x->rank;

		if (!rank || !(p->joined || advance_probe(j, x)))
			continue;
		end_probe(x);
		if (p->joined || p->suspect)
			continue;
		p->suspect = true;
		vfm_mon_report(j, SUSPECT, rank, "ended before all ranks had connected");
	}
}
