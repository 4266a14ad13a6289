#include "train/trainer.h"

#include <stdlib.h>

struct vfm_trainer {
	struct vfm_config c;
	const struct vfm_mesh *mesh;
	struct vfm_stream *stream;
	struct vfm_params ps;
	struct vfm_model *model;
	struct vfm_optim optim;
	struct vfm_tape *tape;
	struct vfm_tensor loss; /* [1] f64, device */
	int64_t step, step_tokens;
	struct vfm_step_stats stats;
};

/* What a pack needs on the device for its loss, beside the model's own input. */
struct target {
	void *mem;
	size_t bytes;
	struct vfm_tensor x0, target; /* [T,F] f32 */
	struct vfm_tensor coef;       /* [S,4] f32 */
	struct vfm_tensor w;          /* [S] f32 */
};

struct vfm_trainer *vfm_trainer_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_trainer *tr = vfm_calloc(1, sizeof(*tr));
	void *loss;
	int rc;

	tr->c = *c;
	tr->mesh = mesh;
	tr->stream = s;
	tr->tape = vfm_tape_new(s);
	vfm_params_init(&tr->ps, s, mesh);
	tr->model = vfm_model_new(&c->model, &tr->ps);
	TRY_OUT(vfm_params_alloc(&tr->ps, (enum vfm_dtype)c->train.dtype, true, err));
	TRY_OUT(vfm_params_fill(&tr->ps, c->train.seed, err));
	TRY_OUT(vfm_optim_new(&tr->optim, &tr->ps, c->train.ema_decay > 0, err));
	TRY_OUT(vfm_optim_start(&tr->optim, err));
	loss = vfm_dev_alloc(s, 64, "the loss", err);
	rc = loss ? 0 : VFM_EENV;
	tr->loss = vfm_t1(loss, VFM_F64, 1);
out:
	if (rc == 0)
		return tr;
	vfm_trainer_free(tr);
	return NULL;
}

void vfm_trainer_free(struct vfm_trainer *tr)
{
	if (!tr)
		return;
	vfm_tape_free(tr->tape);
	vfm_optim_release(&tr->optim);
	vfm_model_free(tr->model);
	vfm_params_release(&tr->ps);
	vfm_dev_free(tr->stream, tr->loss.data, 64);
	free(tr);
}

struct vfm_params *vfm_trainer_params(struct vfm_trainer *tr)
{
	return &tr->ps;
}

struct vfm_optim *vfm_trainer_optim(struct vfm_trainer *tr)
{
	return &tr->optim;
}

int vfm_trainer_begin(struct vfm_trainer *tr, int64_t step, int64_t step_tokens, struct vfm_err *err)
{
	tr->step = step;
	tr->step_tokens = step_tokens;
	tr->stats = (struct vfm_step_stats){0};
	TRY(tr->stream->dev->t->zero(tr->stream, tr->loss.data, 8, err));
	return vfm_params_grad_begin(&tr->ps, err);
}

/* The latents of this rank's rows, where it does not have all of them in order. */
static int put_rows(struct target *g, struct vfm_trainer *tr, const struct vfm_batch *b, const struct vfm_model_in *in, struct vfm_err *err)
{
	const struct vfm_dev_table *t = tr->stream->dev->t;
	const int32_t *rows = vfm_model_in_rows(in);
	size_t row = (size_t)b->patch_dim * 4;

	for (int64_t i = 0, n; i < in->tok.rows; i += n) {
		for (n = 1; i + n < in->tok.rows && rows[i + n] == rows[i] + n; n++)
			;
		TRY(t->to_device(tr->stream, (char *)g->x0.data + (size_t)i * row, b->x0 + (size_t)rows[i] * (size_t)b->patch_dim, (size_t)n * row, err));
	}
	return 0;
}

static int target_make(struct target *g, struct vfm_trainer *tr, const struct vfm_batch *b, const struct vfm_model_in *in, const float *coef,
	const float *w, struct vfm_err *err)
{
	const struct vfm_dev_table *t = tr->stream->dev->t;
	int64_t rows = in->tok.rows;
	size_t x = (size_t)rows * (size_t)b->patch_dim * 4, c = (size_t)b->n_samples * 16, n = (size_t)b->n_samples * 4;

	x = (x + 63) / 64 * 64;
	c = (c + 63) / 64 * 64;
	g->bytes = 2 * x + c + n;
	g->mem = vfm_dev_alloc(tr->stream, g->bytes, "the targets of a pack", err);
	if (!g->mem)
		return VFM_EENV;
	g->x0 = vfm_t2(g->mem, VFM_F32, rows, b->patch_dim);
	g->target = vfm_t2((char *)g->mem + x, VFM_F32, rows, b->patch_dim);
	g->coef = vfm_t2((char *)g->mem + 2 * x, VFM_F32, b->n_samples, 4);
	g->w = vfm_t1((char *)g->mem + 2 * x + c, VFM_F32, b->n_samples);
	TRY(put_rows(g, tr, b, in, err));
	TRY(t->to_device(tr->stream, g->coef.data, coef, vfm_nbytes(&g->coef), err));
	return t->to_device(tr->stream, g->w.data, w, vfm_nbytes(&g->w), err);
}

