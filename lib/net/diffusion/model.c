/* model.c - embedders, conditioning and head around the blocks, and the forward of a chunk. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/ops/tensor.h"
#include "net/diffusion/block.h"
#include "net/diffusion/embed.h"
#include "net/diffusion/model.h"
#include "net/diffusion/modulation.h"
#include "net/tape/region.h"
#include "spec/layout/schedule.h"

static const float TIME_EPS = 1e-6f;         /* of the norm of the time features */
enum { UNIT_COND, UNIT_PATCH, UNIT_BLOCKS }; /* followed by the blocks and the head */

struct head_chunk {
	int64_t first, end; /* layers */
	bool is_first, is_last;
};

struct vfm_model {
	struct vfm_model_spec m;
	const struct vfm_arch *arch;
	struct vfm_params *ps;
	enum vfm_dtype residual;
	struct vfm_linear patch, t0, t2, ada_shared, ada_a, ada, out; /* ada_a only with VFM_MOD_LOW_RANK */
	struct vfm_linear vec[2], guidance[2];                        /* w NULL: the conditioning adds none */
	struct vfm_param *t_norm;                                     /* with VFM_MOD_LOW_RANK */
	struct vfm_embedders embed;                /* with joint attention, only on the first pp stage */
	struct vfm_param *head_shift, *head_scale; /* with head_table, instead of ada */
	struct vfm_param *pos[3];                  /* tables of t, h, w; NULL without learned positions */
	struct vfm_block *block;                   /* [layers]; only the layers of this pp stage are declared */
	struct vfm_modulation *mod;                /* [layers] of the group that begins with the layer */
	struct head_chunk *chunk;
	int chunks;
};

static int unit_of(int64_t layer)
{
	return UNIT_BLOCKS + (int)layer;
}

/* With VFM_MOD_LOW_RANK the last layer is the shared modulation, which is 0 at first like the others. */
static void declare_time(struct vfm_model *d)
{
	const int64_t h = d->m.hidden;
	const bool low = d->arch->mod == VFM_MOD_LOW_RANK, no_bias = d->arch->no_bias_ends;
	const struct vfm_linear_desc
		first = {.in = low ? h : VFM_TIME_FEATURES, .out = h, .no_bias = no_bias, .few = true},
		second = {.in = h, .out = low ? 3 * h : h, .zero = low, .no_bias = no_bias, .few = true};

	vfm_linear_declare(&d->t0, d->ps, &first, "t_mlp.0");
	vfm_linear_declare(&d->t2, d->ps, &second, "t_mlp.2");
	if (low)
		d->t_norm = vfm_vector_declare(d->ps, UNIT_COND, h, VFM_INIT_ONE, "t_norm.weight");
}

/* Two layers with a SiLU, whose result is added to the conditioning. */
static void declare_added(struct vfm_model *d, struct vfm_linear l[2], int64_t in, const char *name)
{
	const struct vfm_linear_desc first = {.in = in, .out = d->m.hidden, .few = true},
				     second = {.in = d->m.hidden, .out = d->m.hidden, .few = true};

	vfm_linear_declare(&l[0], d->ps, &first, "%s.0", name);
	vfm_linear_declare(&l[1], d->ps, &second, "%s.2", name);
}

static void declare_conditioning(struct vfm_model *d)
{
	const struct vfm_model_spec *m = &d->m;
	int64_t h = m->hidden;

	vfm_params_all_pp_stages(d->ps, true);
	declare_time(d);
	if (m->text2_dim && d->arch->text2_vector)
		declare_added(d, d->vec, m->text2_dim, "vec_mlp");
	if (m->guidance_dim)
		declare_added(d, d->guidance, m->guidance_dim, "guidance_mlp");
	if (!d->arch->joint)
		vfm_embedders_declare(&d->embed, m, d->ps, UNIT_COND);
	if (vfm_model_has_shared_mod(m)) {
		struct vfm_linear_desc ada = {
			.in = h, .out = d->arch->n_mod * h, .zero = d->arch->mod == VFM_MOD_MATRIX, .few = true};

		vfm_linear_declare(&d->ada_shared, d->ps, &ada, "ada_shared");
	}
	for (int i = 0; d->arch->pos == VFM_POS_LEARNED && i < 3; i++) {
		struct vfm_pdesc table = {.ndim = 2, .shape = {m->pos_max[i], h}};

		d->pos[i] = vfm_param_add(d->ps, UNIT_COND, &table, VFM_INIT_NORMAL, 0.02f, "pos.%c", "thw"[i]);
	}
	vfm_params_all_pp_stages(d->ps, false);
}

