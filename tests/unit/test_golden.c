/* The model against values computed in float64 by tests/ref (see its README.md): loss, prediction,
 * every gradient, and 20 AdamW steps, for each recompute mode; in f32, and in bf16 with either residual stream. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>

#include "base/par.h"
#include "ckpt/ckpt.h"
#include "device/open/open.h"
#include "io/hash.h"
#include "io/json.h"
#include "net/diffusion/diffusion.h"
#include "net/diffusion/model.h"
#include "spec/model/linears.h"
#include "ok.h"
#include "train/step/optim.h"

enum { PACKS = 2, STEPS = 20, MAX_GOLDENS = 64, MAX_SEGS = 16 };

struct golden {
	json_t *j;
	struct vfm_ckpt *c;
	struct vfm_model_spec m;
	uint64_t seed;
	int64_t stride, whole;
	int64_t tokens; /* of a step */
	struct vfm_diffusion d;
	double snr_gamma; /* of the weighting min_snr; 0: no weighting */
	double guidance;  /* the scale that the network reads */
	enum vfm_diffusion_kind kind;
};

struct gpack {
	struct vfm_pack p;
	float *coef, *w, *t_cond, *pred;
	int32_t given[8]; /* latent frames */
};

/* How a model computes, and how far from the reference it may be (relative errors). */
struct how {
	enum vfm_dtype dtype, residual;
	double pred, loss, grad, norm, final;
};
/* gradients and weights by norm: there a single element says little */
#define BF16_LIMITS 2e-2, 1e-3, 4e-2, 1e-2, 4e-3
static const struct how f32 = {VFM_F32, VFM_F32, 1e-5, 1e-5, 1e-4, 1e-5, 1e-4}, bf16 = {VFM_BF16, VFM_F32, BF16_LIMITS},
			bf16_residual = {VFM_BF16, VFM_BF16, BF16_LIMITS};

/* What was found: the largest. */
struct errors {
	double pred, loss, grad, norm, final;
};

struct model {
	const struct how *how;
	struct errors e;
	struct vfm_device d;
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_train_config train;
	struct vfm_optim optim;
	struct vfm_tape *tape;
	struct vfm_tensor loss;
};

static void *read_all(struct golden *g, enum vfm_dtype dt, const char *fmt, ...)
{
	const struct vfm_ckpt_tensor *t;
	char name[128];
	void *p;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(name, sizeof(name), fmt, ap);
	va_end(ap);
	t = vfm_ckpt_find(g->c, name);
	if (!t)
		fail_msg("no tensor %s", name);
	p = vfm_malloc((size_t)t->numel * vfm_dtype_size(dt) + 1);
	OK(vfm_ckpt_read_tensor(g->c, t, NULL, dt, p, &err));
	return p;
}

static const char *folder(void)
{
	return getenv("VFM_GOLDEN") ? getenv("VFM_GOLDEN") : "tests/golden";
}

