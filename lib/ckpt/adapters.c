/* Adapters added to weights as they are read. */
#include "ckpt/adapters.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/adapters_impl.h"
#include "io/json.h"

void ckpt_adapters_free(struct ckpt_adapters *s)
{
	if (!s)
		return;
	for (int i = 0; i < s->n_files; i++)
		vfm_ckpt_close(s->file[i]);
	free(s->file);
	free(s->v);
	for (size_t i = 0; i < s->n_terms; i++)
		free(s->term[i]->gain);
	free(s->term);
	free(s->trained);
	for (int i = 0; i < 4; i++)
		free(s->m[i / 2][i % 2]);
	vfm_arena_release(&s->arena);
	free(s);
}

/* ---- reading ---- */

static const struct ckpt_trained *find_trained(const struct ckpt_adapters *s, const char *name)
{
	for (size_t i = 0; i < s->n_trained; i++)
		if (!strcmp(s->trained[i].name, name))
			return &s->trained[i];
	return NULL;
}

int ckpt_read_adapted(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err)
{
	struct ckpt_adapters *s = c->priv->adapters;
	const char *in_model = vfm_ckpt_name_in(c, "model", t),
		   *name = in_model ? in_model : vfm_ckpt_name_in(c, "ema", t);
	const struct ckpt_trained *trained = name ? find_trained(s, name) : NULL;
	const struct ckpt_addition key = {.tensor = name}, *hit = NULL;
	int64_t n = slice && slice->part ? vfm_part_numel(slice->part) : t->numel;
	float *w;
	int rc;

	if (trained)
		return vfm_ckpt_read_tensor(trained->c, trained->t, slice, dtype, dst, err);
	if (name && s->n)
		hit = bsearch(&key, s->v, s->n, sizeof(*s->v), ckpt_addition_cmp);
	if (!hit)
		return ckpt_read_stored(c, t, slice, dtype, dst, err);
	while (hit > s->v && !strcmp(hit[-1].tensor, name))
		hit--;
	if (slice)
		n = (slice->b ? slice->b : n) - slice->a;
	w = dtype == VFM_F32 ? dst : vfm_malloc((size_t)n * sizeof(*w) + 1);
	rc = ckpt_read_stored(c, t, slice, VFM_F32, w, err);
	if (rc == 0)
		rc = ckpt_sum_additions(c, t, slice, hit, w, err);
	if (rc == 0 && dtype != VFM_F32)
		vfm_dtype_convert(dtype, dst, VFM_F32, w, (size_t)n);
	if (dtype != VFM_F32)
		free(w);
	return rc;
}

/* ---- files ---- */

/* Sets *config to that of PEFT next to the file, or in the directory, and *model to the file; NULL: there is none. */
static void find_peft(const char *path, char **config, char **model)
{
	static const char name[] = "adapter_model.safetensors";
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	bool dir = ckpt_is_dir(path);

	*config = *model = NULL;
	if (!dir && strcmp(file, name) != 0)
		return;
	*config = dir ? vfm_strfmt("%s/" CKPT_PEFT_CONFIG, path)
		      : vfm_strfmt("%.*s" CKPT_PEFT_CONFIG, (int)(file - path), path);
	*model = dir ? vfm_strfmt("%s/%s", path, name) : vfm_strdup(path);
	if (access(*config, F_OK) == 0)
		return;
	free(*config);
	free(*model);
	*config = *model = NULL;
}

json_t *ckpt_lora_config(const struct vfm_ckpt *c)
{
	const json_t *lora = json_object_get(c->config, "lora");
	double rank = json_number_value(json_object_get(lora, "rank")),
	       alpha = json_number_value(json_object_get(lora, "alpha"));

	return json_pack("{s:I, s:f}", "r", (json_int_t)rank, "lora_alpha", alpha > 0 ? alpha : rank);
}

static int open_adapters(struct ckpt_attaching *x, struct vfm_err *err)
{
	const struct vfm_ckpt_how raw = {.raw = true};
	char *config, *model;
	json_t *o = NULL;
	int rc;

	find_peft(x->path, &config, &model);
	TRY_OUT(vfm_ckpt_open_as(&x->from, model ? model : x->path, &raw, err));
	if (config) {
		o = vfm_json_load(config, 1 << 20, err);
		rc = o ? ckpt_lora_rules_read(&x->rules, o, config, err) : err->code;
	} else if (x->from->plain) {
		rc = 0;
	} else if (!vfm_ckpt_is_adapters(x->from)) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s holds no adapters: lora.rank of its configuration is 0", x->path);
	} else {
		if (!strcmp(x->part, "ema") &&
			json_number_value(json_object_get(json_object_get(x->from->config, "train"), "ema_decay")) == 0)
			x->part = "model";
		rc = ckpt_lora_rules_read(&x->rules, ckpt_lora_config(x->from), x->path, err);
	}
out:
	free(config);
	free(model);
	return rc;
}

bool vfm_ckpt_is_adapters(const struct vfm_ckpt *c)
{
	return json_integer_value(json_object_get(json_object_get(c->config, "lora"), "rank")) > 0;
}

int ckpt_adapters_list(struct ckpt_attaching *x, struct vfm_err *err)
{
	struct ckpt_adapters *s = x->s;
	int rc = open_adapters(x, err);

	if (x->from) {
		s->file = vfm_realloc(s->file, (size_t)s->n_files + 1, sizeof(*s->file));
		s->file[s->n_files++] = x->from;
	}
	if (rc == 0)
		rc = ckpt_adapters_find(x, err);
	ckpt_lora_rules_release(&x->rules);
	return rc;
}

int vfm_ckpt_attach(struct vfm_ckpt *c, const struct vfm_attach *o, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	struct ckpt_attaching x = {
		.c = c, .path = o->path, .part = o->part, .scale = o->scale, .skip_missing = o->skip_missing};
	size_t n, n_trained;
	int rc;

	if (!pv->adapters)
		pv->adapters = vfm_calloc(1, sizeof(*pv->adapters));
	x.s = pv->adapters;
	n = x.s->n;
	n_trained = x.s->n_trained;
	rc = ckpt_adapters_list(&x, err);
	if (rc < 0) { /* nothing of the file counts */
		x.s->n = n;
		x.s->n_trained = n_trained;
	}
	if (x.s->n)
		qsort(x.s->v, x.s->n, sizeof(*x.s->v), ckpt_addition_order);
	x.s->loaded = NULL;
	return rc;
}
