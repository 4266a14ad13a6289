/* state.c - copies owned slices to the host for saving, and loads slices of any layout. */
#include "train/step/state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/save.h"
#include "net/nn/scales.h"
#include "train/job/job.h"

/* The parameters that a part holds. */
enum scope { WHOLE_MODEL, BASE_MODEL /* without adapters */, TRAINED /* without frozen parameters */ };

struct state_part {
	const char *name;
	const struct vfm_array *own; /* NULL: the master weights */
	enum scope scope;
	bool partial; /* loading: elements that the checkpoint lacks keep their values */
};

enum { PARTS_MAX = 4 };

static bool in_part(const struct state_part *part, const struct vfm_param *p)
{
	return part->scope == BASE_MODEL ? !p->adapter : part->scope == WHOLE_MODEL || !p->frozen;
}

/* Returns the number of parts. */
static int parts_of(struct vfm_trainer *tr, struct state_part p[PARTS_MAX])
{
	struct vfm_optim *o = vfm_trainer_optim(tr);

	/* The base model of adapters is not saved again. */
	p[0] = (struct state_part){"model", NULL, o->ps->tuning.rank > 0 ? TRAINED : WHOLE_MODEL, false};
	p[1] = (struct state_part){"optim/m", &o->m, TRAINED, false};
	p[2] = (struct state_part){"optim/v", &o->v, TRAINED, false};
	p[3] = (struct state_part){"ema", &o->ema, TRAINED, false};
	return o->ema.data ? 4 : 3;
}

/* ---- saving ---- */

/* The first agreement of the save makes a failed copy of one rank a failure of all ranks. */
static int agree_copied(void *ctx, int rc, struct vfm_err *err)
{
	const struct vfm_saver *s = ctx;

	if (rc >= 0 && s->rc < 0) {
		rc = s->rc;
		*err = s->err;
	}
	return vfm_agree(s->c, rc, err);
}

static int gather_saved(void *ctx, const char *mine, char ***all, struct vfm_err *err)
{
	struct vfm_comm *c = ((const struct vfm_saver *)ctx)->c;
	size_t *off;
	char *blob;

	*all = NULL;
	TRY(vfm_comm_gather_bytes(c, mine, strlen(mine) + 1, &blob, &off, err));
	if (c->rank == 0) {
		*all = vfm_calloc((size_t)c->size, sizeof(char *));
		for (int r = 0; r < c->size; r++)
			(*all)[r] = vfm_strdup(blob + off[r]);
	}
	free(blob);
	free(off);
	return 0;
}

/* Returns the number of elements of a part that this rank writes. */
static int64_t count_part(const struct vfm_params *ps, const struct state_part *part)
{
	int64_t n = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_owned o = vfm_param_owned(ps, ps->p[i]);

		n += o.writes && in_part(part, ps->p[i]) ? o.b - o.a : 0;
	}
	return n;
}

/* Adds the elements of a part that this rank writes, staged in pinned memory `host`.  Enqueues the copies of f32 arrays
 * on `copies`; the compute stream converts the others. */
static int add_part(struct vfm_ckpt_writer *w, struct vfm_params *ps, struct vfm_stream *copies,
	const struct state_part *part, float *host, struct vfm_err *err)
{
	char name[160];

	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		struct vfm_owned o = vfm_param_owned(ps, p);
		struct vfm_slice slice = {&p->part, o.a, o.b};
		const float *at;

		if (!o.writes || !in_part(part, p))
			continue;
		snprintf(name, sizeof(name), "%s/%s", part->name, p->name);
		at = vfm_param_at(ps, part->own, p);
		if (at)
			TRY(copies->dev->t->to_host(copies, host, at, (size_t)(o.b - o.a) * sizeof(float), err));
		else
			TRY(vfm_param_get(ps, part->own, p, host, err));
		TRY(vfm_ckpt_add(w, name, VFM_F32, p->d.ndim, p->d.shape, &slice, host, err));
		host += o.b - o.a;
	}
	return 0;
}