static void golden_open(struct golden *g, const char *name)
{
	const char *dir = folder(), *pos;
	char path[512];
	json_t *c;

	snprintf(path, sizeof(path), "%s/%s.json", dir, name);
	g->j = vfm_json_load(path, 1 << 22, &err);
	if (!g->j)
		fail_msg("%s", err.msg);
	snprintf(path, sizeof(path), "%s/%s.safetensors", dir, name);
	OK(vfm_ckpt_open(&g->c, path, &err));
	g->seed = (uint64_t)json_integer_value(json_object_get(g->j, "seed"));
	g->stride = json_integer_value(json_object_get(g->j, "stride"));
	g->whole = json_integer_value(json_object_get(g->j, "whole"));
	g->kind = strcmp(json_string_value(json_object_get(g->j, "kind")), "flow") ? VFM_EDM : VFM_FLOW;
	g->snr_gamma = json_number_value(json_object_get(g->j, "snr_gamma"));
	for (int k = 0; k < PACKS; k++) {
		snprintf(path, sizeof(path), "pack.%d.x0", k);
		g->tokens += vfm_ckpt_find(g->c, path)->shape[0];
	}
	c = json_object_get(g->j, "config");
	vfm_model_defaults(&g->m);
	g->m.hidden = json_integer_value(json_object_get(c, "hidden"));
	g->m.layers = json_integer_value(json_object_get(c, "layers"));
	g->m.heads = json_integer_value(json_object_get(c, "heads"));
	g->m.ffn = json_integer_value(json_object_get(c, "ffn"));
	g->m.text_dim = json_integer_value(json_object_get(c, "text_dim"));
	g->m.cross_attention = json_is_true(json_object_get(c, "cross_attention"));
	g->m.pooled_text = json_is_true(json_object_get(c, "pooled_text"));
	g->m.qk_norm = json_is_true(json_object_get(c, "qk_norm"));
	g->m.adaln_lora = json_integer_value(json_object_get(c, "adaln_lora_rank"));
	pos = json_string_value(json_object_get(c, "pos"));
	for (int i = 0; i < 4; i++)
		if (!strcmp(pos, (const char *[]){"rope", "sincos", "both", "learned"}[i]))
			g->m.pos = i;
	snprintf(g->m.arch, sizeof(g->m.arch), "%s", json_string_value(json_object_get(c, "arch")));
	g->m.kv_heads = json_integer_value(json_object_get(c, "kv_heads"));
	for (size_t i = 0; i < 3; i++)
		g->m.pos_max[i] = json_integer_value(json_array_get(json_object_get(c, "pos_max"), i));
	g->m.experts = json_integer_value(json_object_get(c, "experts"));
	g->m.expert_ffn = json_integer_value(json_object_get(c, "expert_ffn"));
	g->m.shared_experts = json_integer_value(json_object_get(c, "shared_experts"));
	g->m.moe_router = !strcmp(json_string_value(json_object_get(c, "moe_router")), "token_choice");
	g->m.moe_capacity = json_number_value(json_object_get(c, "moe_capacity"));
	g->m.cond_channels = json_integer_value(json_object_get(c, "cond_features")) / 4;
	g->m.image_dim = json_integer_value(json_object_get(c, "image_dim"));
	g->m.image_pos = json_integer_value(json_object_get(c, "image_pos"));
	if (g->m.image_dim)
		g->m.image_len = json_integer_value(json_object_get(c, "image_len"));
	g->m.moe_aux = json_number_value(json_object_get(c, "moe_aux"));
	if (json_object_get(c, "rope_fps"))
		g->m.rope_fps = json_number_value(json_object_get(c, "rope_fps"));
	for (size_t i = 0; i < json_array_size(json_object_get(c, "rope_stride")); i++)
		g->m.rope_stride[i] = json_integer_value(json_array_get(json_object_get(c, "rope_stride"), i));
	for (size_t i = 0; i < json_array_size(json_object_get(c, "rope_scale")); i++)
		g->m.rope_scale[i] = json_number_value(json_array_get(json_object_get(c, "rope_scale"), i));
	for (size_t i = 0; i < 3; i++)
		g->m.patch[i] = json_integer_value(json_array_get(json_object_get(c, "patch"), i));
	for (size_t i = 0; i < json_array_size(json_object_get(c, "rope_axes")); i++)
		g->m.rope_axes[i] = json_integer_value(json_array_get(json_object_get(c, "rope_axes"), i));
	if (json_object_get(c, "rope_theta"))
		g->m.rope_theta = json_number_value(json_object_get(c, "rope_theta"));
	if (json_object_get(c, "refiner_layers"))
		g->m.refiner_layers = json_integer_value(json_object_get(c, "refiner_layers"));
	g->m.single_layers = json_integer_value(json_object_get(c, "single_layers"));
	g->m.text2_dim = json_integer_value(json_object_get(c, "text2_dim"));
	g->m.guidance_dim = json_integer_value(json_object_get(c, "guidance_dim"));
	g->guidance = json_number_value(json_object_get(c, "guidance"));
	g->m.text_proj = json_integer_value(json_object_get(c, "text_proj"));
	if (json_object_get(c, "mask_channels"))
		g->m.mask_channels = json_integer_value(json_object_get(c, "mask_channels"));
	OK(vfm_model_check(&g->m, &err));
	vfm_diffusion_defaults(&g->d);
	g->d.kind = g->kind;
	vfm_diffusion_follow(&g->d, &g->m);
}

