/* Finds neighbours in the tree that do not answer; in rank 0, decides which rank failed.
 *
 *   no heartbeat for beat_timeout   the rank is stopped or its host is down: a separate thread sends heartbeats
 *   a closed connection             the rank died (message.c)
 *   a wait beyond the time-out      followed from rank to rank to the one that does not wait.  If neither that rank nor
 *                                   any rank between it and rank 0 answers, the one nearest to rank 0 is the cause. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/host/monitor_impl.h"

static const double SCAN_S = 0.1; /* between two looks at the waits of all ranks */

/* ---- failing the job, in words that name the rank that failed ---- */

void vfm_announce_failure(struct vfm_hjob *j, const char *why)
{
	struct mon_msg m = vfm_mon_msg(FAIL, j->rank, why);

	if (!atomic_load(&j->failed))
		vfm_mon_post_down(j, &m);
	vfm_hjob_set_failed(j, why);
}

/* Returns the longest wait of any rank for r, and that rank in *who; NULL if none waits for r. */
static const struct mon_act *find_longest_waiter(struct vfm_hjob *j, int r, int *who)
{
	const struct mon_act *best = NULL;

	for (int q = 0; q < j->size; q++)
		for (int i = 0; q != r && i < j->mon->peer[q].n; i++) {
			const struct mon_act *a = &j->mon->peer[q].act[i];

			if (a->waits >= 0 && a->peer == r && (!best || a->waits > best->waits)) {
				best = a;
				*who = q;
			}
		}
	return best;
}

static void describe_last_call(struct vfm_hjob *j, int r, char *buf, size_t len)
{
	const struct mon_peer *p = &j->mon->peer[r];

	*buf = '\0';
	if (r != j->rank && !p->joined)
		return;
	if (!p->n)
		snprintf(buf, len, " (in no collective when last heard)");
	else
		snprintf(buf, len, " (last heard in %s number %llu of '%s')", vfm_coll_name[p->act[0].kind],
			(unsigned long long)p->act[0].number, p->act[0].name);
}

/* "rank 3 (node2) died (last heard in …); rank 0 (node0) has waited for it in all_reduce number 812 of 'tp' for 4.1 s"
 */
void vfm_declare_failed(struct vfm_hjob *j, int r, const char *reason)
{
	char who[96], waiter[96], did[160], why[VFM_WHY_MAX];
	const struct mon_act *a;
	int q = 0, n;

	vfm_mon_calls(j, STATE);
	a = find_longest_waiter(j, r, &q);
	describe_last_call(j, r, did, sizeof(did));
	n = snprintf(why, sizeof(why), "%s %s%s", vfm_rank_str(j, r, who, sizeof(who)), reason, did);
	if (a && n > 0 && (size_t)n < sizeof(why))
		snprintf(why + n, sizeof(why) - (size_t)n,
			"; %s has waited for it in %s number %llu of '%s' for %.1f s",
			vfm_rank_str(j, q, waiter, sizeof(waiter)), vfm_coll_name[a->kind],
			(unsigned long long)a->number, a->name, a->waits);
	vfm_announce_failure(j, why);
}

/* ---- limits ---- */

static double silent_seconds(const struct vfm_hjob *j, int r)
{
	return vfm_now() - j->mon->peer[r].heard;
}

double vfm_shortest_wait_limit(const struct vfm_hjob *j)
{
	return j->timeout > 2 ? 2 : j->timeout;
}

/* Returns how long a call may wait: two seconds for a rank that has ended, else the time-out. */
static double wait_limit(const struct vfm_hjob *j, const struct mon_act *a)
{
	return a->peer >= 0 && j->mon->peer[a->peer].left ? vfm_shortest_wait_limit(j) : j->timeout;
}

const struct mon_act *vfm_longest_wait(const struct mon_act *act, int n)
{
	const struct mon_act *best = NULL;

	for (int i = 0; i < n; i++)
		if (act[i].waits >= 0 && (!best || act[i].waits > best->waits))
			best = &act[i];
	return best;
}

/* ---- neighbours ---- */

static void watch_child(struct vfm_hjob *j, int r)
{
	struct mon_peer *p = &j->mon->peer[r];
	double s = silent_seconds(j, r);
	char text[128];

	if (p->left || p->suspect || s <= j->beat_timeout || (p->joined && !p->conn))
		return;
	p->suspect = true;
	snprintf(text, sizeof(text),
		p->joined ? "has not answered for %.1f s: it is stopped, or its node is down"
			  : "never connected within %.1f s: it is stopped, or cannot be reached",
		s);
	vfm_mon_report(j, SUSPECT, r, text);
}

void vfm_watch_neighbours(struct vfm_hjob *j)
{
	const struct vfm_rank_tree *t = &j->mon->tree;
	char reason[128];
	double s;

	for (int i = 0; i < t->n; i++)
		watch_child(j, t->child[i]);
	if (j->rank == 0 || !j->mon->peer[t->parent].joined)
		return;
	s = silent_seconds(j, t->parent);
	if (s <= j->beat_timeout + 0.5) /* rank 0 announces a failure earlier, if there is a way */
		return;
	snprintf(reason, sizeof(reason), "has not answered for %.1f s: it is stopped, or its node is down", s);
	vfm_declare_failed(j, t->parent, reason);
}

