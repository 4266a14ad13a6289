/* The failure detector of rank 0, which receives the heartbeats of all ranks.  A connection that closes without a
 * goodbye means that the rank died.  Heartbeats missing for beat_timeout mean that the rank is stopped or its host is
 * down; its own thread sends them, also while the rank computes.  A wait beyond the time-out is followed from rank to
 * rank to the one that does not wait. */
#include "comm/monitor.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

static double silent_seconds(struct vfm_hjob *j, int r)
{
	return r == j->rank ? 0 : vfm_now() - j->mon->peer[r].heard;
}

/* Returns the longest wait of any rank for r, and that rank in *who; NULL if none waits for r. */
static const struct mon_act *find_longest_waiter(struct vfm_hjob *j, int r, int *who)
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

static void describe_last_call(struct vfm_hjob *j, int r, char *buf, size_t len)
{
	const struct mon_peer *p = &j->mon->peer[r];
	const struct mon_msg *m = &p->last;

	*buf = '\0';
	if (r != j->rank && !p->joined)
		return;
	if (!m->n)
		snprintf(buf, len, " (in no collective when last heard)");
	else
		snprintf(buf, len, " (last heard in %s number %llu of '%s')", vfm_coll_name[m->act[0].kind],
			(unsigned long long)m->act[0].number, m->act[0].name);
}

/* "rank 3 (node2) died (last heard in …); rank 0 (node0) has waited for it in all_reduce number 812 of 'tp' for 4.1 s"
 */
void vfm_declare_failed(struct vfm_hjob *j, int r, const char *reason)
{
	char who[96], waiter[96], did[160], why[VFM_WHY_MAX];
	const struct mon_act *a;
	int q = 0, n;

	vfm_mon_heartbeat(j, &j->mon->peer[j->rank].last);
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

static const struct mon_act *find_activity(const struct mon_msg *m, uint64_t group)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (m->act[i].group == group)
			return &m->act[i];
	return NULL;
}

static const struct mon_act *find_longest_wait(const struct mon_msg *m)
{
	const struct mon_act *best = NULL;

	for (uint32_t i = 0; i < m->n; i++)
		if (m->act[i].waits >= 0 && (!best || m->act[i].waits > best->waits))
			best = &m->act[i];
	return best;
}

static bool describe_absence(struct vfm_hjob *j, int r, char *reason, size_t len)
{
	const struct mon_peer *p = &j->mon->peer[r];

	if (r == j->rank)
		return false;
	if (!p->joined)
		snprintf(reason, len, "never connected within %.1f s: it is stopped, or cannot be reached",
			silent_seconds(j, r));
	else if (p->left)
		snprintf(reason, len, "ended normally, but too early");
	else if (silent_seconds(j, r) > 2.5 || (j->mon->probed > 0 && p->heard < j->mon->probed))
		snprintf(reason, len, "has not answered for %.1f s: it is stopped, or its node is down",
			silent_seconds(j, r));
	else
		return false;
	return true;
}

/* Follows a wait beyond the time-out from rank to rank, and declares the last rank of that chain failed. */
static void follow_wait_chain(struct vfm_hjob *j, const struct mon_act *a)
{
	char *seen = vfm_calloc((size_t)j->size, 1), reason[200];
	const struct mon_act *first = a;
	int r = a->peer;

	for (;;) {
		const struct mon_act *b, *at = a;

		if (r < 0 || r >= j->size || describe_absence(j, r, reason, sizeof(reason)))
			break;
		if (seen[r]) {
			snprintf(reason, sizeof(reason), "is in a deadlock: it waits for rank %d, which waits for it",
				a->peer);
			break;
		}
		seen[r] = 1;
		b = find_activity(&j->mon->peer[r].last, a->group);
		if (b && b->waits < 0 && b->number == at->number) {
			snprintf(reason, sizeof(reason),
				"makes no progress, although it has been in the same call for %.1f s", b->age);
			break;
		}
		if (!b || b->waits < 0)
			b = find_longest_wait(&j->mon->peer[r].last);
		if (!b || (b->group != at->group && b->waits < j->timeout / 4)) {
			snprintf(reason, sizeof(reason), "hangs: it has not reached %s number %llu of '%s'",
				vfm_coll_name[at->kind], (unsigned long long)at->number, at->name);
			break;
		}
		a = b;
		r = b->peer;
	}
	if (r < 0 || r >= j->size)
		r = first->peer;
	free(seen);
	vfm_declare_failed(j, r, reason);
}

/* Probes all ranks for their state; returns true once all have answered or the time for that is over. */
static bool probe_all(struct vfm_hjob *j)
{
	struct mon_msg ask = {.magic = MSG_MAGIC, .type = PROBE};
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	bool all = true;

	if (m->probed <= 0) {
		m->probed = now;
		vfm_mon_post(j, &ask);
		return false;
	}
	for (int r = 1; r < j->size; r++)
		all &= m->peer[r].left || m->peer[r].dead || !m->peer[r].joined || m->peer[r].heard > m->probed;
	return all || now - m->probed > (m->dying >= 0 ? 0.3 : 1);
}

/* Returns how long a call may wait: two seconds for a rank that has ended, else the time-out. */
static double wait_limit(const struct vfm_hjob *j, const struct mon_act *a)
{
	bool left = a->peer >= 0 && a->peer < j->size && j->mon->peer[a->peer].left;

	return left && j->timeout > 2 ? 2 : j->timeout;
}

/* Returns the longest wait of the first rank whose longest wait exceeds its limit, or NULL. */
static const struct mon_act *find_overdue_wait(const struct vfm_hjob *j)
{
	for (int r = 0; r < j->size; r++) {
		const struct mon_act *a = find_longest_wait(&j->mon->peer[r].last);

		if (a && a->waits > wait_limit(j, a))
			return a;
	}
	return NULL;
}

void vfm_detect_failures(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	const struct mon_act *a;
	char reason[160];

	if (m->dying >= 0) {
		if (probe_all(j))
			vfm_declare_failed(j, m->dying, "died");
		return;
	}
	for (int r = 1; r < j->size; r++)
		if (!m->peer[r].left && silent_seconds(j, r) > j->beat_timeout &&
			describe_absence(j, r, reason, sizeof(reason))) {
			vfm_declare_failed(j, r, reason);
			return;
		}
	vfm_mon_heartbeat(j, &m->peer[0].last);
	if (find_overdue_wait(j) && !probe_all(j))
		return; /* decides once all have answered */
	a = find_overdue_wait(j);
	if (a)
		follow_wait_chain(j, a);
	else
		m->probed = 0;
}

void vfm_detect_rank0_failure(struct vfm_hjob *j)
{
	struct mon_peer *p = &j->mon->peer[0];
	char reason[160];

	if (p->joined && !p->left && silent_seconds(j, 0) > j->beat_timeout + 0.5 &&
		describe_absence(j, 0, reason, sizeof(reason)))
		vfm_declare_failed(j, 0, reason);
}