/* Adds the fp8 amax histories, staged in n_past elements of pinned memory `host`. */
static int add_scales(struct vfm_ckpt_writer *w, const struct vfm_scales *s, struct vfm_stream *copies, float *host,
	struct vfm_err *err)
{
	int64_t shape[2] = {VFM_FP8_TENSORS, s->window};
	char name[160];

	TRY(copies->dev->t->to_host(copies, host, s->past, (size_t)s->n_past * sizeof(float), err));
	for (int64_t i = 0; i < s->n; i++) {
		snprintf(name, sizeof(name), "fp8/%s", s->p[i]->name);
		TRY(vfm_ckpt_add(w, name, VFM_F32, 2, shape, NULL, host + i * VFM_FP8_TENSORS * s->window, err));
	}
	return 0;
}

static int saver_reserve(struct vfm_saver *s, struct vfm_dev *d, size_t bytes, struct vfm_err *err)
{
	s->dev = d;
	if (!s->stream)
		s->stream = d->t->stream_new(d, true, err);
	if (!s->copied)
		s->copied = d->t->event_new(d, err);
	if (!s->stream || !s->copied)
		return VFM_EENV;
	if (s->host && s->bytes == bytes)
		return 0;
	if (s->host)
		d->t->free_host(d, s->host, s->bytes);
	s->bytes = bytes;
	s->host = d->t->alloc_host(d, bytes, "the copy of the state that is saved", err);
	return s->host ? 0 : VFM_EENV;
}

/* Enqueues the copies on the copy stream.  They overlap with the next forward and backward; only the next update waits
 * for them.  Ops on the compute stream convert state that is not f32. */
static int copy_state(struct vfm_saver *s, struct vfm_trainer *tr, struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	int64_t n = 0;
	const struct vfm_scales *scales = ps->scales && ps->scales->writes && ps->scales->n ? ps->scales : NULL;
	struct state_part part[PARTS_MAX];
	int parts = parts_of(tr, part);
	float *host;

	for (int i = 0; i < parts; i++)
		n += count_part(ps, &part[i]);
	TRY(saver_reserve(s, ps->stream->dev, (size_t)(n + (scales ? scales->n_past : 0)) * sizeof(float) + 64, err));
	TRY(vfm_params_wait(ps, err));
	TRY(vfm_stream_follow(s->stream, ps->stream, &s->ready, err));
	host = s->host;
	for (int i = 0; i < parts; i++) {
		TRY(add_part(w, ps, s->stream, &part[i], host, err));
		host += count_part(ps, &part[i]);
	}
	if (scales)
		TRY(add_scales(w, scales, s->stream, host, err));
	TRY(vfm_stream_follow(s->stream, ps->stream, &s->ready, err)); /* after the conversions */
	TRY(s->dev->t->event_record(s->copied, s->stream, err));
	vfm_trainer_hold(tr, s->copied);
	return 0;
}

int vfm_saver_start(struct vfm_saver *s, struct vfm_trainer *tr, const struct vfm_ckpt_spec *given, struct vfm_err *err)
{
	const struct vfm_mesh *mesh = vfm_trainer_params(tr)->mesh;
	struct vfm_ckpt_spec spec = *given;
	int rc;

	TRY(vfm_saver_wait(s, err));
	s->t_start = vfm_now();
	s->tr = tr;
	s->c = mesh->save;
	s->comm = (struct vfm_ckpt_comm){.ctx = s, .gather = gather_saved, .agree = agree_copied};
	spec.rank = mesh->rank;
	spec.size = mesh->world_size;
	spec.comm = mesh->world_size > 1 ? &s->comm : NULL;
	s->w = vfm_ckpt_begin(&spec);
	/* A failed rank must not leave the others waiting. */
	rc = vfm_agree(mesh->save, copy_state(s, tr, s->w, err), err);
	if (rc < 0) {
		vfm_ckpt_abandon(s->w);
		s->w = NULL;
		if (s->stream)
			s->dev->t->stream_sync(s->stream, NULL); /* finish copies already enqueued */
		vfm_trainer_hold(tr, NULL);
	}
	s->stall_s = vfm_now() - s->t_start;
	return rc;
}