/* ---- decisions of rank 0 ---- */

static const struct mon_act *find_activity(const struct mon_peer *p, uint64_t group)
{
	for (int i = 0; i < p->n; i++)
		if (p->act[i].group == group)
			return &p->act[i];
	return NULL;
}

/* Returns whether a rank has not answered a probe; also true of a rank that none can reach. */
static bool is_silent(const struct vfm_hjob *j, int r)
{
	const struct mon_peer *p = &j->mon->peer[r];

	return r != 0 && (!p->joined || (j->mon->probed > 0 && p->told < j->mon->probed));
}

/* Returns the silent rank nearest to rank 0 between it and r, or r. */
static int find_cause_of_silence(const struct vfm_hjob *j, int r)
{
	int top = r;

	for (int a = r; a > 0; a = vfm_tree_parent(&j->mon->tree, a))
		if (is_silent(j, a))
			top = a;
	return top;
}

static bool describe_absence(const struct vfm_hjob *j, int r, char *reason, size_t len)
{
	const struct mon_peer *p = &j->mon->peer[r];

	if (r == 0)
		return false;
	if (!p->joined)
		snprintf(reason, len, "never connected within %.1f s: it is stopped, or cannot be reached",
			silent_seconds(j, r));
	else if (p->left)
		snprintf(reason, len, "ended normally, but too early");
	else if (is_silent(j, r))
		snprintf(reason, len, "has not answered for %.1f s: it is stopped, or its node is down",
			vfm_now() - (p->conn ? p->heard : j->mon->probed));
	else
		return false;
	return true;
}

/* Follows a wait beyond the time-out from rank to rank, and declares the last rank of that chain failed. */
static void follow_wait_chain(struct vfm_hjob *j, const struct mon_act *a)
{
	char *seen = vfm_calloc((size_t)j->size, 1), reason[200];
	int r = find_cause_of_silence(j, a->peer);

	while (!describe_absence(j, r, reason, sizeof(reason))) {
		const struct mon_peer *p = &j->mon->peer[r];
		const struct mon_act *b = find_activity(p, a->group), *at = a;

		if (b && b->waits < 0 && b->number == at->number) {
			snprintf(reason, sizeof(reason),
				"makes no progress, although it has been in the same call for %.1f s", b->age);
			break;
		}
		if (!b || b->waits < 0)
			b = vfm_longest_wait(p->act, p->n);
		if (!b || (b->group != at->group && b->waits < j->timeout / 4)) {
			snprintf(reason, sizeof(reason), "hangs: it has not reached %s number %llu of '%s'",
				vfm_coll_name[at->kind], (unsigned long long)at->number, at->name);
			break;
		}
		if (seen[r]) {
			snprintf(reason, sizeof(reason), "is in a deadlock: it waits for rank %d, which waits for it",
				b->peer);
			break;
		}
		seen[r] = 1;
		a = b;
		r = find_cause_of_silence(j, b->peer);
	}
	free(seen);
	vfm_declare_failed(j, r, reason);
}

/* Probes all ranks for their state; returns true once all have answered or the time for that is over. */
static bool probe_all(struct vfm_hjob *j)
{
	struct mon_msg ask = vfm_mon_msg(PROBE, 0, NULL);
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	bool all = true;

	if (m->probed <= 0) {
		m->probed = now;
		vfm_mon_post_down(j, &ask);
		return false;
	}
	for (int r = 1; all && r < j->size; r++)
		all = m->peer[r].left || !m->peer[r].joined || r == m->dying || m->peer[r].told > m->probed;
	return all || now - m->probed > (m->dying >= 0 ? 0.3 : 1);
}

/* Returns the longest wait of the first rank whose longest wait exceeds its limit, or NULL. */
static const struct mon_act *find_overdue_wait(const struct vfm_hjob *j)
{
	for (int r = 0; r < j->size; r++) {
		const struct mon_act *a = vfm_longest_wait(j->mon->peer[r].act, j->mon->peer[r].n);

		if (a && a->waits > wait_limit(j, a))
			return a;
	}
	return NULL;
}

void vfm_detect_failures(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	const struct mon_act *a;
	double now = vfm_now();

	if (m->dying >= 0) {
		if (probe_all(j))
			vfm_declare_failed(j, m->dying, "died");
		return;
	}
	if (now - m->scanned < SCAN_S)
		return;
	m->scanned = now;
	vfm_mon_calls(j, STATE);
	if (find_overdue_wait(j) && !probe_all(j))
		return; /* decides once all have answered */
	a = find_overdue_wait(j);
	if (a)
		follow_wait_chain(j, a);
	else
		m->probed = 0;
}
