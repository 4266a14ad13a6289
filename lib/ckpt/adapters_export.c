/* Adapters of a checkpoint as files of other programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/json.h"
#include "io/names.h"

struct adapter_layout {
	const char *name, *names; /* of the layout of layers */
	const char *prefix, *a, *b;
	bool alpha;  /* tensors LAYER.alpha */
	bool scaled; /* B holds alpha / rank */
	bool flat;   /* '_' for '.' in the names of layers */
	bool kohya;  /* metadata of kohya's scripts */
};

static const struct adapter_layout adapter_layouts[] = {
	{"peft", "diffusers", "base_model.model.", "lora_A", "lora_B", .alpha = false},
	{"diffusers", "diffusers", "transformer.", "lora_A", "lora_B", .scaled = true},
	{"original", "original", "diffusion_model.", "lora_A", "lora_B", .alpha = true},
	{"comfyui", "original", "diffusion_model.", "lora_A", "lora_B", .alpha = true},
	{"kohya", "original", "lora_unet_", "lora_down", "lora_up", .alpha = true, .flat = true, .kohya = true},
};

struct adapters_export {
	struct ckpt_exports files;
	const struct vfm_adapters_export *x;
	struct vfm_model_spec m;
	const struct vfm_foreign *f;
	const struct adapter_layout *as;
	int layout; /* of the names of layers */
	double alpha;
	int64_t rank;
	int64_t most;           /* groups of ours in one of their layers (struct merged_adapter) */
	json_t *targets;        /* names of layers, for PEFT */
	json_t *ranks, *alphas; /* of the layers with several groups, for PEFT */
	struct ckpt_faults unknown;
};

/* Returns the name of a tensor of a layer, which the arena owns. */
static const char *exported_name(struct adapters_export *j, const char *layer, const char *suffix)
{
	char *name = vfm_strfmt("%s%s", j->as->prefix, layer), *full;
	const char *out;

	for (char *p = name; j->as->flat && *p; p++)
		if (*p == '.')
			*p = '_';
	full = vfm_strfmt("%s%s", name, suffix);
	out = vfm_arena_strdup(&j->files.arena, full);
	free(full);
	free(name);
	return out;
}

/* ---- the adapter of one of their layers ---- */

/* The adapter of one of our layers: A [groups * rank, in] and B [out, rank], group k of whose rows has the k-th A. */
struct own_adapter {
	const struct vfm_ckpt_tensor *a, *b; /* NULL: none */
	int64_t rows;                        /* of B that are exported */
};

/* A group of one of our adapters, whose product covers columns [col, col + in) of their layer. */
struct adapter_group {
	int ours;
	int64_t k, col;
};

struct adapter_row { /* of their B: row `own` of a group's B */
	int64_t row, own;
	int group;
};

/* Their layer W may hold several of our groups, such as [q | k | v] or columns [proj | fc2].  Its adapter then has all
 * their ranks:
 *
 *   A = rows [0 | A_g | 0], the groups one after another;  B[row] = [0 | B_g[own] | 0]
 */
struct merged_adapter {
	const char *name; /* of the layer */
	int64_t rows, cols;
	struct adapter_group *group;
	struct adapter_row *row; /* ascending by row, then by group */
	size_t n_groups, groups_cap, n_rows, rows_cap;
};

static int index_of_group(struct merged_adapter *m, const struct adapter_group *g)
{
	for (size_t i = 0; i < m->n_groups; i++)
		if (m->group[i].ours == g->ours && m->group[i].k == g->k)
			return m->group[i].col == g->col ? (int)i : -1;
	vfm_grow(&m->group, &m->groups_cap, m->n_groups + 1, sizeof(*m->group));
	m->group[m->n_groups] = *g;
	return (int)m->n_groups++;
}

/* Adds the rows of W that a copy gives.  Returns false if they are not whole rows of ours in rows of theirs. */
static bool merge_copy(
	struct merged_adapter *m, const struct vfm_foreign_copy *c, const struct own_adapter *own, int64_t rank)
{
	const int64_t in = own->a->shape[1], out = own->b->shape[0], groups = own->a->shape[0] / rank;

	if (c->a % in || c->n % in || c->b % m->cols + in > m->cols || (c->n > in && in != m->cols))
		return false;
	for (int64_t i = 0; i < c->n / in; i++) {
		const int64_t row = c->a / in + i;
		const struct adapter_group g = {c->ours, row / (out / groups), c->b % m->cols};
		const int at = index_of_group(m, &g);

		if (at < 0)
			return false;
		vfm_grow(&m->row, &m->rows_cap, m->n_rows + 1, sizeof(*m->row));
		m->row[m->n_rows++] = (struct adapter_row){c->b / m->cols + i, row, at};
	}
	return true;
}

