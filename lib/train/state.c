#include "train/state.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

struct part {
	const char *name;
	float *flat; /* device [n_flat]; NULL: the trainer has none */
};

enum { N_PARTS = 4 };

static void parts_of(struct vfm_trainer *tr, struct part p[N_PARTS])
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_optim *o = vfm_trainer_optim(tr);

	p[0] = (struct part){"model", ps->master};
	p[1] = (struct part){"optim/m", o->m};
	p[2] = (struct part){"optim/v", o->v};
	p[3] = (struct part){"ema", o->ema};
}

/* ---- saving ---- */

static int add_part(struct vfm_ckpt_writer *w, const struct vfm_params *ps, const char *part, const float *host, struct vfm_err *err)
{
	char name[160];

	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];

		snprintf(name, sizeof(name), "%s/%s", part, p->name);
		TRY(vfm_ckpt_add(w, name, VFM_F32, p->d.ndim, p->d.shape, NULL, host + p->off, err));
	}
	return 0;
}

static int copy_to_host(struct vfm_saver *s, struct vfm_trainer *tr, struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	const struct vfm_dev_table *t = ps->stream->dev->t;
	size_t n = (size_t)ps->n_flat;
	struct part part[N_PARTS];

	s->bytes = N_PARTS * n * sizeof(float);
	s->host = vfm_big_alloc(s->bytes, "the copy of the state that is saved", err);
	if (!s->host)
		return VFM_EENV;
	parts_of(tr, part);
	for (size_t i = 0; i < N_PARTS; i++) {
		if (!part[i].flat)
			continue;
		TRY(t->to_host(ps->stream, s->host + i * n, part[i].flat, n * sizeof(float), err));
		TRY(add_part(w, ps, part[i].name, s->host + i * n, err));
	}
	return t->stream_sync(ps->stream, err);
}

static void drop_copy(struct vfm_saver *s)
{
	vfm_big_free(s->host, s->bytes);
	s->host = NULL;
}

int vfm_saver_start(struct vfm_saver *s, struct vfm_trainer *tr, const struct vfm_ckpt_spec *spec, struct vfm_err *err)
{
	struct vfm_ckpt_writer *w;
	int rc;

	TRY(vfm_saver_wait(s, err));
	w = vfm_ckpt_begin(spec);
	rc = copy_to_host(s, tr, w, err);
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

/* ---- loading ---- */

static int load_part(const struct vfm_params *ps, struct vfm_ckpt *c, const char *part, float *flat, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;
	int64_t most = 1;
	float *host;
	char name[160];
	int rc = 0;

	for (size_t i = 0; i < ps->n; i++)
		if (ps->p[i]->n > most)
			most = ps->p[i]->n;
	host = vfm_big_alloc((size_t)most * sizeof(float), "a parameter", err);
	if (!host)
		return VFM_EENV;
	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		const struct vfm_ckpt_tensor *have;

		snprintf(name, sizeof(name), "%s%s%s", c->plain ? "" : part, c->plain ? "" : "/", p->name);
		have = vfm_ckpt_find(c, name);
		if (!have || have->ndim != p->d.ndim || memcmp(have->shape, p->d.shape, sizeof(int64_t) * (size_t)p->d.ndim) != 0) {
			rc = vfm_fail(err, VFM_EUSAGE, "%s: tensor '%s' %s", c->path, name, have ? "has another shape than the model's" : "is missing");
			goto out;
		}
		TRY_OUT(vfm_ckpt_read_tensor(c, have, NULL, VFM_F32, host, err));
		TRY_OUT(t->to_device(ps->stream, flat + p->off, host, (size_t)p->n * sizeof(float), err));
		TRY_OUT(t->stream_sync(ps->stream, err));
	}
out:
	vfm_big_free(host, (size_t)most * sizeof(float));
	return rc;
}

int vfm_state_load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err)
{
	TRY(load_part(ps, c, part, ps->master, err));
	return vfm_params_refresh(ps, err);
}

int vfm_state_load(struct vfm_trainer *tr, struct vfm_ckpt *c, struct vfm_err *err)
{
	struct part part[N_PARTS];

	parts_of(tr, part);
	for (int i = 0; i < N_PARTS; i++)
		if (part[i].flat)
			TRY(load_part(vfm_trainer_params(tr), c, part[i].name, part[i].flat, err));
	return vfm_params_refresh(vfm_trainer_params(tr), err);
}