/* Waits for the copy, whose result is s->rc, and starts the thread that writes the files.  All ranks call this, not at
 * the same time. */
static int begin_files(struct vfm_saver *s, struct vfm_err *err)
{
	struct vfm_ckpt_writer *w = s->w;

	s->rc = s->dev->t->event_sync(s->copied, &s->err);
	s->copy_s = vfm_now() - s->t_start;
	vfm_trainer_hold(s->tr, NULL);
	s->w = NULL;
	if (s->rc == 0 || s->c->size > 1)
		return vfm_ckpt_save_async(w, &s->job, err);
	vfm_ckpt_abandon(w);
	if (err)
		*err = s->err;
	return s->rc;
}

int vfm_saver_poll(struct vfm_saver *s, struct vfm_err *err)
{
	if (s->w && s->dev->t->event_passed(s->copied))
		TRY(begin_files(s, err));
	return s->job && vfm_ckpt_done(s->job) ? vfm_saver_wait(s, err) : 0;
}

int vfm_saver_wait(struct vfm_saver *s, struct vfm_err *err)
{
	int rc;

	if (s->w)
		TRY(begin_files(s, err));
	if (!s->job)
		return 0;
	rc = vfm_ckpt_wait(s->job, err);
	s->job = NULL;
	return rc;
}

void vfm_saver_release(struct vfm_saver *s)
{
	const struct vfm_dev_table *t;

	if (!s->dev)
		return; /* no save was started */
	t = s->dev->t;
	vfm_saver_wait(s, NULL);
	if (s->stream) {
		t->stream_sync(s->stream, NULL);
		t->stream_free(s->stream);
	}
	if (s->ready)
		t->event_free(s->ready);
	if (s->copied)
		t->event_free(s->copied);
	if (s->host)
		t->free_host(s->dev, s->host, s->bytes);
	*s = (struct vfm_saver){0};
}

/* ---- loading ---- */

/* Double-buffered upload through two chunks of pinned memory: the host reads one chunk from disk while the other is
 * copied to the device. */
struct upload {
	struct vfm_params *ps;
	float *host;               /* [2 * n] */
	int64_t n, at;             /* elements per chunk; elements used in the current chunk */
	int now;                   /* current chunk */
	struct vfm_event *gone[2]; /* recorded after the copy of each chunk */
	int rc;                    /* < 0: the upload cannot be used; ranks that load together still call load_part */
};

enum { UPLOAD_CHUNK = 8 << 20 }; /* elements per chunk, unless a parameter is larger */

static void upload_release(struct upload *g)
{
	const struct vfm_dev_table *t = g->ps->stream->dev->t;

	for (int i = 0; i < 2; i++)
		if (g->gone[i])
			t->event_free(g->gone[i]);
	if (g->host)
		t->free_host(g->ps->stream->dev, g->host, 2 * (size_t)g->n * sizeof(float));
}

/* The caller releases *g, also after a failure. */
static int upload_init(struct upload *g, struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_dev *dev = ps->stream->dev;
	int64_t most = 1, all = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_owned o = vfm_param_owned(ps, ps->p[i]);

		all += o.b - o.a;
		if (o.b - o.a > most)
			most = o.b - o.a;
	}
	*g = (struct upload){.ps = ps, .n = all < UPLOAD_CHUNK ? all : UPLOAD_CHUNK};
	if (g->n < most)
		g->n = most;
	g->host =
		dev->t->alloc_host(dev, 2 * (size_t)g->n * sizeof(float), "parameters on their way to the device", err);
	for (int i = 0; i < 2 && g->host; i++)
		g->gone[i] = dev->t->event_new(dev, err);
	return g->gone[0] && g->gone[1] ? 0 : VFM_EENV;
}

