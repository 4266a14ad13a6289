/* The watch thread of device communicators: reports what each waits for, and aborts them all if the library or the job
 * has failed. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "comm/device/transport_impl.h"

enum { GRACE_S = 2 }; /* for the monitor to find the cause of an error of the library */

int vfm_transport_job_check(struct vfm_transport_job *j, struct vfm_err *err)
{
	if (j->hjob)
		return vfm_hjob_check(j->hjob, err);
	return atomic_load_explicit(&j->failed, memory_order_acquire) ? vfm_fail(err, VFM_EENV, "%s", j->why) : 0;
}

int vfm_transport_poison(struct vfm_transport_job *j, struct vfm_err *err)
{
	struct vfm_err why = {0};

	vfm_transport_job_check(j, &why);
	vfm_dev_poison(j->compute->dev, why.msg);
	return vfm_transport_job_check(j, err);
}

int vfm_transport_job_fail(struct vfm_transport_job *j, struct vfm_err *err, const char *fmt, ...)
{
	char why[VFM_WHY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (j->hjob)
		return vfm_hjob_fail(j->hjob, err, "%s", why);
	pthread_mutex_lock(&j->lock);
	if (!atomic_load(&j->failed)) {
		snprintf(j->why, sizeof(j->why), "%s", why);
		atomic_store(&j->failed, true);
	}
	pthread_mutex_unlock(&j->lock);
	return vfm_transport_job_check(j, err);
}

static bool event_has_passed(const struct vfm_transport_group *g, struct vfm_event *e)
{
	return g->job->compute->dev->t->event_passed(e);
}

void vfm_transport_retire(struct vfm_transport_group *g, int most)
{
	for (; g->done < g->begun && most > 0; most--) {
		struct vfm_transport_call *k = g->ring[g->done % g->cap];

		if (k->state == VFM_CALL_BEGUN || (k->state == VFM_CALL_ENQUEUED && !event_has_passed(g, k->end)))
			break;
		if (k->state == VFM_CALL_ENQUEUED && g->job->hjob)
			vfm_record_end(g->job->hjob, k->record);
		g->done++;
	}
	if (g->done == g->begun) {
		atomic_store(&g->act.waits, false);
		atomic_store(&g->act.busy, false);
	}
}

/* Shows the monitor the oldest call, which waits once the stream has reached it. */
static void update_activity(struct vfm_transport_group *g)
{
	struct vfm_transport_call *k;

	vfm_transport_retire(g, INT32_MAX);
	if (g->done == g->begun)
		return;
	k = g->ring[g->done % g->cap];
	if (!k->shown) {
		k->shown = true;
		vfm_activity_begin(&g->act, k->kind, k->number, k->bytes, k->peer, k->start);
	}
	if (!atomic_load(&g->act.waits) && event_has_passed(g, k->begin)) {
		atomic_store(&g->act.wait_since, vfm_now());
		atomic_store(&g->act.waits, true);
	}
}

static int describe_call(const struct vfm_transport_group *g, char *buf, size_t len)
{
	const struct vfm_transport_call *k = g->done < g->begun ? g->ring[g->done % g->cap] : NULL;
	char a[96];

	if (g->job->hjob)
		vfm_rank_str(g->job->hjob, g->world[g->c.rank], a, sizeof(a));
	else
		snprintf(a, sizeof(a), "rank %d", g->c.rank);
	return k ? snprintf(buf, len, "%s in %s number %llu of '%s'", a, vfm_coll_name[k->kind],
			   (unsigned long long)k->number, g->c.name)
		 : snprintf(buf, len, "%s in '%s'", a, g->c.name);
}

/* Describes an error of the library, or a wait beyond the limit that the monitor does not explain. */
static bool find_trouble(struct vfm_transport_group *g, bool *library, char *why, size_t len)
{
	struct vfm_err err = {0};
	char at[192];
	double t;

	*library = g->job->transport->state(g->w, &err) < 0;
	describe_call(g, at, sizeof(at));
	if (*library) {
		snprintf(why, len, "%s: %.300s", at, err.msg);
		return true;
	}
	t = atomic_load(&g->act.busy) && atomic_load(&g->act.waits) ? vfm_now() - atomic_load(&g->act.wait_since) : 0;
	snprintf(why, len, "%s has waited for the other ranks for %.1f s", at, t);
	return t > (g->job->hjob ? 1.5 * g->job->timeout + 5 : g->job->timeout);
}

static void abort_transports(struct vfm_transport_job *j)
{
	struct vfm_transport_comm **all;
	int n = 0;

	/* poisons the device first: a wait that the abort ends must see it */
	vfm_transport_poison(j, NULL);
	pthread_mutex_lock(&j->lock);
	for (struct vfm_transport_group *g = j->groups; g; g = g->next)
		n++;
	all = vfm_calloc((size_t)n + 1, sizeof(*all));
	n = 0;
	for (struct vfm_transport_group *g = j->groups; g; g = g->next)
		all[n++] = g->w;
	j->transport->abort(all, n);
	j->aborted = true;
	pthread_mutex_unlock(&j->lock);
	free(all);
}

static void *run_watch(void *arg)
{
	struct vfm_transport_job *j = arg;
	double since = 0;

	for (;;) {
		struct timespec until = vfm_time_after(CLOCK_REALTIME, VFM_POLL_MS / 1000.0);
		char why[VFM_WHY_MAX];
		bool trouble = false, library = false;

		pthread_mutex_lock(&j->lock);
		if (!j->stop)
			pthread_cond_timedwait(&j->wake, &j->lock, &until);
		if (j->stop)
			break;
		for (struct vfm_transport_group *g = j->groups; g && !j->aborted; g = g->next) {
			update_activity(g);
			if (!trouble)
				trouble = find_trouble(g, &library, why, sizeof(why));
		}
		pthread_mutex_unlock(&j->lock);
		if (j->aborted)
			continue;
		if (!trouble)
			since = 0;
		else if (since <= 0)
			since = vfm_now();
		if (trouble && vfm_transport_job_check(j, NULL) >= 0 && (!library || vfm_now() - since > GRACE_S))
			vfm_transport_job_fail(j, NULL, "%s", why);
		if (vfm_transport_job_check(j, NULL) < 0)
			abort_transports(j);
	}
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

int vfm_transport_watch_start(struct vfm_transport_job *j, struct vfm_err *err)
{
	int rc = vfm_thread_start(&j->watch, run_watch, j);

	return rc ? vfm_fail(err, VFM_EENV, "cannot start the watch thread: %s", strerror(rc)) : 0;
}

void vfm_transport_watch_stop(struct vfm_transport_job *j)
{
	pthread_mutex_lock(&j->lock);
	j->stop = true;
	pthread_cond_signal(&j->wake);
	pthread_mutex_unlock(&j->lock);
	pthread_join(j->watch, NULL);
}
