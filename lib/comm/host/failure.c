/* Fails the job: in this rank and below it, in words that name the rank that failed. */
#include <stdio.h>

#include "comm/host/monitor_impl.h"

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