/* Reserves n elements, at most the size of a chunk.  May block until the other chunk is copied. */
static int upload_reserve(struct upload *g, int64_t n, float **at, struct vfm_err *err)
{
	const struct vfm_dev_table *t = g->ps->stream->dev->t;

	if (g->at + n > g->n) {
		TRY(t->event_record(g->gone[g->now], g->ps->stream, err));
		g->now = !g->now;
		TRY(t->event_sync(g->gone[g->now], err));
		g->at = 0;
	}
	*at = g->host + g->now * g->n + g->at;
	g->at += n;
	return 0;
}

/* Returns whether the parameter is loaded from the part of c. */
static bool is_loaded(const struct vfm_ckpt *c, const struct state_part *part, const struct vfm_param *p)
{
	return in_part(part, p) && !(part->partial && !vfm_ckpt_find_in(c, part->name, p->name));
}

/* Finds the tensor of a parameter and checks its shape. */
static int find_tensor(const struct vfm_ckpt *c, const char *part, const struct vfm_param *p,
	const struct vfm_ckpt_tensor **have, struct vfm_err *err)
{
	struct vfm_buf b = {0};

	*have = vfm_ckpt_find_in(c, part, p->name);
	if (!*have)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%s%s%s' is missing", c->path, c->plain ? "" : part,
			c->plain ? "" : "/", p->name);
	if (vfm_ckpt_has_shape(*have, p->d.ndim, p->d.shape))
		return 0;
	vfm_ckpt_add_shape(&b, (*have)->ndim, (*have)->shape);
	vfm_buf_adds(&b, ", the model's has ");
	vfm_ckpt_add_shape(&b, p->d.ndim, p->d.shape);
	vfm_fail(err, VFM_EUSAGE, "%s: tensor '%s' has the shape %s", c->path, (*have)->name, b.data);
	vfm_buf_release(&b);
	return VFM_EUSAGE;
}

/* Collective: checks that the part of c holds exactly its parameters of the model, over all pp stages. */
static int check_tensors(
	const struct vfm_params *ps, const struct vfm_ckpt *c, const struct state_part *part, struct vfm_err *err)
{
	int64_t *known = vfm_calloc((size_t)c->n + 1, sizeof(*known));
	int rc = 0;

	for (size_t i = 0; i < ps->n && rc == 0; i++) {
		const struct vfm_ckpt_tensor *have = NULL;

		if (!is_loaded(c, part, ps->p[i]))
			continue;
		rc = find_tensor(c, part->name, ps->p[i], &have, err);
		if (rc == 0)
			known[have - c->t] = 1;
	}
	TRY_OUT(vfm_agree(ps->mesh->save, rc, err));
	TRY_OUT(vfm_all_reduce(ps->mesh->save, NULL, vfm_t1(known, VFM_I64, c->n), err));
	for (int i = 0; i < c->n && rc == 0; i++)
		if (!known[i] && vfm_ckpt_name_in(c, part->name, &c->t[i]))
			rc = vfm_fail(err, VFM_EUSAGE, "%s: the model has no tensor '%s'", c->path, c->t[i].name);
out:
	free(known);
	return rc;
}

/* Checks n values that were read from a tensor. */
static int check_values(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const float *x, int64_t n, struct vfm_err *err)
{
	if (!vfm_dtype_count_nonfinite(VFM_F32, x, (size_t)n))
		return 0;
	c->damaged = true;
	return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%s' has values that are NaN or infinite", c->path, t->name);
}

/* Reads the owned elements of a parameter to *host. */
static int read_param(struct upload *g, const struct vfm_param *p, const struct vfm_owned *o, struct vfm_ckpt *c,
	const struct state_part *part, const struct vfm_array *own, float **host, struct vfm_err *err)
{
	struct vfm_slice slice = {&p->part, o->a, o->b};
	const struct vfm_ckpt_tensor *have;

	TRY(find_tensor(c, part->name, p, &have, err));
	TRY(upload_reserve(g, o->b - o->a, host, err));
	if (part->partial) {
		TRY(vfm_param_get(g->ps, own, p, *host, err));
		TRY(g->ps->stream->dev->t->stream_sync(g->ps->stream, err));
	}
	TRY(vfm_ckpt_read_tensor(c, have, &slice, VFM_F32, *host, err));
	return check_values(c, have, *host, o->b - o->a, err);
}