/* Reads the arrays of a pack that not every golden has. */
static void load_conditions(struct golden *g, int k, struct gpack *q)
{
	struct vfm_pack *p = &q->p;
	char name[64];

	if (p->cond_dim) {
		float *cond = read_all(g, VFM_F32, "pack.%d.cond", k);

		memcpy(p->cond, cond, (size_t)(p->tokens * p->cond_dim) * sizeof(*cond));
		free(cond);
	}
	if (p->image_dim) {
		float *image = read_all(g, VFM_F32, "pack.%d.image", k);

		memcpy(p->image, image, (size_t)p->n * (size_t)(p->image_len * p->image_dim) * sizeof(*image));
		free(image);
	}
	if (p->text2_dim) {
		float *text2 = read_all(g, VFM_F32, "pack.%d.text2", k);

		memcpy(p->text2, text2, (size_t)(p->text2_tokens * p->text2_dim) * sizeof(*text2));
		free(text2);
	}
	snprintf(name, sizeof(name), "pack.%d.given", k);
	if (vfm_ckpt_find(g->c, name)) {
		int32_t *given = read_all(g, VFM_I32, "%s", name);

		for (int i = 0; i < p->n; i++)
			q->given[i] = given[i];
		free(given);
	}
}

/* The weights of the losses are those that training uses. */
static void check_weights(const struct golden *g, const struct gpack *q)
{
	struct vfm_diffusion d = g->d;

	if (g->snr_gamma > 0) {
		d.weighting = VFM_WEIGHT_MIN_SNR;
		d.snr_gamma = g->snr_gamma;
	}
	for (int i = 0; i < q->p.n; i++) {
		double t = (double)q->t_cond[i] / d.time_scale, noise = g->kind == VFM_FLOW ? t : exp(4 * t);
		double w = vfm_diffusion_at(&d, noise).weight / (double)g->tokens;

		if (q->given[i] && !vfm_model_predicts_given(&g->m))
			w *= (double)q->p.grid[i][0] / (q->p.grid[i][0] - q->given[i]);
		assert_true(fabs((double)q->w[i] - w) <= 1e-6 * w);
	}
}

