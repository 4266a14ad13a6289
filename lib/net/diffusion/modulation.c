/* modulation.c - one product for the modulation of several blocks, with shared tables and adapters. */
#include "net/diffusion/modulation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns the number of blocks of a full group. */
static int64_t size_of_group(const struct vfm_model_spec *m, const struct vfm_params *ps)
{
	const struct vfm_mesh *mesh = ps->mesh;
	int64_t bytes = 4 * vfm_model_arch(m)->n_mod * m->hidden * (m->adaln_lora ? m->adaln_lora : m->hidden), n;

	if (mesh->p.fsdp && mesh->shard->size > 1)
		return 1;
	if (mesh->world_size == 1)
		return m->layers;
	n = (mesh->p.bucket_mib << 20) / bytes;
	return n > 1 ? n : 1;
}

/* Returns whether the matrices of two layers that a product combines are both frozen, or both trained, and so their
 * biases. */
static bool joins_group(const struct vfm_params *ps, int64_t first, int64_t layer)
{
	static const char *const names[] = {"ada.weight", "ada.bias", "ada_a.weight"};
	char name[2][64];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(name[0], sizeof(name[0]), "blocks.%d.%s", (int)first, names[i]);
		snprintf(name[1], sizeof(name[1]), "blocks.%d.%s", (int)layer, names[i]);
		if (vfm_tuning_freezes(&ps->tuning, name[0]) != vfm_tuning_freezes(&ps->tuning, name[1]))
			return false;
	}
	return true;
}

static void declare_tables(
	struct vfm_modulation *mod, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int64_t first)
{
	struct vfm_pdesc table = {.ndim = 2, .shape = {mod->n_mod, m->hidden}};

	mod->table = vfm_calloc((size_t)mod->layers, sizeof(struct vfm_param *));
	for (int i = 0; i < mod->layers; i++)
		mod->table[i] = vfm_param_add(ps, unit, &table, VFM_INIT_NORMAL, 1 / sqrtf((float)m->hidden),
			"blocks.%d.scale_shift_table", (int)first + i);
}

static struct vfm_linear *declare_linears(const struct vfm_modulation *mod, struct vfm_params *ps,
	const struct vfm_linear_desc *d, const char *name, int64_t first)
{
	struct vfm_linear *l = vfm_calloc((size_t)mod->layers, sizeof(*l));

	for (int i = 0; i < mod->layers; i++)
		vfm_linear_declare(&l[i], ps, d, "blocks.%d.%s", (int)first + i, name);
	return l;
}

static void declare_parts(
	struct vfm_modulation *mod, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int64_t first)
{
	const int64_t h = m->hidden, r = m->adaln_lora;
	const struct vfm_linear_desc a = {.unit = unit, .in = h, .out = mod->parts * r, .no_bias = true, .few = true},
				     b = {.unit = unit,
					     .in = r,
					     .out = mod->n_mod / mod->parts * h,
					     .zero = true,
					     .no_bias = true,
					     .few = true};

	mod->a = declare_linears(mod, ps, &a, "ada_a", first);
	mod->b = vfm_calloc((size_t)(mod->layers * mod->parts), sizeof(*mod->b));
	for (int i = 0; i < mod->layers * mod->parts; i++)
		vfm_linear_declare(
			&mod->b[i], ps, &b, "blocks.%d.ada_b.%d", (int)first + i / mod->parts, i % mod->parts);
	vfm_linear_stack(&mod->a_all, mod->a, mod->layers);
}

void vfm_modulation_declare(struct vfm_modulation *mod, const struct vfm_model_spec *m, struct vfm_params *ps, int unit,
	int64_t first, int64_t end)
{
	int64_t h = m->hidden, r = m->adaln_lora, size = size_of_group(m, ps);
	int n_mod = vfm_model_n_mod(m, first);

	*mod = (struct vfm_modulation){.layers = 1, .n_mod = n_mod, .parts = 1, .hidden = h, .rank = r};
	while (mod->layers < size && first + mod->layers < end && vfm_model_n_mod(m, first + mod->layers) == n_mod &&
		joins_group(ps, first, first + mod->layers))
		mod->layers++;
	if (vfm_model_arch(m)->mod == VFM_MOD_TABLE) {
		declare_tables(mod, m, ps, unit, first);
	} else if (vfm_model_arch(m)->mod == VFM_MOD_LOW_RANK) {
		mod->parts = n_mod / 3;
		declare_parts(mod, m, ps, unit, first);
	} else if (r) {
		mod->a = declare_linears(mod, ps,
			&(struct vfm_linear_desc){.unit = unit, .in = h, .out = r, .no_bias = true, .few = true},
			"ada_a", first);
		mod->b = declare_linears(mod, ps,
			&(struct vfm_linear_desc){.unit = unit, .in = r, .out = n_mod * h, .zero = true, .few = true},
			"ada_b", first);
		vfm_linear_stack(&mod->a_all, mod->a, mod->layers);
	} else {
		mod->ada = declare_linears(mod, ps,
			&(struct vfm_linear_desc){.unit = unit, .in = h, .out = n_mod * h, .zero = true, .few = true},
			"ada", first);
		vfm_linear_stack(&mod->ada_all, mod->ada, mod->layers);
	}
}

void vfm_modulation_release(struct vfm_modulation *mod)
{
	free(mod->ada);
	free(mod->a);
	free(mod->b);
	free(mod->table);
	*mod = (struct vfm_modulation){0};
}

/* Returns [G, n_mod / parts * D], the sum of the shared modulation and addend i.  low: [G, layers * parts * rank]. */
static struct vfm_var *sum_with_shared(struct vfm_tape *t, const struct vfm_modulation *mod, int i,
	const struct vfm_modulation_in *in, struct vfm_var *low)
{
	struct vfm_var *x;

	if (mod->table)
		return vfm_g_add_row(t, in->shared, &mod->table[i]->var);
	x = vfm_linear(t, &mod->b[i], vfm_view_cols(t, low, i, mod->rank), VFM_ACT_NONE, VFM_F32);
	return vfm_g_add(t, x, in->shared);
}

struct vfm_var **vfm_modulation(
	struct vfm_tape *t, const struct vfm_modulation *mod, const struct vfm_modulation_in *in)
{
	struct vfm_var **out = vfm_tape_alloc(t, (size_t)(mod->layers * mod->n_mod) * sizeof(*out)), *all = NULL,
		       *low = NULL;
	const int n = mod->n_mod / mod->parts;

	if (mod->ada)
		all = vfm_linears(t, &mod->ada_all, in->sc, VFM_F32);
	else if (mod->a)
		low = vfm_linears(t, &mod->a_all, in->sc, mod->a->w->ps->dtype);
	for (int i = 0; i < mod->layers * mod->parts; i++) {
		struct vfm_var *m = all ? all : sum_with_shared(t, mod, i, in, low);

		for (int k = 0; k < n; k++)
			out[i * n + k] = vfm_view_cols(t, m, (all ? i * n : 0) + k, mod->hidden);
	}
	return out;
}

int vfm_modulation_sources(struct vfm_var *const *mod, int n_mod, struct vfm_var *sources[VFM_MODULATION_SOURCES])
{
	int n = 0;

	for (int i = 0; i < n_mod; i++)
		if (!n || sources[n - 1] != mod[i]->parent)
			sources[n++] = mod[i]->parent;
	return n;
}
