/* The state of the job: whether it has failed and why, waits, the calls of this rank, and the flight recorder. */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/host/host_impl.h"
#include "io/file.h"
#include "io/json.h"
#include "spec/model/dtype.h"

static const double CAUSE_S = 3.5; /* how long a rank that lost a connection waits for the monitors to find out why */

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

/* ---- the flight recorder, written out when the job fails ---- */

uint64_t vfm_record_begin(struct vfm_hjob *j, const char name[16], int kind, uint64_t number, uint64_t bytes, int peer)
{
	struct vfm_flight_record r = {
		.number = number, .bytes = bytes, .kind = kind, .peer = peer, .start = vfm_wall_time()};
	uint64_t which;

	memcpy(r.name, name, sizeof(r.name));
	pthread_mutex_lock(&j->rec_lock);
	which = j->n_rec++;
	j->rec[which % VFM_RECORDS] = r;
	pthread_mutex_unlock(&j->rec_lock);
	return which;
}

void vfm_record_end(struct vfm_hjob *j, uint64_t which)
{
	double now = vfm_wall_time();

	pthread_mutex_lock(&j->rec_lock);
	if (j->n_rec - which <= VFM_RECORDS)
		j->rec[which % VFM_RECORDS].end = now;
	pthread_mutex_unlock(&j->rec_lock);
}

static json_t *record_to_json(const struct vfm_flight_record *r)
{
	return json_pack("{s:i,s:s,s:I,s:s,s:I,s:o*,s:o,s:o}", "v", 1, "group", r->name, "number",
		(json_int_t)r->number, "kind", vfm_coll_name[r->kind], "bytes", (json_int_t)r->bytes, "peer",
		r->peer >= 0 ? json_integer(r->peer) : NULL, "start_s", vfm_json_real(r->start), "end_s",
		r->end > 0 ? vfm_json_real(r->end) : json_null());
}

/* Errors are ignored: the job already ends with another error. */
static void dump_records(struct vfm_hjob *j, const char *why)
{
	struct vfm_flight_record *rec;
	struct vfm_atomic a;
	uint64_t n, first;
	json_t *o;
	char *path;

	if (!j->recorder_dir)
		return;
	rec = vfm_malloc(sizeof(j->rec));
	pthread_mutex_lock(&j->rec_lock);
	memcpy(rec, j->rec, sizeof(j->rec));
	n = j->n_rec;
	pthread_mutex_unlock(&j->rec_lock);
	first = n > VFM_RECORDS ? n - VFM_RECORDS : 0;
	path = vfm_strfmt("%s/flight-%d.jsonl", j->recorder_dir, j->rank);
	if (vfm_atomic_open(&a, path, NULL) >= 0) {
		o = json_pack("{s:i,s:i,s:s,s:f,s:s}", "v", 1, "rank", j->rank, "host",
			atomic_load(&j->endpoint[j->rank])->host, "failed_s", vfm_wall_time(), "why", why);
		if (o)
			vfm_jsonl_write(a.f, o, NULL);
		json_decref(o);
		for (uint64_t i = first; i < n; i++) {
			o = record_to_json(&rec[i % VFM_RECORDS]);
			vfm_jsonl_write(a.f, o, NULL);
			json_decref(o);
		}
		vfm_atomic_commit(&a, NULL);
		vfm_atomic_abort(&a);
	}
	free(path);
	free(rec);
}

/* ---- failures ---- */

void vfm_hjob_set_failed(struct vfm_hjob *j, const char *why)
{
	pthread_mutex_lock(&j->fail_lock);
	if (!atomic_load(&j->failed)) {
		snprintf(j->why, sizeof(j->why), "%s", why);
		dump_records(j, j->why); /* first: a thread that sees the flag may end the process */
		atomic_store(&j->failed, true);
	}
	pthread_mutex_unlock(&j->fail_lock);
}

int vfm_hjob_fail(struct vfm_hjob *j, struct vfm_err *err, const char *fmt, ...)
{
	char why[VFM_WHY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (!j->monitor_runs) {
		vfm_hjob_set_failed(j, why);
		return vfm_hjob_check(j, err);
	}
	vfm_monitor_report(j, why);
	for (double until = vfm_now() + 3; !atomic_load(&j->failed) && vfm_now() < until;)
		poll(NULL, 0, 5);
	vfm_hjob_set_failed(j, why);
	return vfm_hjob_check(j, err);
}

static void format_signature(const struct vfm_call_sig *s, char *buf, size_t len)
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

int vfm_hjob_mismatch(struct vfm_hcomm *g, int peer, const struct vfm_call_sig *mine, const struct vfm_call_sig *theirs,
	struct vfm_err *err)
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

	vfm_wait_begin(g, peer); /* the monitors look for the cause of long waits, too */
	for (double until = vfm_now() + CAUSE_S; !atomic_load(&j->failed) && vfm_now() < until;)
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

/* ---- the calls of this rank ---- */

void vfm_activity_add(struct vfm_hjob *j, struct vfm_activity *a, const char *name, uint64_t id)
{
	a->name = name;
	a->id = id;
	pthread_mutex_lock(&j->lock);
	a->next = j->activities;
	j->activities = a;
	pthread_mutex_unlock(&j->lock);
}

void vfm_activity_begin(
	struct vfm_activity *a, enum vfm_coll_kind kind, uint64_t number, uint64_t bytes, int peer, double since)
{
	atomic_store(&a->waits, false);
	atomic_store(&a->kind, (int)kind);
	atomic_store(&a->number, number);
	atomic_store(&a->bytes, bytes);
	atomic_store(&a->peer, peer);
	atomic_store(&a->since, since);
	atomic_store(&a->busy, true);
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