static void pack_load(struct golden *g, int k, struct gpack *q)
{
	float *x0 = read_all(g, VFM_F32, "pack.%d.x0", k), *text = read_all(g, VFM_F32, "pack.%d.text", k);
	uint64_t *id = read_all(g, VFM_I64, "pack.%d.ids", k);
	int32_t *cu = read_all(g, VFM_I32, "pack.%d.cu", k), *cu_text = read_all(g, VFM_I32, "pack.%d.cu_text", k),
		*grids = read_all(g, VFM_I32, "pack.%d.grids", k);
	int32_t *cu_text2 = NULL;
	void *read[] = {x0, text, id, cu, cu_text, grids};
	struct vfm_pack *p = &q->p;
	char name[64];

	snprintf(name, sizeof(name), "pack.%d.ids", k);
	q->pred = read_all(g, VFM_F32, "pack.%d.pred", k);
	q->coef = read_all(g, VFM_F32, "pack.%d.coef", k);
	q->w = read_all(g, VFM_F32, "pack.%d.w", k);
	q->t_cond = read_all(g, VFM_F32, "pack.%d.t_cond", k);
	*p = (struct vfm_pack){.n = (int)vfm_ckpt_find(g->c, name)->numel,
		.patch_dim = (int32_t)vfm_model_patch_dim(&g->m),
		.text_dim = (int32_t)g->m.text_dim,
		.text2_dim = (int32_t)g->m.text2_dim,
		.cond_dim = (int32_t)vfm_model_cond_dim(&g->m),
		.image_dim = (int32_t)g->m.image_dim,
		.image_len = (int32_t)g->m.image_len,
		.step_tokens = g->tokens};
	p->tokens = cu[p->n];
	p->text_tokens = cu_text[p->n];
	if (p->text2_dim) {
		cu_text2 = read_all(g, VFM_I32, "pack.%d.cu_text2", k);
		p->text2_tokens = cu_text2[p->n];
	}
	OK(vfm_pack_alloc(p, &err));
	for (int i = 0; i < p->n; i++) {
		vfm_pack_set(p, i, id[i], grids + 3 * i, cu_text[i + 1] - cu_text[i]);
		assert_int_equal(p->cu_seqlens[i + 1], cu[i + 1]);
		if (cu_text2)
			vfm_pack_set_text2(p, i, cu_text2[i + 1] - cu_text2[i]);
		q->t_cond[i] *= (float)g->d.time_scale;
	}
	memcpy(p->x0, x0, (size_t)(p->tokens * p->patch_dim) * sizeof(*x0));
	memcpy(p->text, text, (size_t)(p->text_tokens * p->text_dim) * sizeof(*text));
	free(cu_text2);
	load_conditions(g, k, q);
	check_weights(g, q);
	for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++)
		free(read[i]);
}

static void pack_free(struct gpack *q)
{
	void *all[] = {q->pred, q->coef, q->w, q->t_cond};

	vfm_pack_release(&q->p);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
}

static void model_open(struct golden *g, struct model *m, const struct how *how)
{
	json_t *params = json_object_get(g->j, "parameters");

	m->how = how;
	OK(vfm_device_open(&m->d, "cpu", &err));
	vfm_params_init(&m->ps, m->d.stream, vfm_mesh_one());
	m->net = vfm_model_new(&g->m, &m->ps);
	vfm_model_set_residual(m->net, how->residual);
	OK(vfm_params_alloc(&m->ps, how->dtype, true, &err));
	assert_int_equal(json_object_size(params), m->ps.n);
	assert_int_equal(m->ps.n_values, vfm_model_params(&g->m));
	for (size_t i = 0; i < m->ps.n; i++) {
		struct vfm_param *p = m->ps.p[i];
		json_t *d = json_object_get(params, p->name);
		struct vfm_fill a = {.x = vfm_t1(m->ps.master + p->off, VFM_F32, p->n)};

		if (!d)
			fail_msg("the reference has no %s", p->name);
		a.rng = vfm_rng_stream(g->seed, 0, vfm_fnv64(p->name, strlen(p->name)), VFM_RNG_INIT);
		a.mean = (float)json_number_value(json_object_get(d, "mean"));
		a.std = (float)json_number_value(json_object_get(d, "std"));
		OK(vfm_op_fill(m->d.stream, &a, &err));
	}
	OK(vfm_params_refresh(&m->ps, &err));
	OK(vfm_optim_new(&m->optim, &m->ps, &m->train, &err));
	m->tape = vfm_tape_new(m->d.stream);
	m->loss = vfm_t1(vfm_dev_alloc(m->d.stream, 64, "loss", &err), VFM_F64, 1);
}

static void model_close(struct model *m)
{
	vfm_dev_free(m->d.stream, m->loss.data, 64);
	vfm_tape_free(m->tape);
	vfm_optim_release(&m->optim);
	vfm_model_free(m->net);
	vfm_params_release(&m->ps);
	assert_int_equal(m->d.dev->mem_now, 0); /* everything the tape made is freed */
	vfm_device_close(&m->d);
}