static int adapter_row_order(const void *a, const void *b)
{
	const struct adapter_row *x = a, *y = b;

	return x->row != y->row ? (x->row > y->row) - (x->row < y->row) : x->group - y->group;
}

/* The parts of a tensor; neighbours are joined. */
struct part_list {
	struct ckpt_export_part *v;
	size_t n, cap;
};

/* Appends elements [a, a + n) of src, or n zeros if it is NULL. */
static void append_part(struct part_list *l, const struct vfm_ckpt_tensor *src, int64_t a, int64_t n, double scale)
{
	struct ckpt_export_part *last = l->n ? &l->v[l->n - 1] : NULL;

	if (n == 0)
		return;
	if (last && last->src == src && (!src || last->b == a)) {
		last->b += n;
		return;
	}
	vfm_grow(&l->v, &l->cap, l->n + 1, sizeof(*l->v));
	l->v[l->n++] = (struct ckpt_export_part){src, src ? a : 0, src ? a + n : n, src ? scale : 0};
}

/* Adds A (first) or B with these parts, which it frees. */
static void add_exported(struct adapters_export *j, const char *layer, bool first, const struct vfm_ckpt_tensor *like,
	const int64_t shape[2], struct part_list *l)
{
	struct ckpt_export_part *p = vfm_arena_alloc(&j->files.arena, l->n * sizeof(*p));
	char *suffix = vfm_strfmt(".%s.weight", first ? j->as->a : j->as->b);

	memcpy(p, l->v, l->n * sizeof(*p));
	ckpt_export_add_parts(
		&j->files, exported_name(j, layer, suffix), ckpt_out_dtype(like, j->x->dtype), 2, shape, p);
	free(suffix);
	free(l->v);
	*l = (struct part_list){0};
}

/* Adds A and B of a layer, with zeros up to `rank`. */
static void add_merged(
	struct adapters_export *j, const struct merged_adapter *m, const struct own_adapter *own, int64_t rank)
{
	const double scale = j->as->scaled ? j->alpha / (double)j->rank : 1;
	const struct own_adapter *any = &own[m->group[0].ours];
	struct part_list l = {0};
	size_t at = 0;

	for (size_t i = 0; i < m->n_groups; i++) {
		const struct adapter_group *g = &m->group[i];
		const int64_t in = own[g->ours].a->shape[1];

		for (int64_t r = 0; r < j->rank; r++) {
			append_part(&l, NULL, 0, g->col, 0);
			append_part(&l, own[g->ours].a, (g->k * j->rank + r) * in, in, 1);
			append_part(&l, NULL, 0, m->cols - g->col - in, 0);
		}
	}
	append_part(&l, NULL, 0, (rank - (int64_t)m->n_groups * j->rank) * m->cols, 0);
	add_exported(j, m->name, true, any->a, (int64_t[]){rank, m->cols}, &l);
	for (int64_t row = 0; row < m->rows; row++) {
		int64_t column = 0;

		for (; at < m->n_rows && m->row[at].row == row; at++) {
			const int64_t begin = m->row[at].group * j->rank;

			append_part(&l, NULL, 0, begin - column, 0);
			append_part(
				&l, own[m->group[m->row[at].group].ours].b, m->row[at].own * j->rank, j->rank, scale);
			column = begin + j->rank;
		}
		append_part(&l, NULL, 0, rank - column, 0);
	}
	add_exported(j, m->name, false, any->b, (int64_t[]){m->rows, rank}, &l);
}

/* ---- all layers ---- */

/* Sets own [map->n_ours] to the adapters of the checkpoint; those of unknown layers are faults. */
static void find_own_adapters(struct adapters_export *j, const struct vfm_foreign_map *map, struct own_adapter *own)
{
	static const char *const suffixes[] = {".lora_A.weight", ".lora_B.weight"};
	const struct vfm_ckpt *c = j->files.c;
	struct vfm_names names = {0};

	for (int i = 0; i < map->n_ours; i++)
		vfm_names_add(&names, map->ours[i].name);
	for (int i = 0; i < c->n; i++) {
		const char *name = vfm_ckpt_name_in(c, j->x->part, &c->t[i]);
		int64_t at = -1;
		int kind = 0;

		if (!name)
			continue;
		for (int k = 0; k < 2; k++)
			if (vfm_name_ends(name, suffixes[k])) {
				char *weight =
					vfm_strfmt("%.*s.weight", (int)(strlen(name) - strlen(suffixes[k])), name);

				kind = k;
				at = vfm_names_find(&names, weight);
				free(weight);
			}
		if (at < 0)
			ckpt_fault_add(&j->unknown, c->t[i].name, "");
		else
			*(kind ? &own[at].b : &own[at].a) = &c->t[i];
	}
	vfm_names_release(&names);
}