static void declare_head(struct vfm_model *d, int unit)
{
	const int64_t h = d->m.hidden;
	const struct vfm_pdesc row = {.ndim = 1, .shape = {h}};
	const float std = 1 / sqrtf((float)h);
	struct vfm_linear_desc ada = {
		.unit = unit, .in = h, .out = 2 * h, .zero = true, .no_bias = d->arch->no_bias_ends, .few = true};

	if (d->arch->mod == VFM_MOD_LOW_RANK) {
		ada.in = d->m.adaln_lora;
		vfm_linear_declare(&d->ada_a, d->ps,
			&(struct vfm_linear_desc){.unit = unit, .in = h, .out = ada.in, .no_bias = true, .few = true},
			"ada_a");
		vfm_linear_declare(&d->ada, d->ps, &ada, "ada_b");
	} else if (d->arch->head_table) {
		d->head_shift = vfm_param_add(d->ps, unit, &row, VFM_INIT_NORMAL, std, "head_shift");
		d->head_scale = vfm_param_add(d->ps, unit, &row, VFM_INIT_NORMAL, std, "head_scale");
	} else {
		vfm_linear_declare(&d->ada, d->ps, &ada, "ada");
	}
	vfm_linear_declare(&d->out, d->ps,
		&(struct vfm_linear_desc){.unit = unit,
			.in = h,
			.out = vfm_model_patch_dim(&d->m),
			.zero = true,
			.no_bias = d->arch->no_bias_ends},
		"out");
}

struct vfm_model *vfm_model_new(const struct vfm_model_spec *m, struct vfm_params *ps)
{
	const struct vfm_mesh *mesh = ps->mesh;
	struct vfm_model *d = vfm_calloc(1, sizeof(*d));
	const struct vfm_linear_desc patch = {.unit = UNIT_PATCH,
		.in = vfm_model_input_dim(m),
		.out = m->hidden,
		.no_bias = vfm_model_arch(m)->no_bias_ends};
	int pp = mesh->size[VFM_AX_PP], stage = mesh->coord[VFM_AX_PP];

	d->m = *m;
	d->arch = vfm_model_arch(m);
	d->ps = ps;
	d->residual = VFM_F32;
	d->chunks = (int)mesh->p.vpp;
	d->chunk = vfm_calloc((size_t)d->chunks, sizeof(*d->chunk));
	d->block = vfm_calloc((size_t)m->layers, sizeof(*d->block));
	d->mod = vfm_calloc((size_t)m->layers, sizeof(*d->mod));
	for (int c = 0; c < d->chunks; c++) {
		struct head_chunk *k = &d->chunk[c];

		vfm_pp_stage_layers(m, pp * d->chunks, c * pp + stage, &k->first, &k->end);
		k->is_first = c == 0 && stage == 0;
		k->is_last = c == d->chunks - 1 && stage == pp - 1;
	}
	declare_conditioning(d);
	if (d->chunk[0].is_first) {
		vfm_linear_declare(&d->patch, ps, &patch, "patch");
		if (d->arch->joint)
			vfm_embedders_declare(&d->embed, m, ps, UNIT_PATCH);
	}
	for (int c = 0; c < d->chunks; c++)
		for (int64_t i = d->chunk[c].first, group = i; i < d->chunk[c].end; i++) {
			if (i == group) {
				vfm_modulation_declare(&d->mod[i], m, ps, unit_of(i), i, d->chunk[c].end);
				group += d->mod[i].layers;
			}
			vfm_block_declare(&d->block[i], m, ps, unit_of(i), i);
		}
	if (d->chunk[d->chunks - 1].is_last)
		declare_head(d, unit_of(m->layers));
	return d;
}

void vfm_model_free(struct vfm_model *d)
{
	if (!d)
		return;
	for (int64_t i = 0; i < d->m.layers; i++)
		vfm_modulation_release(&d->mod[i]);
	vfm_embedders_release(&d->embed);
	free(d->mod);
	free(d->block);
	free(d->chunk);
	free(d);
}

void vfm_model_set_residual(struct vfm_model *d, enum vfm_dtype dtype)
{
	d->residual = dtype;
}

int64_t vfm_model_width(const struct vfm_model *d)
{
	return d->m.hidden;
}

enum vfm_dtype vfm_model_residual(const struct vfm_model *d)
{
	return d->residual;
}

int vfm_model_chunks(const struct vfm_model *d)
{
	return d->chunks;
}

bool vfm_model_is_first(const struct vfm_model *d, int chunk)
{
	return d->chunk[chunk].is_first;
}

bool vfm_model_is_last(const struct vfm_model *d, int chunk)
{
	return d->chunk[chunk].is_last;
}

/* ---- forward ---- */

/* Arguments of a block run; allocated on the tape until the backward of the block. */
struct block_run {
	const struct vfm_model *d;
	int64_t layer;
	struct vfm_block_in in;
};

static struct vfm_var *run_block(struct vfm_tape *t, void *arg)
{
	const struct block_run *r = arg;