/* max |a - b| / max |b|, or by norms, over the elements that the golden file holds */
static double rel_error(struct golden *g, const char *kind, const char *name, const float *a, int64_t n, bool norm)
{
	float *b = read_all(g, VFM_F32, "%s.%s", kind, name);
	int64_t stride = n > g->whole ? g->stride : 1;
	double e = 0, scale = 0, e2 = 0, s2 = 0;

	for (int64_t i = 0; i * stride < n; i++) {
		double d = (double)a[i * stride] - (double)b[i];

		e = fmax(e, fabs(d));
		scale = fmax(scale, fabs((double)b[i]));
		e2 += d * d;
		s2 += (double)b[i] * (double)b[i];
	}
	free(b);
	if (norm)
		return s2 > 0 ? sqrt(e2 / s2) : sqrt(e2);
	return scale > 0 ? e / scale : e;
}

static void run_pack(
	struct golden *g, struct model *m, struct gpack *q, int step, enum vfm_recompute rc, const float *pred)
{
	struct vfm_keeps keeps[64];
	struct vfm_model_in in;
	int64_t F = vfm_model_patch_dim(&g->m);
	struct vfm_diffuse noise = {.seed = g->seed, .step = (uint64_t)step};
	struct vfm_mse mse = {.loss = m->loss};
	float coef[4 * MAX_SEGS], w[MAX_SEGS];
	struct vfm_tensor target = vfm_t2(
		vfm_dev_alloc(m->d.stream, (size_t)(q->p.tokens * F) * 4, "target", &err), VFM_F32, q->p.tokens, F);
	struct vfm_var *out;

	OK(vfm_model_in_make(&in, m->d.stream, vfm_mesh_one(), &g->m, &q->p,
		&(struct vfm_model_conds){.given = q->given, .guidance = (float)g->guidance}, m->ps.dtype, &err));
	in.moe.loss = m->loss;
	assert_true(in.segs.n <= MAX_SEGS);
	for (int s = 0; s < in.segs.n; s++) {
		int i = in.seg_sample[s];

		((float *)in.t_cond.data)[s] = in.seg_given[s] ? vfm_diffusion_given(&g->d).t_cond : q->t_cond[i];
		w[s] = in.seg_given[s] ? 0 : q->w[i];
		memcpy(coef + 4 * s, in.seg_given[s] ? (const float[]){1, 0, 0, 0} : q->coef + 4 * i,
			4 * sizeof(*coef));
	}
	noise.x0 = vfm_t2(q->p.x0, VFM_F32, q->p.tokens, F);
	noise.id = in.id;
	noise.idx = in.idx;
	noise.coef = vfm_t2(coef, VFM_F32, in.segs.n, 4);
	noise.seqs = &in.segs;
	noise.input = in.x;
	noise.target = target;
	OK(vfm_op_diffuse(m->d.stream, &noise, &err));
	vfm_keeps_fill(keeps, g->m.layers, rc, 0, 0);
	out = vfm_model_forward(m->net, m->tape, &in, 0, NULL, keeps);
	OK(vfm_tape_status(m->tape, &err));
	if (pred) {
		double e = 0, scale = 0;

		for (int64_t i = 0; i < q->p.tokens * F; i++) {
			e = fmax(e, fabs((double)((float *)out->v.data)[i] - (double)pred[i]));
			scale = fmax(scale, fabs((double)pred[i]));
		}
		m->e.pred = fmax(m->e.pred, e / scale);
		if (e / scale > m->how->pred)
			fail_msg("prediction: relative error %g", e / scale);
	}
	mse.target = target;
	mse.w = vfm_t1(w, VFM_F32, in.segs.n);
	mse.seqs = &in.segs;
	OK(vfm_g_mse(m->tape, out, &mse));
	OK(vfm_tape_backward(m->tape, &err));
	vfm_tape_reset(m->tape);
	vfm_model_in_release(&in);
	vfm_dev_free(m->d.stream, target.data, (size_t)(q->p.tokens * F) * 4);
}

