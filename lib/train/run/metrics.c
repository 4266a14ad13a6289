/* metrics.c - appends records of steps, and cuts files back to the step of a resume. */
#include "train/run/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"

static void join_stats(struct vfm_rank_stats *s, struct vfm_rank_stats next)
{
	double peak = s->mem_peak_bytes > next.mem_peak_bytes ? s->mem_peak_bytes : next.mem_peak_bytes;

	for (int i = 0; i < VFM_STATS; i++)
		*vfm_stat_at(s, i) += *vfm_stat_at(&next, i);
	s->mem_peak_bytes = peak;
}

void vfm_step_record_add(struct vfm_step_record *r, const struct vfm_step_record *next)
{
	struct vfm_step_record sum = *next;
	double a = (double)r->s.tokens, b = (double)next->s.tokens;

	sum.s = r->s;
	sum.s.tokens += next->s.tokens;
	sum.s.samples += next->s.samples;
	sum.s.flops += next->s.flops;
	sum.s.loss = (a * r->s.loss + b * next->s.loss) / (a + b);
	sum.s.mse = (a * r->s.mse + b * next->s.mse) / (a + b);
	join_stats(&sum.s.rank, next->s.rank);
	sum.update[0] = r->update[0];
	sum.update[1] = next->update[0];
	sum.updates = 2;
	sum.skipped = next->skipped ? next->skipped : r->skipped;
	*r = sum;
}

/* Adds a number as "lr", of one of two networks as "high_lr". */
static void add_number(json_t *o, const char *network, const char *key, double x)
{
	char name[32];

	snprintf(name, sizeof(name), "%s%s%s", network ? network : "", network ? "_" : "", key);
	json_object_set_new(o, name, vfm_json_real(x));
}

static void add_update(json_t *o, const struct vfm_step_update *u)
{
	if (u->network)
		add_number(o, u->network, "loss", u->loss);
	add_number(o, u->network, "grad_norm", u->grad_norm);
	add_number(o, u->network, "lr", u->lr);
}

json_t *vfm_step_json(const struct vfm_step_record *r)
{
	double step_s = r->s.rank.step_s, tflops = r->s.flops / r->ranks / step_s / 1e12;
	struct vfm_rank_stats stats = r->s.rank;
	json_t *mse = r->weighted ? vfm_json_real(r->s.mse) : NULL;
	json_t *mfu = r->peak_tflops > 0 ? vfm_json_real(tflops / r->peak_tflops) : json_null();
	json_t *o = json_pack("{s:i, s:I, s:o, s:o*}", "v", 1, "step", (json_int_t)r->step, "loss",
		vfm_json_real(r->s.loss), "mse", mse);

	for (int i = 0; i < r->updates; i++)
		add_update(o, &r->update[i]);
	json_object_set_new(o, "tokens", json_integer(r->s.tokens));
	json_object_set_new(o, "samples", json_integer(r->s.samples));
	json_object_set_new(o, "tok_s", vfm_json_real((double)r->s.tokens / step_s));
	json_object_set_new(o, "tflops", vfm_json_real(tflops));
	json_object_set_new(o, "mfu", mfu);
	for (int i = 0; i < VFM_STATS; i++)
		if (vfm_stats[i].key)
			json_object_set_new(
				o, vfm_stats[i].key, vfm_json_real(*vfm_stat_at(&stats, i) * vfm_stats[i].scale));
	if (r->held_out.levels) {
		json_t *levels = json_array();

		for (int i = 0; i < r->held_out.levels; i++)
			json_array_append_new(levels, vfm_json_real(r->held_out.level[i]));
		json_object_set_new(o, "held_out_loss", vfm_json_real(r->held_out.mean));
		json_object_set_new(o, "held_out_levels", levels);
	}
	if (r->previews[0])
		json_object_set_new(o, "previews", json_string(r->previews));
	if (r->skipped)
		json_object_set_new(o, "skipped", json_integer(r->skipped));
	return o;
}

/* Steps from 1 whose records a file should have. */
struct found_steps {
	int64_t next, missing, first_missing;
};

static void find_step(struct found_steps *f, int64_t step)
{
	if (step > f->next) {
		f->first_missing = f->missing ? f->first_missing : f->next;
		f->missing += step - f->next;
	}
	if (step >= f->next)
		f->next = step + 1;
}

/* Sets *keep to the offset of the first line after step steps_done.  Also cuts a last line that is damaged or without
 * newline, which a killed process or a crash left. */