/* Forward and backward of one pack that is on the device. */
static int forward_backward(struct vfm_trainer *tr, const struct vfm_model_in *in, const struct target *g, struct vfm_err *err)
{
	struct vfm_diffuse noise = {.seed = tr->c.train.seed, .step = (uint64_t)tr->step, .x0 = g->x0, .id = in->id, .idx = in->idx,
		.coef = g->coef, .seqs = &in->seqs, .input = in->x, .target = g->target};
	struct vfm_mse mse = {.target = g->target, .w = g->w, .seqs = &in->seqs, .loss = tr->loss};
	struct vfm_var *pred;

	TRY(vfm_op_diffuse(tr->stream, &noise, err));
	pred = vfm_model_forward(tr->model, tr->tape, in, 0, NULL, (enum vfm_recompute)tr->c.train.recompute);
	vfm_g_mse(tr->tape, pred, &mse);
	return vfm_tape_backward(tr->tape, err);
}

static void count(struct vfm_trainer *tr, const struct vfm_batch *b)
{
	struct vfm_pack_sums sums = {0};

	for (int i = 0; i < b->n_samples; i++)
		vfm_pack_sums_grid(&sums, b->grid[i], b->cu_text[i + 1] - b->cu_text[i]);
	tr->stats.flops += 3 * vfm_model_flops(&tr->c.model, &sums);
	tr->stats.tokens += b->tokens;
	tr->stats.samples += b->n_samples;
}

int vfm_trainer_pack(struct vfm_trainer *tr, const struct vfm_batch *b, struct vfm_err *err)
{
	size_t n = (size_t)b->n_samples;
	struct vfm_pack pack = {.n = b->n_samples, .tokens = b->tokens, .text_tokens = b->text_tokens, .id = b->id,
		.cu_seqlens = b->cu_seqlens, .cu_text = b->cu_text, .grid = (const int32_t (*)[3])b->grid, .seg = b->seg, .idx = b->idx, .pos = (const int16_t (*)[3])b->pos,
		.text = b->text};
	struct vfm_model_in in = {0};
	struct target g = {0};
	float *host = vfm_calloc(n, 6 * sizeof(float)), *t_cond = host, *coef = host + n, *w = host + 5 * n;
	bool *drop = vfm_calloc(n, sizeof(bool));
	int rc;

	for (size_t i = 0; i < n; i++) {
		struct vfm_draw d = vfm_diffusion_draw(&tr->c.diffusion, tr->c.train.seed, (uint64_t)tr->step, b->id[i]);

		t_cond[i] = d.t_cond;
		for (int j = 0; j < 4; j++)
			coef[4 * i + (size_t)j] = d.coef[j];
		w[i] = 1.0f / (float)tr->step_tokens;
		drop[i] = d.drop;
	}
	TRY_OUT(vfm_model_in_make(&in, tr->stream, tr->mesh, &tr->c.model, &pack, drop, (enum vfm_dtype)tr->c.train.dtype, err));
	TRY_OUT(tr->stream->dev->t->to_device(tr->stream, in.t_cond.data, t_cond, n * sizeof(float), err));
	TRY_OUT(target_make(&g, tr, b, &in, coef, w, err));
	TRY_OUT(forward_backward(tr, &in, &g, err));
	count(tr, b);
	/* Host arrays must stay until the device has read them. */
	rc = tr->stream->dev->t->stream_sync(tr->stream, err);
out:
	vfm_tape_reset(tr->tape);
	vfm_dev_free(tr->stream, g.mem, g.bytes);
	vfm_model_in_release(&in);
	free(drop);
	free(host);
	return rc;
}

int vfm_trainer_end(struct vfm_trainer *tr, double lr, struct vfm_err *err)
{
	const struct vfm_train_config *c = &tr->c.train;
	struct vfm_adam a = {c->beta1, c->beta2, c->eps, c->weight_decay, c->clip_norm, c->ema_decay};

	TRY(vfm_params_grad_end(&tr->ps, err));
	/* The loss has the tokens of the whole step below it, so gradients and losses of ranks add up. */
	TRY(vfm_all_reduce(tr->mesh->world, tr->stream, tr->loss, err));
	return vfm_optim_step(&tr->optim, &a, lr, tr->step + 1, err);
}

int vfm_trainer_stats(struct vfm_trainer *tr, struct vfm_step_stats *out, struct vfm_err *err)
{
	const struct vfm_dev_table *t = tr->stream->dev->t;
	double loss;
	float norm;

	TRY(t->to_host(tr->stream, &loss, tr->loss.data, sizeof(loss), err));
	TRY(t->to_host(tr->stream, &norm, tr->optim.norm.data, sizeof(norm), err));
	TRY(t->stream_sync(tr->stream, err));
	*out = tr->stats;
	out->loss = loss;
	out->grad_norm = norm;
	return 0;
}