static void check_grads(struct golden *g, struct model *m, const char *name)
{
	double all = 0;

	for (size_t i = 0; i < m->ps.n; i++) {
		struct vfm_param *p = m->ps.p[i];

		for (int64_t j = 0; j < p->n; j++)
			all = fmax(all, fabs((double)m->ps.grad[p->off + j]));
	}
	for (size_t i = 0; i < m->ps.n; i++) {
		struct vfm_param *p = m->ps.p[i];
		float *ref = read_all(g, VFM_F32, "grad.%s", p->name);
		double e = rel_error(g, "grad", p->name, m->ps.grad + p->off, p->n, m->how->dtype == VFM_BF16),
		       scale = 0;
		int64_t n = p->n > g->whole ? (p->n + g->stride - 1) / g->stride : p->n;

		for (int64_t j = 0; j < n; j++)
			scale = fmax(scale, fabs((double)ref[j]));
		free(ref);
		/* What is zero in exact arithmetic (the bias of the keys) is measured by the model's largest gradient.
		 */
		if (e * scale <= 1e-3 * m->how->grad * all)
			continue;
		m->e.grad = fmax(m->e.grad, e);
		if (e > m->how->grad)
			fail_msg("%s: gradient of %s: relative error %g", name, p->name, e);
	}
}

static struct errors train(
	const char *name, const struct how *how, enum vfm_recompute rc, double *losses, float **weights)
{
	struct golden g = {0};
	struct gpack q[PACKS] = {0};
	struct model m = {0};
	json_t *t;

	golden_open(&g, name);
	t = json_object_get(g.j, "train");
	m.train = (struct vfm_train_config){.beta1 = json_number_value(json_object_get(t, "beta1")),
		.beta2 = json_number_value(json_object_get(t, "beta2")),
		.eps = json_number_value(json_object_get(t, "eps")),
		.weight_decay = json_number_value(json_object_get(t, "wd")),
		.clip_norm = json_number_value(json_object_get(t, "clip"))};
	model_open(&g, &m, how);
	for (int k = 0; k < PACKS; k++)
		pack_load(&g, k, &q[k]);
	for (size_t i = 0; i < m.ps.n; i++)
		assert_true(rel_error(&g, "init", m.ps.p[i]->name, m.ps.master + m.ps.p[i]->off, m.ps.p[i]->n, false) <
			1e-6);
	for (int s = 0; s < STEPS; s++) {
		double want = json_number_value(json_array_get(json_object_get(g.j, "losses"), (size_t)s));
		double norm = json_number_value(json_array_get(json_object_get(g.j, "grad_norms"), (size_t)s));

		OK(vfm_params_grad_begin(&m.ps, &err));
		*(double *)m.loss.data = 0;
		for (int k = 0; k < PACKS; k++)
			run_pack(&g, &m, &q[k], s, rc, s == 0 ? q[k].pred : NULL);
		OK(vfm_params_grad_end(&m.ps, &err));
		losses[s] = *(double *)m.loss.data;
		m.e.loss = fmax(m.e.loss, fabs(losses[s] - want) / want);
		if (fabs(losses[s] - want) > how->loss * want)
			fail_msg("%s: loss of step %d: %.9g, expected %.9g", name, s, losses[s], want);
		if (s == 0)
			check_grads(&g, &m, name);
		OK(vfm_optim_step(&m.optim, json_number_value(json_array_get(json_object_get(t, "lr"), (size_t)s)),
			s + 1, (struct vfm_tensor){0}, &err));
		m.e.norm = fmax(m.e.norm, fabs(*(float *)m.optim.norm.data - norm) / norm);
		if (fabs(*(float *)m.optim.norm.data - norm) > how->norm * norm)
			fail_msg("%s: gradient norm of step %d: %.9g, expected %.9g", name, s,
				(double)*(float *)m.optim.norm.data, norm);
	}
	for (size_t i = 0; i < m.ps.n; i++) {
		double e = rel_error(&g, "final", m.ps.p[i]->name, m.ps.master + m.ps.p[i]->off, m.ps.p[i]->n,
			how->dtype == VFM_BF16);

		/* without a norm of k, the gradient of its bias is only rounding; AdamW takes whole steps along it */
		if (how->dtype == VFM_BF16 && strstr(m.ps.p[i]->name, "refiner.") &&
			strstr(m.ps.p[i]->name, "qkv.bias"))
			continue;
		m.e.final = fmax(m.e.final, e);
		if (e > how->final)
			fail_msg("%s: final %s: relative error %g", name, m.ps.p[i]->name, e);
	}
	*weights = vfm_malloc((size_t)m.ps.n_flat * 4);
	memcpy(*weights, m.ps.master, (size_t)m.ps.n_flat * 4);
	for (int k = 0; k < PACKS; k++)
		pack_free(&q[k]);
	json_decref(g.j);
	vfm_ckpt_close(g.c);
	model_close(&m);
	return m.e;
}