static int keep_until(const char *path, int64_t steps_done, off_t *keep, struct found_steps *found, struct vfm_err *err)
{
	struct vfm_jsonl r = {0};
	json_t *o;
	int rc;

	*keep = 0;
	if (access(path, F_OK) != 0)
		return 0;
	TRY(vfm_jsonl_open(&r, path, err));
	while ((rc = vfm_jsonl_next(&r, &o, err)) == 1 || rc == VFM_EINPUT) {
		int64_t step = json_integer_value(json_object_get(o, "step"));
		off_t end = (off_t)ftello(r.f);
		char last = 0;

		json_decref(o);
		if (rc == VFM_EINPUT)
			continue;
		if (step > steps_done || pread(fileno(r.f), &last, 1, end - 1) != 1 || last != '\n')
			break;
		find_step(found, step);
		*keep = end;
	}
	vfm_jsonl_close(&r);
	return rc == VFM_EENV ? rc : 0;
}

int vfm_metrics_open(struct vfm_metrics *m, const char *dir, int64_t steps_done, struct vfm_err *err)
{
	struct found_steps found = {.next = 1};
	off_t keep;
	int rc;

	*m = (struct vfm_metrics){.path = vfm_strfmt("%s/metrics.jsonl", dir), .t_flush = vfm_now()};
	TRY_OUT(keep_until(m->path, steps_done, &keep, &found, err));
	find_step(&found, steps_done + 1);
	if (found.missing)
		vfm_warn("'%s' lacks the records of %lld of the %lld steps before this start, the first of step %lld",
			m->path, (long long)found.missing, (long long)steps_done, (long long)found.first_missing);
	m->f = fopen(m->path, "a");
	if (!m->f || ftruncate(fileno(m->f), keep) != 0) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", m->path);
		goto out;
	}
	rc = vfm_tfevents_open(&m->events, dir, steps_done + 1, err);
out:
	if (rc < 0)
		vfm_metrics_close(m);
	return rc;
}

static int add_event(struct vfm_metrics *m, int64_t step, const char *key, const json_t *record, struct vfm_err *err)
{
	const json_t *v = json_object_get(record, key);

	return json_is_number(v) ? vfm_tfevents_scalar(&m->events, step, key, json_number_value(v), err) : 0;
}

/* Writes held_out/loss and held_out/level_00, ... */
static int add_held_out(struct vfm_metrics *m, const struct vfm_step_record *r, struct vfm_err *err)
{
	char tag[32];

	if (!r->held_out.levels)
		return 0;
	TRY(vfm_tfevents_scalar(&m->events, r->step, "held_out/loss", r->held_out.mean, err));
	for (int i = 0; i < r->held_out.levels; i++) {
		snprintf(tag, sizeof(tag), "held_out/level_%02d", i);
		TRY(vfm_tfevents_scalar(&m->events, r->step, tag, r->held_out.level[i], err));
	}
	return 0;
}

/* VFM_EENV: the file cannot be written, or RUN was moved or removed. */
static int flush_buffers(struct vfm_metrics *m, struct vfm_err *err)
{
	m->t_flush = vfm_now();
	if (fflush(m->f))
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", m->path);
	if (!vfm_is_same_file(fileno(m->f), m->path))
		return vfm_fail(err, VFM_EENV, "'%s' was removed or replaced during the run", m->path);
	return vfm_tfevents_flush(&m->events, err);
}

int vfm_metrics_add(struct vfm_metrics *m, const struct vfm_step_record *r, const json_t *record, struct vfm_err *err)
{
	static const char *const keys[] = {"loss", "mse", "grad_norm", "lr", "high_loss", "high_grad_norm", "high_lr",
		"low_loss", "low_grad_norm", "low_lr", "tok_s", "tflops"};

	TRY(vfm_jsonl_write(m->f, record, err));
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		TRY(add_event(m, r->step, keys[i], record, err));
	for (int i = 0; i < VFM_STATS; i++)
		if (vfm_stats[i].key)
			TRY(add_event(m, r->step, vfm_stats[i].key, record, err));
	TRY(add_held_out(m, r, err));
	return vfm_now() - m->t_flush < 1 ? 0 : flush_buffers(m, err);
}

int vfm_metrics_flush(struct vfm_metrics *m, struct vfm_err *err)
{
	TRY(flush_buffers(m, err));
	if ((fdatasync(fileno(m->f)) != 0 || fdatasync(fileno(m->events.f)) != 0) && errno != EINVAL)
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", m->path);
	return 0;
}

void vfm_metrics_close(struct vfm_metrics *m)
{
	if (m->f)
		fclose(m->f);
	vfm_tfevents_close(&m->events);
	free(m->path);
	*m = (struct vfm_metrics){0};
}
