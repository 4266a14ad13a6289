/* What rank 0 makes of the beats of all: a connection that ended without a good-bye is a death; beats that ceased, a
 * stop; a wait beyond the time-out is followed from rank to rank to the one that waits for nobody. */
#include "comm/monitor.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

static double silent_seconds(struct vfm_hjob *j, int r)
{
	return r == j->rank ? 0 : vfm_now() - j->mon->peer[r].heard;
}

/* The longest wait of any rank for r. */
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
	const struct mon_msg *m = &j->mon->peer[r].last;

	if (!m->n)
		snprintf(buf, len, "in no collective when last heard");
	else
		snprintf(buf, len, "last heard in %s number %llu of '%s'", vfm_coll_name[m->act[0].kind],
			(unsigned long long)m->act[0].number, m->act[0].name);
}

/* "rank 3 (node2) died (last heard in …); rank 0 (node0) waits for it in all_reduce number 812 of 'tp' since 4.1 s" */
void vfm_declare_failed(struct vfm_hjob *j, int r, const char *reason)
{
	char who[96], waiter[96], did[160], why[VFM_WHY_MAX];
	const struct mon_act *a;
	int q = 0, n;

	vfm_mon_heartbeat(j, &j->mon->peer[j->rank].last);
	a = find_longest_waiter(j, r, &q);
	describe_last_call(j, r, did, sizeof(did));
	n = snprintf(why, sizeof(why), "%s %s (%s)", vfm_rank_str(j, r, who, sizeof(who)), reason, did);
	if (a && n > 0 && (size_t)n < sizeof(why))
		snprintf(why + n, sizeof(why) - (size_t)n, "; %s waits for it in %s number %llu of '%s' since %.1f s",
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
		snprintf(reason, len, "never came");
	else if (p->left)
		snprintf(reason, len, "has ended in order, too early");
	else if (silent_seconds(j, r) > 2.5 || (j->mon->asked > 0 && p->heard < j->mon->asked))
		snprintf(reason, len, "does not answer since %.1f s: it is stopped, or its node is gone",
			silent_seconds(j, r));
	else
		return false;
	return true;
}

/* From a rank that waits too long to the one that everybody waits for in the end. */
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
			snprintf(reason, sizeof(reason), "waits in a circle: it waits for %d, which waits for it",
				a->peer);
			break;
		}
		seen[r] = 1;
		b = find_activity(&j->mon->peer[r].last, a->group);
		if (b && b->waits < 0 && b->number == at->number) {
			snprintf(reason, sizeof(reason), "does not get on, though it is in the same call since %.1f s",
				b->age);
			break;
		}
		if (!b || b->waits < 0)
			b = find_longest_wait(&j->mon->peer[r].last);
		if (!b || (b->group != at->group && b->waits < j->timeout / 4)) {
			snprintf(reason, sizeof(reason), "hangs: it does not come to %s number %llu of '%s'",
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

/* All are asked for their state; true once they have answered or had their time. */
static bool probe_all(struct vfm_hjob *j)
{
	struct mon_msg ask = {.magic = MSG_MAGIC, .type = PROBE};
	struct vfm_mon *m = j->mon;
	double now = vfm_now();
	bool all = true;

	if (m->asked <= 0) {
		m->asked = now;
		vfm_mon_post(j, &ask);
		return false;
	}
	for (int r = 1; r < j->size; r++)
		all &= m->peer[r].left || m->peer[r].dead || !m->peer[r].joined || m->peer[r].heard > m->asked;
	return all || now - m->asked > (m->dying >= 0 ? 0.3 : 1);
}

void vfm_detect_failures(struct vfm_hjob *j)
{
	struct vfm_mon *m = j->mon;
	const struct mon_act *late = NULL;
	char reason[160];

	if (m->dying >= 0) {
		if (probe_all(j))
			vfm_declare_failed(j, m->dying, "died");
		return;
	}
	for (int r = 1; r < j->size; r++)
		if (m->peer[r].joined && !m->peer[r].left && silent_seconds(j, r) > j->beat_timeout &&
			describe_absence(j, r, reason, sizeof(reason))) {
			vfm_declare_failed(j, r, reason);
			return;
		}
	vfm_mon_heartbeat(j, &m->peer[0].last);
	for (int r = 0; r < j->size && !late; r++)
		for (uint32_t i = 0; i < m->peer[r].last.n && !late; i++) {
			const struct mon_act *a = &m->peer[r].last.act[i];
			bool left = a->peer >= 0 && a->peer < j->size && m->peer[a->peer].left;

			if (a->waits > (left && j->timeout > 2 ? 2 : j->timeout))
				late = a;
		}
	if (!late)
		m->asked = 0;
	else if (probe_all(j)) {
		for (int r = 0; r < j->size; r++) { /* still, now that all have answered? */
			const struct mon_act *a = find_longest_wait(&m->peer[r].last);

			if (a &&
				a->waits > (a->peer >= 0 && a->peer < j->size && m->peer[a->peer].left && j->timeout > 2
							   ? 2
							   : j->timeout)) {
				follow_wait_chain(j, a);
				return;
			}
		}
		m->asked = 0;
	}
}

/* The others watch rank 0 only. */
void vfm_detect_rank0_failure(struct vfm_hjob *j)
{
	struct mon_peer *p = &j->mon->peer[0];
	char reason[160];

	if (p->joined && !p->left && silent_seconds(j, 0) > j->beat_timeout + 0.5 &&
		describe_absence(j, 0, reason, sizeof(reason)))
		vfm_declare_failed(j, 0, reason);
}