static int load_param(struct upload *g, const struct vfm_param *p, struct vfm_ckpt *c, const struct state_part *part,
	const struct vfm_array *own, struct vfm_err *err)
{
	const struct vfm_owned o = vfm_param_owned(g->ps, p);
	float *host = NULL;
	int rc = o.a < o.b ? read_param(g, p, &o, c, part, own, &host, err) : 0;

	if (!own && vfm_param_put_is_collective(p)) {
		/* The ranks that wait for a rank that failed fail, too. */
		int put = vfm_param_put(g->ps, own, p, rc < 0 ? NULL : host, rc < 0 ? NULL : err);

		return rc < 0 ? rc : put;
	}
	return rc < 0 || o.a == o.b ? rc : vfm_param_put(g->ps, own, p, host, err);
}

static int load_part(struct upload *g, struct vfm_ckpt *c, const struct state_part *part, const struct vfm_array *own,
	struct vfm_err *err)
{
	int rc = g->rc;

	for (size_t i = 0; i < g->ps->n; i++) {
		const struct vfm_param *p = g->ps->p[i];

		if (!is_loaded(c, part, p))
			continue;
		if (rc == 0)
			rc = load_param(g, p, c, part, own, err);
		else if (!own && vfm_param_put_is_collective(p))
			vfm_param_put(g->ps, own, p, NULL, NULL); /* so do the other ranks, which fail, too */
	}
	return rc;
}

/* Loads 8-bit moments.  Blocks span parameters, so all values are read before the first block is quantized. */
static int load_packed(struct upload *g, struct vfm_ckpt *c, const struct state_part *part, struct vfm_optim *optim,
	struct vfm_err *err)
{
	struct vfm_dev *d = g->ps->stream->dev;
	size_t bytes = (size_t)g->ps->n_own * sizeof(float) + 64;
	struct vfm_array all = {
		.data = d->t->alloc_host(d, bytes, "moments on their way to the device", err), .dtype = VFM_F32};
	int rc, synced;

	if (!all.data)
		return VFM_EENV;
	rc = d->t->zero(g->ps->stream, all.data, bytes, err);
	if (rc == 0)
		rc = load_part(g, c, part, &all, err);
	if (rc == 0)
		rc = vfm_optim_quantize(optim, part->own, all.data, err);
	synced = d->t->stream_sync(g->ps->stream, rc < 0 ? NULL : err);
	d->t->free_host(d, all.data, bytes);
	return rc < 0 ? rc : synced;
}

/* optim: that of 8-bit parts; NULL: there are none. */
static int load_parts(struct vfm_params *ps, struct vfm_ckpt *c, const struct state_part *part, int n,
	struct vfm_optim *optim, struct vfm_err *err)
{
	struct upload g;
	int rc, synced;

	rc = upload_init(&g, ps, err);
	for (int k = 0; k < n && (rc == 0 || k == 0); k++) {
		g.rc = rc;
		rc = part[k].own && part[k].own->dtype == VFM_U8 ? load_packed(&g, c, &part[k], optim, err)
								 : load_part(&g, c, &part[k], part[k].own, err);
	}
	synced = ps->stream->dev->t->stream_sync(ps->stream, rc < 0 ? NULL : err);
	upload_release(&g);
	return rc < 0 ? rc : synced;
}

/* Reads the newest steps of a layer's histories.  Returns 1 if c has them, 0 if not. */
static int load_history(struct vfm_ckpt *c, const struct vfm_param *p, int64_t window, float *past, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *have;
	char name[160];
	int64_t had, n;
	float *x;
	int rc;

	snprintf(name, sizeof(name), "fp8/%s", p->name);
	have = vfm_ckpt_find(c, name);
	if (!have)
		return 0;
	if (have->ndim != 2 || have->shape[0] != VFM_FP8_TENSORS || have->shape[1] < 1 || have->shape[1] > 1 << 20)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: tensor '%s' is no history of %d tensors", c->path, name, VFM_FP8_TENSORS);
	had = have->shape[1];
	n = had < window ? had : window;
	x = vfm_calloc((size_t)(VFM_FP8_TENSORS * had), sizeof(*x));
	rc = vfm_ckpt_read_tensor(c, have, NULL, VFM_F32, x, err);
	if (rc == 0)
		rc = check_values(c, have, x, VFM_FP8_TENSORS * had, err);
	for (int k = 0; k < VFM_FP8_TENSORS && rc == 0; k++)
		memcpy(past + (k + 1) * window - n, x + (k + 1) * had - n, (size_t)n * sizeof(*x));
	free(x);
	return rc < 0 ? rc : 1;
}