	return vfm_block(t, &r->d->block[r->layer], &r->in);
}

/* What modulates blocks and head. */
struct conditioning {
	struct vfm_var *c, *sc; /* [G,D] the conditioning; silu of it */
	struct vfm_var *shared; /* [G, …] the modulation that blocks share; NULL: none */
};

static struct vfm_var *added(struct vfm_tape *t, const struct vfm_linear l[2], struct vfm_var *x)
{
	return vfm_linear(t, &l[1], vfm_linear(t, &l[0], x, VFM_ACT_SILU, VFM_F32), VFM_ACT_NONE, VFM_F32);
}

static struct conditioning make_conditioning(struct vfm_model *d, struct vfm_tape *t, const struct vfm_model_in *in)
{
	const bool low = d->arch->mod == VFM_MOD_LOW_RANK;
	struct vfm_norm_args norm = {.kind = VFM_NORM_RMS, .eps = TIME_EPS, .out = VFM_F32};
	struct vfm_var *f = vfm_g_timestep(t, in->t_cond, low ? d->m.hidden : VFM_TIME_FEATURES, 10000.0f, VFM_F32);
	struct conditioning s = {0};

	s.c = vfm_linear(t, &d->t0, f, VFM_ACT_SILU, VFM_F32);
	s.c = vfm_linear(t, &d->t2, s.c, VFM_ACT_NONE, VFM_F32);
	if (low) {
		norm.weight = &d->t_norm->var;
		s.shared = s.c;
		s.c = vfm_g_norm(t, f, &norm);
	}
	if (d->vec[0].w)
		s.c = vfm_g_add(t, s.c, added(t, d->vec, vfm_input(t, in->text2)));
	if (d->guidance[0].w) { /* one row, for the segments that are predicted */
		f = vfm_g_timestep(t, in->guidance, d->m.guidance_dim, 10000.0f, VFM_F32);
		s.c = vfm_g_add(t, s.c, vfm_g_index_select(t, added(t, d->guidance, f), in->guided));
	}
	if (d->m.pooled_text)
		s.c = vfm_g_add(t, s.c, vfm_embed_text(t, &d->embed, in->text_mean, VFM_F32));
	s.sc = vfm_g_act(t, s.c, VFM_ACT_SILU);
	if (vfm_model_has_shared_mod(&d->m))
		s.shared = vfm_linear(t, &d->ada_shared, s.sc, VFM_ACT_NONE, VFM_F32);
	return s;
}

/* Returns the residual stream before the blocks. */
static struct vfm_var *patches(struct vfm_model *d, struct vfm_tape *t, const struct vfm_model_in *in)
{
	const struct vfm_tensor *more = vfm_has(&in->given) ? &in->given : &in->cond;
	struct vfm_var *h, *text = NULL;

	vfm_unit_begin(t, d->ps, UNIT_PATCH);
	h = vfm_has(more) ? vfm_g_join_inputs(t, &in->x, more, in->x.dtype) : vfm_input(t, in->x);
	h = vfm_linear(t, &d->patch, h, VFM_ACT_NONE, d->residual);
	if (d->arch->joint)
		text = vfm_embed_rows(t, &d->embed, in, d->residual);
	vfm_unit_end(t, d->ps, UNIT_PATCH);
	if (vfm_has(&in->pos_embed))
		h = vfm_g_add(t, h, vfm_input(t, in->pos_embed));
	return text ? vfm_g_join_rows(t, (struct vfm_var *[]){h, text}, &in->joint.own) : h;
}

/* Returns the head's shift and scale, [G, 2 D]. */
static struct vfm_var *head_modulation(struct vfm_model *d, struct vfm_tape *t, const struct conditioning *s)
{
	struct vfm_var *m;

	if (d->arch->mod != VFM_MOD_LOW_RANK)
		return vfm_linear(t, &d->ada, s->sc, VFM_ACT_NONE, VFM_F32);
	m = vfm_linear(t, &d->ada_a, s->sc, VFM_ACT_NONE, d->ps->dtype);
	m = vfm_linear(t, &d->ada, m, VFM_ACT_NONE, VFM_F32);
	return vfm_g_add(t, m, vfm_view_cols(t, s->shared, 0, 2 * d->m.hidden));
}

