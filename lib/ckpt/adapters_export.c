/* Adapters of a checkpoint as files of other programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/json.h"

enum { ALPHA_BYTES = 4 };

/* Elements [a, b) of src, under another name; src NULL: alpha. */
struct exported {
	char *name;
	const struct vfm_ckpt_tensor *src;
	int64_t a, b;
};

struct adapters_export {
	struct vfm_ckpt *c;
	const struct vfm_adapters_export *x;
	const struct vfm_foreign *f;
	int layout; /* of the names of layers */
	const char *prefix;
	struct vfm_st_tensor *t;
	struct exported *e;
	size_t n, cap_t, cap_e;
	double alpha;
	int64_t rank;
	json_t *targets; /* names of layers, for PEFT */
	struct ckpt_faults unknown;
};

/* Adds a tensor and takes its name. */
static void add_exported(
	struct adapters_export *j, char *name, const struct vfm_ckpt_tensor *src, int64_t row, int64_t rows)
{
	struct vfm_st_tensor t = {.name = name, .dtype = src ? ckpt_out_dtype(src, j->x->dtype) : VFM_F32};
	struct exported e = {.name = name, .src = src};

	if (src) {
		t.ndim = 2;
		t.shape[0] = rows;
		t.shape[1] = src->shape[1];
		e.a = row * src->shape[1];
		e.b = (row + rows) * src->shape[1];
	}
	vfm_grow(&j->t, &j->cap_t, j->n + 1, sizeof(*j->t));
	vfm_grow(&j->e, &j->cap_e, j->n + 1, sizeof(*j->e));
	j->t[j->n] = t;
	j->e[j->n++] = e;
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

		add_exported(j, vfm_strfmt("%s%s%s", j->prefix, layer, suffix), src, l.part * rows, rows);
		if (first && !strcmp(j->x->layout, "original"))
			add_exported(j, vfm_strfmt("%s%s.alpha", j->prefix, layer), NULL, 0, 0);
		if (first)
			json_array_append_new(j->targets, json_string(layer));
		free(layer);
	}
	return true;
}

