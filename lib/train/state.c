#include "train/state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/job.h"

enum source { NONE, MASTERS, ARRAY, GRADIENTS };

struct part {
	const char *name;
	enum source from;
	const struct vfm_array *own; /* of ARRAY */
};

enum { N_PARTS = 4 };

static void parts_of(struct vfm_trainer *tr, struct part p[N_PARTS])
{
	struct vfm_optim *o = vfm_trainer_optim(tr);

	p[0] = (struct part){"model", MASTERS, NULL};
	p[1] = (struct part){"optim/m", ARRAY, &o->m};
	p[2] = (struct part){"optim/v", ARRAY, &o->v};
	p[3] = (struct part){"ema", o->ema.data ? ARRAY : NONE, &o->ema};
}

/* ---- ranks together ---- */

static int gather_texts(void *ctx, const char *mine, char ***all, struct vfm_err *err)
{
	struct vfm_comm *c = ctx;
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

static int agree(void *ctx, int rc, struct vfm_err *err)
{
	return vfm_agree(ctx, rc, err);
}

static void fill_spec(struct vfm_ckpt_spec *spec, struct vfm_ckpt_comm *comm, const struct vfm_mesh *mesh)
{
	*comm = (struct vfm_ckpt_comm){.ctx = mesh->save, .gather = gather_texts, .agree = agree};
	spec->rank = mesh->rank;
	spec->size = mesh->world_size;
	spec->comm = mesh->world_size > 1 ? comm : NULL;
}

/* ---- saving ---- */

/* Elements of a part that this rank writes. */
static int64_t count_part(const struct vfm_params *ps)
{
	int64_t n = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_owned o = vfm_param_owned(ps, ps->p[i]);

		n += o.writes ? o.b - o.a : 0;
	}
	return n;
}

/* These elements, by way of memory of alloc_host, which has room for them. */
static int add_part(struct vfm_ckpt_writer *w, const struct vfm_params *ps, const struct part *part, float *host, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;
	char name[160];

	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		struct vfm_owned o = vfm_param_owned(ps, p);
		struct vfm_slice slice = {&p->part, o.a, o.b};

		if (!o.writes)
			continue;
		snprintf(name, sizeof(name), "%s/%s", part->name, p->name);
		if (part->from == GRADIENTS)
			TRY(t->to_host(ps->stream, host, o.g, (size_t)(o.b - o.a) * sizeof(float), err));
		else
			TRY(vfm_param_get(ps, part->own, p, host, err));
		TRY(vfm_ckpt_add(w, name, VFM_F32, p->d.ndim, p->d.shape, &slice, host, err));
		host += o.b - o.a;
	}
	return 0;
}

static int copy_to_host(struct vfm_saver *s, struct vfm_trainer *tr, struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	int64_t n = count_part(ps);
	struct part part[N_PARTS];

	s->bytes = N_PARTS * (size_t)n * sizeof(float) + 64;
	s->dev = ps->stream->dev;
	s->host = s->dev->t->alloc_host(s->dev, s->bytes, "the copy of the state that is saved", err);
	if (!s->host)
		return VFM_EENV;
	parts_of(tr, part);
	for (int i = 0; i < N_PARTS; i++)
		if (part[i].from != NONE)
			TRY(add_part(w, ps, &part[i], s->host + i * n, err));
	return ps->stream->dev->t->stream_sync(ps->stream, err);
}

static void drop_copy(struct vfm_saver *s)
{
	if (s->host)
		s->dev->t->free_host(s->dev, s->host, s->bytes);
	s->host = NULL;
}

int vfm_saver_start(struct vfm_saver *s, struct vfm_trainer *tr, const struct vfm_ckpt_spec *given, struct vfm_err *err)
{
	const struct vfm_mesh *mesh = vfm_trainer_params(tr)->mesh;
	struct vfm_ckpt_spec spec = *given;
	struct vfm_ckpt_writer *w;
	int rc;

	TRY(vfm_saver_wait(s, err));
	fill_spec(&spec, &s->comm, mesh);
	w = vfm_ckpt_begin(&spec);
	/* A rank that cannot take part must not leave the others waiting. */
	rc = agree(mesh->save, copy_to_host(s, tr, w, err), err);
	if (rc < 0)
		vfm_ckpt_abandon(w);
	else
		rc = vfm_ckpt_save_async(w, &s->job, err);
	if (rc < 0)
		drop_copy(s);
	return rc;
}