static struct vfm_var *head(struct vfm_model *d, struct vfm_tape *t, const struct vfm_model_in *in, struct vfm_var *h,
	const struct conditioning *s)
{
	struct vfm_norm_args norm = {.kind = d->arch->head_layer_norm ? VFM_NORM_LAYER : vfm_block_norm(d->arch),
		.eps = (float)d->m.norm_eps,
		.seqs = &in->segs,
		.out = d->ps->dtype};
	struct vfm_var *m, *y;

	vfm_unit_begin(t, d->ps, unit_of(d->m.layers));
	if (d->arch->head_table) {
		norm.shift = vfm_g_add_row(t, s->c, &d->head_shift->var);
		norm.scale = vfm_g_add_row(t, s->c, &d->head_scale->var);
	} else {
		m = head_modulation(d, t, s);
		norm.shift = vfm_view_cols(t, m, 0, d->m.hidden);
		norm.scale = vfm_view_cols(t, m, 1, d->m.hidden);
	}
	y = vfm_g_norm(t, vfm_stream_part(t, h, in, 0), &norm);
	y = vfm_linear(t, &d->out, y, VFM_ACT_NONE, VFM_F32);
	vfm_unit_end(t, d->ps, unit_of(d->m.layers));
	return y;
}

/* Ends the scope of the residual stream, except its newest value and the modulation, of n_mod vectors each, of the next
 * n blocks. */
static void end_block_scope(
	struct vfm_tape *t, int stream, struct vfm_var *h, struct vfm_var **mod, int n_mod, int64_t n)
{
	struct vfm_var **keep = vfm_calloc((size_t)n * VFM_MODULATION_SOURCES + 1, sizeof(*keep));
	int k = 0;

	for (int64_t i = 0; i < n; i++) {
		struct vfm_var *x[VFM_MODULATION_SOURCES];
		const int sources = vfm_modulation_sources(mod + i * n_mod, n_mod, x);

		for (int j = 0; j < sources; j++)
			if (!k || keep[k - 1] != x[j])
				keep[k++] = x[j];
	}
	keep[k++] = h;
	vfm_scope_end_keep(t, stream, keep, k);
	free(keep);
}

/* Runs the blocks of a chunk; in->h is the residual stream. */
static struct vfm_var *run_blocks(struct vfm_model *d, struct vfm_tape *t, const struct vfm_block_in *in,
	const struct vfm_modulation_in *cond, const struct head_chunk *k, int stream, const struct vfm_keeps *keeps)
{
	static const struct vfm_keeps all_kept = {VFM_KEEP_ALL, 0};
	struct vfm_var *h = in->h, **mod = NULL;
	int64_t left = 0; /* blocks of the group */

	for (int64_t i = k->first, n_mod; i < k->end; i++, mod += n_mod) {
		struct block_run *r = vfm_tape_alloc(t, sizeof(*r));
		struct vfm_var *reads[4 + VFM_MODULATION_SOURCES] = {h, in->ctx, in->pos, in->img};
		int n;

		n_mod = vfm_model_n_mod(&d->m, i);
		vfm_unit_begin(t, d->ps, unit_of(i));
		if (d->mod[i].layers) {
			left = d->mod[i].layers;
			mod = vfm_modulation(t, &d->mod[i], cond);
		}
		*r = (struct block_run){d, i, *in};
		r->in.h = h;
		r->in.mod = mod;
		n = 4 + vfm_modulation_sources(mod, (int)n_mod, reads + 4);
		h = vfm_region(t, keeps ? keeps[i] : all_kept, run_block, r, reads, n);
		vfm_unit_end(t, d->ps, unit_of(i));
		end_block_scope(t, stream, h, mod + n_mod, (int)n_mod, --left);
	}
	return h;
}

struct vfm_var *vfm_model_forward(struct vfm_model *d, struct vfm_tape *t, const struct vfm_model_in *in, int chunk,
	struct vfm_var *h, const struct vfm_keeps *keeps)
{
	const struct head_chunk *k = &d->chunk[chunk];
	int all = vfm_scope_begin(t), stream;
	struct vfm_var *ctx = NULL, *img = NULL, *pos = NULL;
	struct conditioning s;

	vfm_unit_begin(t, d->ps, UNIT_COND);
	s = make_conditioning(d, t, in);
	if (vfm_model_has_cross(&d->m))
		ctx = vfm_embed_text(t, &d->embed, in->text, d->ps->dtype);
	if (d->m.image_dim && !d->arch->joint)
		img = vfm_embed_image(t, &d->embed, in->image, d->ps->dtype);
	if (d->arch->pos == VFM_POS_LEARNED)
		pos = vfm_g_embed3(t, &d->pos[0]->var, &d->pos[1]->var, &d->pos[2]->var, in->pos, VFM_F32);
	vfm_unit_end(t, d->ps, UNIT_COND);

	stream = vfm_scope_begin(t); /* scope of the residual stream: keeps only its newest value */
	if (k->is_first)
		h = patches(d, t, in);
	h = run_blocks(d, t, &(struct vfm_block_in){.in = in, .h = h, .ctx = ctx, .img = img, .pos = pos},
		&(struct vfm_modulation_in){s.sc, s.shared}, k, stream, keeps);
	if (k->is_last)
		h = head(d, t, in, h, &s);
	vfm_scope_end(t, all, h);
	return h;
}