static bool fits_rank(const struct own_adapter *o, int64_t rank)
{
	return o->a && o->b && rank > 0 && o->a->ndim == 2 && o->b->ndim == 2 && o->b->shape[1] == rank &&
		o->a->shape[0] >= rank && o->a->shape[0] % rank == 0 && o->a->shape[1] > 0 &&
		o->b->shape[0] % (o->a->shape[0] / rank) == 0;
}

/* Fills m with the adapter of their tensor; returns false if none of ours belongs to it. */
static bool merge_adapters(struct adapters_export *j, struct merged_adapter *m, const struct vfm_foreign_tensor *t,
	const struct vfm_foreign_copy *copy, size_t n, struct own_adapter *own)
{
	*m = (struct merged_adapter){.rows = t->shape[0], .cols = t->shape[1]};
	if (t->ndim != 2 || !vfm_name_ends(t->name, ".weight"))
		return false;
	for (size_t i = 0; i < n; i++) {
		struct own_adapter *o = &own[copy[i].ours];

		if (fits_rank(o, j->rank) && merge_copy(m, &copy[i], o, j->rank))
			o->rows += copy[i].n / o->a->shape[1];
	}
	if (m->n_rows)
		qsort(m->row, m->n_rows, sizeof(*m->row), adapter_row_order);
	return m->n_groups > 0;
}

static int64_t most_groups(const struct merged_adapter *m, int n)
{
	int64_t most = 1;

	for (int i = 0; i < n; i++)
		most = (int64_t)m[i].n_groups > most ? (int64_t)m[i].n_groups : most;
	return most;
}

/* Adds all layers.  Where the files name one rank for all of them, layers with fewer groups get zeros. */
static void add_layers(struct adapters_export *j, const struct merged_adapter *m, int n, const struct own_adapter *own)
{
	j->most = most_groups(m, n);
	for (int i = 0; i < n; i++) {
		const int64_t groups = j->as->scaled ? j->most : (int64_t)m[i].n_groups;
		const double alpha = j->alpha * (double)groups;

		if (!m[i].n_groups)
			continue;
		add_merged(j, &m[i], own, groups * j->rank);
		if (j->as->alpha)
			ckpt_export_add(&j->files, exported_name(j, m[i].name, ".alpha"), VFM_F32, 0, (int64_t[]){0},
				(struct ckpt_export_part){NULL, 0, 1, alpha});
		json_array_append_new(j->targets, json_string(m[i].name));
		if (groups > 1 && !j->as->scaled) {
			json_object_set_new(j->ranks, m[i].name, json_integer(groups * j->rank));
			json_object_set_new(j->alphas, m[i].name, json_real(alpha));
		}
	}
}

static int report_unknown(struct adapters_export *j, struct vfm_err *err)
{
	const char *path = j->files.c->path;
	struct vfm_buf b = {0};
	int rc = 0;

	ckpt_faults_report(&b, &j->unknown, "that no adapter of another program holds");
	if (b.len)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: %s", path, b.data);
	else if (!j->files.n)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", path, j->x->part);
	vfm_buf_release(&b);
	return rc;
}

static int list_adapters(struct adapters_export *j, struct vfm_err *err)
{
	struct vfm_foreign_map map;
	struct merged_adapter *m;
	struct own_adapter *own;
	size_t *first;

	vfm_foreign_expand(&map, &j->m, j->layout);
	first = vfm_foreign_order_copies(&map);
	own = vfm_calloc((size_t)map.n_ours, sizeof(*own));
	m = vfm_calloc((size_t)map.n_theirs, sizeof(*m));
	find_own_adapters(j, &map, own);
	for (int i = 0; i < map.n_theirs; i++) {
		const char *name = map.theirs[i].name;

		if (merge_adapters(j, &m[i], &map.theirs[i], &map.copy[first[i]], first[i + 1] - first[i], own))
			m[i].name = memcpy(vfm_arena_alloc(&j->files.arena, strlen(name)), name,
				strlen(name) - strlen(".weight")); /* zeroed */
	}
	for (int i = 0; i < map.n_ours; i++) {
		const struct own_adapter *o = &own[i];

		if ((o->a || o->b) && (!o->a || !o->b || o->rows != o->b->shape[0]))
			ckpt_fault_add(&j->unknown, (o->a ? o->a : o->b)->name, "");
	}
	add_layers(j, m, map.n_theirs, own);
	for (int i = 0; i < map.n_theirs; i++) {
		free(m[i].group);
		free(m[i].row);
	}
	free(m);
	free(own);
	free(first);
	vfm_foreign_map_release(&map);
	return report_unknown(j, err);
}

