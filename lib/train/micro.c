#include "train/micro.h"

#include <stdlib.h>

/* Random draws of the step for its samples, on the host. */
struct drawn {
	float *t_cond, *coef, *w; /* [n], [n,4], [n] */
	bool *drop;               /* [n] */
};

static void draw_samples(struct drawn *d, const struct vfm_micro_opts *o, const struct vfm_pack *p)
{
	size_t n = (size_t)p->n;

	d->t_cond = vfm_calloc(n, 6 * sizeof(float));
	d->coef = d->t_cond + n;
	d->w = d->t_cond + 5 * n;
	d->drop = vfm_calloc(n, sizeof(bool));
	for (size_t i = 0; i < n; i++) {
		struct vfm_draw r =
			vfm_diffusion_draw(&o->config->diffusion, o->config->train.seed, (uint64_t)o->step, p->id[i]);

		d->t_cond[i] = r.t_cond;
		for (int j = 0; j < 4; j++)
			d->coef[4 * i + (size_t)j] = r.coef[j];
		d->w[i] = 1.0f / (float)p->step_tokens;
		d->drop[i] = r.drop;
	}
}

/* Uploads the latents of this rank's rows, one copy per run of consecutive rows. */
static int upload_latents(struct vfm_micro *u, const struct vfm_pack *p, struct vfm_err *err)
{
	const int32_t *rows = vfm_model_in_rows(&u->in);
	size_t row = (size_t)p->patch_dim * vfm_dtype_size(p->x0_dtype);

	for (int64_t i = 0, n; i < u->in.tok.rows; i += n) {
		for (n = 1; i + n < u->in.tok.rows && rows[i + n] == rows[i] + n; n++)
			;
		TRY(vfm_dev_upload(u->stream, (char *)u->x0.data + (size_t)i * row,
			(const char *)p->x0 + (size_t)rows[i] * row, (size_t)n * row, err));
	}
	return 0;
}

static void place_ends(struct vfm_micro *u, const struct vfm_pack *p, struct vfm_suballoc *a)
{
	u->x0 = vfm_sub_t2(a, p->x0_dtype, u->in.tok.rows, p->patch_dim);
	u->target = vfm_sub_t2(a, VFM_F32, u->in.tok.rows, p->patch_dim);
	u->coef = vfm_sub_t2(a, VFM_F32, p->n, 4);
	u->w = vfm_sub_t1(a, VFM_F32, p->n);
}

static int upload_ends(struct vfm_micro *u, const struct vfm_pack *p, const struct drawn *d, struct vfm_err *err)
{
	struct vfm_suballoc count = {0};

	place_ends(u, p, &count);
	u->bytes = count.used;
	u->mem = vfm_dev_alloc(u->stream, u->bytes, "the targets of a pack", err);
	if (!u->mem)
		return VFM_EENV;
	place_ends(u, p, &(struct vfm_suballoc){.base = u->mem});
	TRY(upload_latents(u, p, err));
	TRY(vfm_dev_upload(u->stream, u->coef.data, d->coef, vfm_nbytes(&u->coef), err));
	return vfm_dev_upload(u->stream, u->w.data, d->w, vfm_nbytes(&u->w), err);
}

static int upload_micro(struct vfm_micro *u, const struct vfm_micro_opts *o, const struct vfm_pack *p,
	const struct drawn *d, struct vfm_err *err)
{
	TRY(vfm_model_in_make(&u->in, u->stream, o->mesh, &o->config->model, p, d->drop,
		(enum vfm_dtype)o->config->train.dtype, err));
	TRY(vfm_dev_upload(u->stream, u->in.t_cond.data, d->t_cond, vfm_nbytes(&u->in.t_cond), err));
	if (!o->ends)
		return 0;
	TRY(upload_ends(u, p, d, err));
	u->noise = (struct vfm_diffuse){.seed = o->config->train.seed,
		.step = (uint64_t)o->step,
		.x0 = u->x0,
		.id = u->in.id,
		.idx = u->in.idx,
		.coef = u->coef,
		.seqs = &u->in.seqs,
		.input = u->in.x,
		.target = u->target};
	return 0;
}

int vfm_micro_make(struct vfm_micro *u, struct vfm_stream *s, const struct vfm_micro_opts *o, const struct vfm_pack *p,
	struct vfm_err *err)
{
	struct drawn d;
	int rc, ended;

	*u = (struct vfm_micro){.stream = s};
	if (o->upload)
		TRY(vfm_upload_begin(o->upload, err));
	draw_samples(&d, o, p);
	rc = upload_micro(u, o, p, &d, err);
	free(d.t_cond);
	free(d.drop);
	if (!o->upload)
		return rc < 0 ? rc : vfm_micro_ready(u, err);
	ended = vfm_upload_end(o->upload, &u->uploaded, rc < 0 ? NULL : err);
	return rc < 0 ? rc : ended;
}

int vfm_micro_ready(struct vfm_micro *u, struct vfm_err *err)
{
	struct vfm_diffuse noise = u->noise;

	if (u->uploaded)
		TRY(u->stream->dev->t->event_wait(u->uploaded, u->stream, err));
	u->uploaded = NULL;
	u->noise = (struct vfm_diffuse){0};
	return vfm_has(&noise.x0) ? vfm_op_diffuse(u->stream, &noise, err) : 0;
}

void vfm_micro_release(struct vfm_micro *u)
{
	if (u->uploaded) /* after a failed step */
		u->stream->dev->t->event_wait(u->uploaded, u->stream, NULL);
	if (u->stream)
		vfm_dev_free(u->stream, u->mem, u->bytes);
	vfm_model_in_release(&u->in);
	*u = (struct vfm_micro){0};
}
