/* Adapters of a checkpoint as files of other programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/json.h"

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
	json_t *targets; /* names of layers, for PEFT */
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

/* Adds rows [row, row + rows) of A or B.  halves: in the order of layouts with rope_halves (spec/model/foreign.h). */
static void add_exported(struct adapters_export *j, const char *layer, bool first, const struct vfm_ckpt_tensor *src,
	int64_t row, int64_t rows, bool halves)
{
	const double scale = j->as->scaled && !first ? j->alpha / (double)j->rank : 1;
	const int64_t n = halves ? rows : 1, size = rows / n * src->shape[1];
	struct ckpt_export_part *p = vfm_arena_alloc(&j->files.arena, (size_t)n * sizeof(*p));
	char *suffix = vfm_strfmt(".%s.weight", first ? j->as->a : j->as->b);

	for (int64_t i = 0; i < n; i++) {
		const int64_t at = row * src->shape[1] + i * size;

		p[halves ? vfm_foreign_half_row(vfm_model_head_dim(&j->m), i) : i] =
			(struct ckpt_export_part){src, at, at + size, scale};
	}
	ckpt_export_add_parts(&j->files, exported_name(j, layer, suffix), ckpt_out_dtype(src, j->x->dtype), 2,
		(int64_t[]){rows, src->shape[1]}, p);
	free(suffix);
}

static void add_alpha(struct adapters_export *j, const char *layer)
{
	ckpt_export_add(&j->files, exported_name(j, layer, ".alpha"), VFM_F32, 0, (int64_t[]){0},
		(struct ckpt_export_part){NULL, 0, 1, j->alpha});
}

/* Adds the parts of A (first) or B of our layer `name`. */
static bool add_adapter_parts(
	struct adapters_export *j, const char *name, bool first, const struct vfm_ckpt_tensor *src)
{
	struct vfm_foreign_layer l;

	if (!j->f || !vfm_foreign_own_layer(&j->m, j->layout, name, &l) || l.row->form || l.row->channels_last ||
		src->shape[0] % l.parts)
		return false;
	for (l.part = 0; l.part < l.parts; l.part++) {
		char *layer = vfm_foreign_their_name(&l);
		int64_t rows = src->shape[0] / l.parts;

		add_exported(j, layer, first, src, l.part * rows, rows, !first && l.part < l.row->rope_halves);
		if (first && j->as->alpha)
			add_alpha(j, layer);
		if (first)
			json_array_append_new(j->targets, json_string(layer));
		free(layer);
	}
	return true;
}

static int list_adapters(struct adapters_export *j, struct vfm_err *err)
{
	static const char *const suffixes[] = {".lora_A.weight", ".lora_B.weight"};
	const struct vfm_ckpt *c = j->files.c;
	struct vfm_buf b = {0};
	int rc = 0;

	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *t = &c->t[i];
		const char *name = vfm_ckpt_name_in(c, j->x->part, t);
		bool done = false;

		if (!name)
			continue;
		for (int k = 0; k < 2 && !done; k++) {
			size_t n = strlen(name), m = strlen(suffixes[k]);
			char *layer;

			if (n <= m || strcmp(name + n - m, suffixes[k]) != 0)
				continue;
			layer = vfm_strfmt("%.*s", (int)(n - m), name);
			done = add_adapter_parts(j, layer, k == 0, t);
			free(layer);
		}
		if (!done)
			ckpt_fault_add(&j->unknown, t->name, "");
	}
	ckpt_faults_report(&b, &j->unknown, "that no adapter of another program holds");
	if (b.len)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: %s", c->path, b.data);
	else if (!j->files.n)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", c->path, j->x->part);
	vfm_buf_release(&b);
	return rc;
}

static int write_adapters(struct adapters_export *j, const char *path, struct vfm_err *err)
{
	/* The keys that diffusers makes a LoraConfig from.  Some of its calls drop the metadata, so that B holds alpha
	 * / rank. */
	json_t *o = json_pack("{s:I, s:f, s:O, s:f, s:s, s:b}", "transformer.r", (json_int_t)j->rank,
		"transformer.lora_alpha", (double)j->rank, "transformer.target_modules", j->targets,
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
	json_t *o = json_pack("{s:s, s:n, s:I, s:f, s:i, s:s, s:b, s:b, s:O, s:n}", "peft_type", "LORA", "task_type",
		"r", (json_int_t)j->rank, "lora_alpha", j->alpha, "lora_dropout", 0, "bias", "none", "use_rslora", 0,
		"inference_mode", 1, "target_modules", j->targets, "base_model_name_or_path");
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
	vfm_model_defaults(&j->m);
	if (vfm_model_read(&j->m, model, "model", err) < 0 || vfm_model_check(&j->m, err) < 0)
		return vfm_err_context(err, "%s", j->files.c->path);
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
	struct adapters_export j = {.files = {.c = c, .out = x->out}, .x = x, .targets = json_array()};
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
	return rc;
}