static int write_adapters(struct adapters_export *j, const char *path, struct vfm_err *err)
{
	/* The keys that diffusers makes a LoraConfig from.  Some of its calls drop the metadata, so that B holds alpha
	 * / rank. */
	const int64_t rank = j->rank * j->most;
	json_t *o = json_pack("{s:I, s:f, s:O, s:f, s:s, s:b}", "transformer.r", (json_int_t)rank,
		"transformer.lora_alpha", (double)rank, "transformer.target_modules", j->targets,
		"transformer.lora_dropout", 0.0, "transformer.bias", "none", "transformer.use_rslora", 0);
	char *dim = vfm_strfmt("%lld", (long long)j->rank), *alpha = vfm_strfmt("%.9g", j->alpha);
	struct vfm_buf text = {0};
	const char *meta[4][2] = {{"format", "pt"}};
	size_t n = 1;
	int rc;

	vfm_json_text(&text, o, 0);
	json_decref(o);
	if (j->as->scaled)
		memcpy(meta[n++], (const char *[]){CKPT_META_LORA, text.data}, sizeof(meta[0]));
	if (j->as->kohya) {
		memcpy(meta[n++], (const char *[]){"ss_network_dim", dim}, sizeof(meta[0]));
		memcpy(meta[n++], (const char *[]){"ss_network_alpha", alpha}, sizeof(meta[0]));
		memcpy(meta[n++], (const char *[]){"ss_network_module", j->f->lora_module}, sizeof(meta[0]));
	}
	rc = ckpt_export_write(&j->files, j->files.t, j->files.n, meta, n, path, err);
	vfm_buf_release(&text);
	free(dim);
	free(alpha);
	return rc;
}

static int write_peft(struct adapters_export *j, struct vfm_err *err)
{
	char *model = vfm_strfmt("%s/adapter_model.safetensors", j->x->out);
	json_t *o = json_pack("{s:s, s:n, s:I, s:f, s:i, s:s, s:b, s:b, s:O, s:O, s:O, s:n}", "peft_type", "LORA",
		"task_type", "r", (json_int_t)j->rank, "lora_alpha", j->alpha, "lora_dropout", 0, "bias", "none",
		"use_rslora", 0, "inference_mode", 1, "target_modules", j->targets, "rank_pattern", j->ranks,
		"alpha_pattern", j->alphas, "base_model_name_or_path");
	int rc = vfm_mkdir_p(j->x->out, err);

	if (rc == 0)
		rc = write_adapters(j, model, err);
	if (rc == 0)
		rc = vfm_json_save(j->x->out, CKPT_PEFT_CONFIG, o, 2, err);
	json_decref(o);
	free(model);
	return rc;
}

static int find_adapter_layout(struct adapters_export *j, struct vfm_err *err)
{
	const json_t *model = json_object_get(j->files.c->config, "model");
	const char *arch = json_string_value(json_object_get(model, "arch"));
	const struct vfm_arch *a = vfm_arch_find(arch);

	j->f = a ? a->foreign : NULL;
	if (!j->f)
		return vfm_fail(err, VFM_EUSAGE, "%s: no other program has models of model.arch '%s'", j->files.c->path,
			arch ? arch : "?");
	TRY(ckpt_model_spec(j->files.c, &j->m, err));
	for (size_t i = 0; i < sizeof(adapter_layouts) / sizeof(adapter_layouts[0]); i++) {
		j->as = &adapter_layouts[i];
		if (strcmp(j->as->name, j->x->layout) != 0 || (j->as->kohya && !j->f->lora_module))
			continue;
		while (j->layout < j->f->n_layouts && strcmp(j->f->layout[j->layout].name, j->as->names) != 0)
			j->layout++;
		if (j->layout < j->f->n_layouts)
			return 0;
	}
	return vfm_fail(err, VFM_EUSAGE,
		"--layout: adapters of model.arch '%s' are written as peft, diffusers, original or comfyui%s, not '%s'",
		arch, j->f->lora_module ? ", or kohya" : "", j->x->layout);
}

int vfm_ckpt_export_adapters(struct vfm_ckpt *c, const struct vfm_adapters_export *x, struct vfm_err *err)
{
	json_t *lora = ckpt_lora_config(c);
	struct adapters_export j = {.files = {.c = c, .out = x->out},
		.x = x,
		.targets = json_array(),
		.ranks = json_object(),
		.alphas = json_object()};
	int rc;

	j.rank = json_integer_value(json_object_get(lora, "r"));
	j.alpha = json_number_value(json_object_get(lora, "lora_alpha"));
	json_decref(lora);
	TRY_OUT(find_adapter_layout(&j, err));
	TRY_OUT(list_adapters(&j, err));
	rc = strcmp(x->layout, "peft") ? write_adapters(&j, x->out, err) : write_peft(&j, err);
out:
	ckpt_exports_release(&j.files);
	json_decref(j.targets);
	json_decref(j.ranks);
	json_decref(j.alphas);
	return rc;
}
