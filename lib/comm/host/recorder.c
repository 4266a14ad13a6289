/* The flight recorder: the last collectives of this rank, written out when the job fails. */
#include "comm/host/host_impl.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"

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
	json_t *o = json_object();

	json_object_set_new(o, "v", json_integer(1));
	json_object_set_new(o, "group", json_string(r->name));
	json_object_set_new(o, "number", json_integer((json_int_t)r->number));
	json_object_set_new(o, "kind", json_string(vfm_coll_name[r->kind]));
	json_object_set_new(o, "bytes", json_integer((json_int_t)r->bytes));
	if (r->peer >= 0)
		json_object_set_new(o, "peer", json_integer(r->peer));
	json_object_set_new(o, "start_s", vfm_json_real(r->start));
	json_object_set_new(o, "end_s", r->end > 0 ? vfm_json_real(r->end) : json_null());
	return o;
}

/* Errors are ignored: the job already ends with another error. */
void vfm_record_dump(struct vfm_hjob *j, const char *why)
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