int vfm_saver_poll(struct vfm_saver *s, struct vfm_err *err)
{
	return s->job && vfm_ckpt_done(s->job) ? vfm_saver_wait(s, err) : 0;
}

int vfm_saver_wait(struct vfm_saver *s, struct vfm_err *err)
{
	int rc = vfm_ckpt_wait(s->job, err);

	s->job = NULL;
	drop_copy(s);
	return rc;
}

int vfm_state_save_grads(struct vfm_params *ps, const char *dir, int64_t step, struct vfm_err *err)
{
	struct vfm_ckpt_spec spec = {.dir = dir, .step = step};
	struct vfm_ckpt_comm comm;
	struct vfm_ckpt_writer *w;
	size_t bytes = (size_t)count_part(ps) * sizeof(float) + 64;
	struct vfm_dev *dev = ps->stream->dev;
	float *host = dev->t->alloc_host(dev, bytes, "a copy of the gradients", err);
	struct part grads = {"grad", GRADIENTS, NULL};
	int rc = VFM_EENV;

	fill_spec(&spec, &comm, ps->mesh);
	w = vfm_ckpt_begin(&spec);
	if (host)
		rc = add_part(w, ps, &grads, host, err);
	if (rc == 0)
		rc = ps->stream->dev->t->stream_sync(ps->stream, err);
	rc = agree(ps->mesh->save, rc, err);
	if (rc < 0)
		vfm_ckpt_abandon(w);
	else
		rc = vfm_ckpt_save(w, err);
	if (host)
		dev->t->free_host(dev, host, bytes);
	return rc;
}

/* ---- loading ---- */

static int load_param(struct vfm_params *ps, const struct vfm_param *p, struct vfm_ckpt *c, const char *part,
	const struct vfm_array *own, float *host, struct vfm_err *err)
{
	struct vfm_owned o = vfm_param_owned(ps, p);
	struct vfm_slice slice = {&p->part, o.a, o.b};
	const struct vfm_ckpt_tensor *have;
	char name[160];

	if (o.a == o.b)
		return 0;
	snprintf(name, sizeof(name), "%s%s%s", c->plain ? "" : part, c->plain ? "" : "/", p->name);
	have = vfm_ckpt_find(c, name);
	if (!have || have->ndim != p->d.ndim ||
		memcmp(have->shape, p->d.shape, sizeof(int64_t) * (size_t)p->d.ndim) != 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%s' %s", c->path, name,
			have ? "has another shape than the model's" : "is missing");
	TRY(vfm_ckpt_read_tensor(c, have, &slice, VFM_F32, host, err));
	TRY(vfm_param_put(ps, own, p, host, err));
	return ps->stream->dev->t->stream_sync(ps->stream, err); /* host is used again */
}

static int load_part(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, const struct vfm_array *own, struct vfm_err *err)
{
	struct vfm_dev *dev = ps->stream->dev;
	int64_t most = 1;
	float *host;
	int rc = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_owned o = vfm_param_owned(ps, ps->p[i]);

		if (o.b - o.a > most)
			most = o.b - o.a;
	}
	host = dev->t->alloc_host(dev, (size_t)most * sizeof(float), "a parameter", err);
	if (!host)
		return VFM_EENV;
	for (size_t i = 0; i < ps->n && rc == 0; i++)
		rc = load_param(ps, ps->p[i], c, part, own, host, err);
	dev->t->free_host(dev, host, (size_t)most * sizeof(float));
	return rc;
}

int vfm_state_load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err)
{
	TRY(agree(ps->mesh->save, load_part(ps, c, part, NULL, err), err));
	return vfm_params_refresh(ps, err);
}

int vfm_state_load(struct vfm_trainer *tr, struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct part part[N_PARTS];
	int rc = 0;

	parts_of(tr, part);
	for (int i = 0; i < N_PARTS && rc == 0; i++)
		if (part[i].from != NONE)
			rc = load_part(ps, c, part[i].name, part[i].own, err);
	TRY(agree(ps->mesh->save, rc, err));
	return vfm_params_refresh(ps, err);
}