static int load_scales(struct vfm_params *ps, struct vfm_ckpt *c, struct vfm_err *err)
{
	const struct vfm_scales *s = ps->scales;
	int64_t found = 0;
	float *past;
	int rc = 0;

	for (int i = 0; i < c->n && !s; i++)
		if (!strncmp(c->t[i].name, "fp8/", 4)) {
			vfm_info("%s has histories of train.fp8=delayed, which this run does not use", c->path);
			return 0;
		}
	if (!s || s->n == 0)
		return 0;
	past = vfm_calloc((size_t)s->n_past, sizeof(*past));
	for (int64_t i = 0; i < s->n && rc >= 0; i++) {
		rc = load_history(c, s->p[i], s->window, past + i * VFM_FP8_TENSORS * s->window, err);
		s->of[i].filled = rc > 0;
		found += rc > 0;
	}
	if (rc >= 0 && found < s->n)
		vfm_info("%s has no histories of train.fp8=delayed%s: they start empty", c->path,
			found ? " for some layers" : "");
	if (rc >= 0)
		rc = ps->stream->dev->t->to_device(ps->stream, s->past, past, (size_t)s->n_past * sizeof(*past), err);
	if (rc == 0)
		rc = ps->stream->dev->t->stream_sync(ps->stream, err);
	free(past);
	return rc;
}

static int load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const struct state_part *part, struct vfm_err *err)
{
	TRY(check_tensors(ps, c, part, err));
	TRY(vfm_agree(ps->mesh->save, load_parts(ps, c, part, 1, NULL, err), err));
	return vfm_params_refresh(ps, err);
}

int vfm_state_load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err)
{
	return load_weights(ps, c, &(struct state_part){part, NULL, BASE_MODEL, false}, err);
}

int vfm_state_load_adapters(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err)
{
	return load_weights(ps, c, &(struct state_part){part, NULL, TRAINED, false}, err);
}

int vfm_state_load_some_adapters(struct vfm_params *ps, struct vfm_ckpt *c, struct vfm_err *err)
{
	return load_weights(ps, c, &(struct state_part){"model", NULL, TRAINED, true}, err);
}

int vfm_state_load(struct vfm_trainer *tr, struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct state_part part[PARTS_MAX];
	int parts = parts_of(tr, part), rc;

	TRY(check_tensors(ps, c, &part[0], err));
	rc = load_parts(ps, c, part, parts, vfm_trainer_optim(tr), err);
	if (rc == 0)
		rc = load_scales(ps, c, err);
	TRY(vfm_agree(ps->mesh->save, rc, err));
	return vfm_params_refresh(ps, err);
}

int vfm_state_encoders(struct vfm_encoder_ids *m, const struct vfm_ckpt *c, struct vfm_err *err)
{
	return vfm_encoder_ids_from_json(m, json_object_get(c->state, "encoders"), "state.encoders", err) < 0
		? vfm_err_context(err, "%s", c->path)
		: 0;
}

void vfm_state_size(int64_t size[3], const struct vfm_ckpt *c)
{
	static const char *const keys[] = {"frames", "height", "width"};
	const json_t *o = json_object_get(c->state, "sample");
	bool known = true;

	for (int i = 0; i < 3; i++) {
		size[i] = json_integer_value(json_object_get(o, keys[i]));
		known = known && size[i] > 0 && size[i] <= INT32_MAX;
	}
	if (!known)
		memset(size, 0, 3 * sizeof(*size));
}
