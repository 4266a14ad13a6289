/* Adapters of a checkpoint as files of other programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/json.h"

struct adapters_export {
	struct ckpt_exports files;
	const struct vfm_adapters_export *x;
	const struct vfm_foreign *f;
	int layout; /* of the names of layers */
	const char *prefix;
	double alpha;
	int64_t rank;
	json_t *targets; /* names of layers, for PEFT */
	struct ckpt_faults unknown;
};

/* Adds rows [row, row + rows) of src as PREFIX/LAYER/SUFFIX. */
static void add_exported(struct adapters_export *j, const char *layer, const char *suffix,
	const struct vfm_ckpt_tensor *src, int64_t row, int64_t rows)
{
	const bool has_scale = !strcmp(j->x->layout, "diffusers") && strstr(suffix, ".lora_B.");
	char *name = vfm_strfmt("%s%s%s", j->prefix, layer, suffix);

	ckpt_export_add(&j->files, vfm_arena_strdup(&j->files.arena, name), ckpt_out_dtype(src, j->x->dtype), 2,
		(int64_t[]){rows, src->shape[1]},
		(struct ckpt_export_part){src, row * src->shape[1], (row + rows) * src->shape[1],
			has_scale ? j->alpha / (double)j->rank : 1});
	free(name);
}

static void add_alpha(struct adapters_export *j, const char *layer)
{
	char *name = vfm_strfmt("%s%s.alpha", j->prefix, layer);

	ckpt_export_add(&j->files, vfm_arena_strdup(&j->files.arena, name), VFM_F32, 0, (int64_t[]){0},
		(struct ckpt_export_part){NULL, 0, 1, j->alpha});
	free(name);
}

/* Adds the parts of a matrix of our layer `name`.  suffix: ".lora_A.weight" or ".lora_B.weight". */
static bool add_adapter_parts(
	struct adapters_export *j, const char *name, const char *suffix, const struct vfm_ckpt_tensor *src)
{
	struct vfm_foreign_layer l;
	bool first = strcmp(suffix, ".lora_A.weight") == 0;

	if (!j->f || !vfm_foreign_own_layer(j->f, name, &l) || l.row->form || l.row->channels_last ||
		src->shape[0] % l.parts)
		return false;
	l.layout = j->layout;
	for (l.part = 0; l.part < l.parts; l.part++) {
		char *layer = vfm_foreign_their_name(&l);
		int64_t rows = src->shape[0] / l.parts;

		add_exported(j, layer, suffix, src, l.part * rows, rows);
		if (first && !strcmp(j->x->layout, "original"))
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
			done = add_adapter_parts(j, layer, suffixes[k], t);
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
	struct vfm_buf text = {0};
	const char *meta[2][2] = {{"format", "pt"}};
	int rc;

	vfm_json_text(&text, o, 0);
	json_decref(o);
	memcpy(meta[1], (const char *[]){CKPT_META_LORA, text.data}, sizeof(meta[1]));
	rc = ckpt_export_write(
		&j->files, j->files.t, j->files.n, meta, strcmp(j->x->layout, "diffusers") ? 1 : 2, path, err);
	vfm_buf_release(&text);
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
	static const struct {
		const char *name, *names, *prefix;
	} all[] = {{"peft", "diffusers", "base_model.model."}, {"diffusers", "diffusers", "transformer."},
		{"original", "original", "diffusion_model."}};
	const char *arch = json_string_value(json_object_get(json_object_get(j->files.c->config, "model"), "arch"));
	const struct vfm_arch *a = vfm_arch_find(arch);

	j->f = a ? a->foreign : NULL;
	if (!j->f)
		return vfm_fail(err, VFM_EUSAGE, "%s: no other program has models of model.arch '%s'", j->files.c->path,
			arch ? arch : "?");
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (strcmp(all[i].name, j->x->layout) != 0)
			continue;
		j->prefix = all[i].prefix;
		while (j->layout < j->f->n_layouts && strcmp(j->f->layout[j->layout].name, all[i].names) != 0)
			j->layout++;
		if (j->layout < j->f->n_layouts)
			return 0;
	}
	return vfm_fail(err, VFM_EUSAGE, "--layout: adapters are written as peft, diffusers or original, not '%s'",
		j->x->layout);
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