static struct errors parity(const char *name, const struct how *how)
{
	double none[STEPS], other[STEPS];
	struct errors e;
	float *w, *w2;

	e = train(name, how, VFM_RECOMPUTE_NONE, none, &w);
	for (int rc = VFM_RECOMPUTE_SELECTIVE; rc < VFM_RECOMPUTE_MODES; rc++) {
		train(name, how, (enum vfm_recompute)rc, other, &w2);
		/* Recompute repeats the same arithmetic: equal to the last bit, over 20 steps. */
		assert_memory_equal(none, other, sizeof(none));
		free(w2);
	}
	free(w);
	return e;
}

/* A residual stream in bf16 is rounded at every gate: by how much that adds to the errors that bf16 has. */
static void parity_bf16(const char *name)
{
	struct errors a = parity(name, &bf16), b = parity(name, &bf16_residual);

	print_message("%s in bf16, residual fp32 and bf16: prediction %.1e %.1e, loss %.1e %.1e, gradients %.1e %.1e, "
		      "their norm %.1e %.1e, weights %.1e %.1e\n",
		name, a.pred, b.pred, a.loss, b.loss, a.grad, b.grad, a.norm, b.norm, a.final, b.final);
	assert_true(b.pred > 0 && b.pred != a.pred); /* it is another one */
}

static void test_f32(void **state)
{
	parity(*state, &f32);
}

static void test_bf16(void **state)
{
	parity_bf16(*state);
}

/* A rounding of bf16 may change which expert takes a token; without norms of q and k the roundings grow too much. */
static bool is_tested_in_bf16(const char *name)
{
	struct golden g = {0};
	bool tested;

	golden_open(&g, name);
	tested = !vfm_model_has_experts(&g.m) && g.m.qk_norm;
	json_decref(g.j);
	vfm_ckpt_close(g.c);
	return tested;
}

/* Every NAME.json of the folder. */
int main(void)
{
	struct CMUnitTest tests[2 * MAX_GOLDENS] = {0};
	glob_t found;
	char *pattern = vfm_strfmt("%s/*.json", folder());
	int n = 0, rc = glob(pattern, 0, NULL, &found), failed;

	if (rc != 0 || found.gl_pathc > MAX_GOLDENS) {
		fprintf(stderr, "%s: %s\n", pattern, rc ? "no golden files" : "too many");
		return 1;
	}
	for (size_t i = 0; i < found.gl_pathc; i++) {
		char *name = strrchr(found.gl_pathv[i], '/') + 1;

		name[strlen(name) - strlen(".json")] = '\0';
		tests[n++] = (struct CMUnitTest){name, test_f32, NULL, NULL, name};
		if (is_tested_in_bf16(name))
			tests[n++] = (struct CMUnitTest){vfm_strfmt("%s in bf16", name), test_bf16, NULL, NULL, name};
	}
	vfm_par_set_threads(1); /* the models are tiny */
	failed = _cmocka_run_group_tests("golden", tests, (size_t)n, NULL, NULL);
	for (int i = 0; i < n; i++)
		if (tests[i].test_func == test_bf16)
			free((char *)(uintptr_t)tests[i].name);
	globfree(&found);
	free(pattern);
	return failed;
}