static int list_adapters(struct adapters_export *j, struct vfm_err *err)
{
	static const char *const suffixes[] = {".lora_A.weight", ".lora_B.weight"};
	const size_t len = strlen(j->x->part);
	struct vfm_buf b = {0};
	int rc = 0;

	for (int i = 0; i < j->c->n; i++) {
		const struct vfm_ckpt_tensor *t = &j->c->t[i];
		bool done = false;

		if (strncmp(t->name, j->x->part, len) != 0 || t->name[len] != '/')
			continue;
		for (int k = 0; k < 2 && !done; k++) {
			const char *name = t->name + len + 1;
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
		rc = vfm_fail(err, VFM_EUSAGE, "%s: %s", j->c->path, b.data);
	else if (!j->n)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", j->c->path, j->x->part);
	vfm_buf_release(&b);
	return rc;
}

/* Reads elements of a tensor, multiplied by a scale. */
static int read_scaled(const struct adapters_export *j, const struct exported *e, double scale, enum vfm_dtype dtype,
	void *dst, struct vfm_err *err)
{
	const struct vfm_slice slice = {.a = e->a, .b = e->b};
	const size_t n = (size_t)(e->b - e->a);
	float *w;
	int rc;

	if (scale == 1)
		return vfm_ckpt_read_tensor(j->c, e->src, &slice, dtype, dst, err);
	w = vfm_malloc(n * sizeof(*w) + 1);
	rc = vfm_ckpt_read_tensor(j->c, e->src, &slice, VFM_F32, w, err);
	for (size_t i = 0; i < n && rc == 0; i++)
		w[i] = (float)(scale * w[i]);
	if (rc == 0)
		vfm_dtype_convert(dtype, dst, VFM_F32, w, n);
	free(w);
	return rc;
}

static int write_values(const struct adapters_export *j, const char *name, FILE *f, struct vfm_err *err)
{
	const struct vfm_st_tensor *t = j->t;
	const struct exported *e = j->e;
	float alpha = (float)j->alpha;
	const bool has_scale = !strcmp(j->x->layout, "diffusers") && strstr(name, ".lora_B.");
	uint8_t *buf;
	size_t bytes;
	int rc;

	while (strcmp(e->name, name) != 0)
		e++;
	while (strcmp(t->name, name) != 0)
		t++;
	if (!e->src)
		return fwrite(&alpha, ALPHA_BYTES, 1, f) == 1
			? 0
			: vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", j->x->out);
	bytes = (size_t)(e->b - e->a) * vfm_dtype_size(t->dtype);
	buf = vfm_malloc(bytes + 1);
	rc = read_scaled(j, e, has_scale ? j->alpha / (double)j->rank : 1, t->dtype, buf, err);
	if (rc == 0 && fwrite(buf, 1, bytes, f) != bytes)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", j->x->out);
	free(buf);
	return rc;
}

static int write_adapters(struct adapters_export *j, const char *path, struct vfm_err *err)
{
	/* What diffusers makes a LoraConfig of.  Some of its calls drop the metadata, so that B holds alpha / rank. */
	json_t *o = json_pack("{s:I, s:f, s:O, s:f, s:s, s:b}", "transformer.r", (json_int_t)j->rank,
		"transformer.lora_alpha", (double)j->rank, "transformer.target_modules", j->targets,
		"transformer.lora_dropout", 0.0, "transformer.bias", "none", "transformer.use_rslora", 0);
	struct vfm_buf head = {0}, text = {0};
	const char *meta[2][2] = {{"format", "pt"}};
	struct vfm_atomic a = {0};
	int rc;

	vfm_json_text(&text, o, 0);
	json_decref(o);
	memcpy(meta[1], (const char *[]){CKPT_META_LORA, text.data}, sizeof(meta[1]));
	vfm_st_layout(j->t, j->n, meta, strcmp(j->x->layout, "diffusers") ? 1 : 2, &head);
	TRY_OUT(vfm_atomic_open(&a, path, err));
	rc = fwrite(head.data, 1, head.len, a.f) == head.len ? 0
							     : vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
	for (size_t i = 0; i < j->n && rc == 0; i++)
		rc = write_values(j, j->t[i].name, a.f, err);
	if (rc == 0)
		rc = vfm_atomic_commit(&a, err);
out:
	vfm_atomic_abort(&a);
	vfm_buf_release(&head);
	vfm_buf_release(&text);
	return rc;
}

static int write_peft(struct adapters_export *j, struct vfm_err *err)
{
	char *model = vfm_strfmt("%s/adapter_model.safetensors", j->x->out),
	     *config = vfm_strfmt("%s/" CKPT_PEFT_CONFIG, j->x->out);
	json_t *o = json_pack("{s:s, s:n, s:I, s:f, s:i, s:s, s:b, s:b, s:O, s:n}", "peft_type", "LORA", "task_type",
		"r", (json_int_t)j->rank, "lora_alpha", j->alpha, "lora_dropout", 0, "bias", "none", "use_rslora", 0,
		"inference_mode", 1, "target_modules", j->targets, "base_model_name_or_path");
	struct vfm_buf text = {0};
	int rc = vfm_mkdir_p(j->x->out, err);

	if (rc == 0)
		rc = write_adapters(j, model, err);
	vfm_json_text(&text, o, 2);
	vfm_buf_adds(&text, "\n");
	if (rc == 0)
		rc = vfm_write_file(config, text.data, text.len, err);
	vfm_buf_release(&text);
	json_decref(o);
	free(model);
	free(config);
	return rc;
}

static int find_adapter_layout(struct adapters_export *j, struct vfm_err *err)
{
	static const struct {
		const char *name, *names, *prefix;
	} all[] = {{"peft", "diffusers", "base_model.model."}, {"diffusers", "diffusers", "transformer."},
		{"original", "original", "diffusion_model."}};
	const char *arch = json_string_value(json_object_get(json_object_get(j->c->config, "model"), "arch"));
	const struct vfm_arch *a = vfm_arch_find(arch);

	j->f = a ? a->foreign : NULL;
	if (!j->f)
		return vfm_fail(err, VFM_EUSAGE, "%s: no other program has models of model.arch '%s'", j->c->path,
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
	struct adapters_export j = {.c = c, .x = x, .targets = json_array()};
	int rc;

	j.rank = json_integer_value(json_object_get(lora, "r"));
	j.alpha = json_number_value(json_object_get(lora, "lora_alpha"));
	json_decref(lora);
	TRY_OUT(find_adapter_layout(&j, err));
	TRY_OUT(list_adapters(&j, err));
	rc = strcmp(x->layout, "peft") ? write_adapters(&j, x->out, err) : write_peft(&j, err);
out:
	for (size_t i = 0; i < j.n; i++)
		free(j.e[i].name);
	free(j.e);
	free(j.t);
	json_decref(j.targets);
	return rc;
}
