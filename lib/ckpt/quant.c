/* Weights in 8-bit floats with a scale, as ComfyUI stores them ("fp8_scaled"). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/ckpt_impl.h"
#include "io/json.h"

enum { FORMAT_MAX = 4096 }; /* bytes of a description */

struct quantization {
	struct vfm_ckpt *c;
	struct ckpt_quant *q;
	struct ckpt_faults *bad;
	int inputs;
};

/* Returns the index of the tensor of a layer, or -1.  len: bytes of the layer's name. */
static int tensor_of_layer(const struct vfm_ckpt *c, const char *name, size_t len, const char *suffix)
{
	char *full = vfm_strfmt("%.*s%s", (int)len, name, suffix);
	const struct vfm_ckpt_tensor *t = vfm_ckpt_find(c, full);

	free(full);
	return t ? (int)(t - c->t) : -1;
}

static int read_scale(struct quantization *k, const struct vfm_ckpt_tensor *t, size_t len, struct vfm_err *err)
{
	const int i = tensor_of_layer(k->c, t->name, len, ".weight");
	const enum vfm_dtype of = i < 0 ? VFM_F32 : k->c->t[i].dtype;
	float scale = 0;

	if (of != VFM_F8E4M3 && of != VFM_F8E5M2) {
		ckpt_fault_add(k->bad, t->name, " (of no weight in 8-bit floats)");
		return 0;
	}
	if (t->numel != 1 || !vfm_dtype_is_float(t->dtype)) {
		ckpt_fault_add(k->bad, t->name, " (only one scale for a weight is supported)");
		return 0;
	}
	TRY(ckpt_read_stored(k->c, t, NULL, VFM_F32, &scale, err));
	if (!(scale > 0) || !isfinite(scale) || k->q->scale[i])
		ckpt_fault_add(k->bad, t->name, k->q->scale[i] ? " (a second scale)" : " (not positive)");
	k->q->scale[i] = scale;
	return 0;
}

/* Checks a description such as {"format": "float8_e4m3fn"}; `name` is that of its tensor or layer. */
static void check_format(struct quantization *k, const char *name, const json_t *o)
{
	const json_t *format = json_object_get(o, "format");
	const char *text = json_is_string(format) ? json_string_value(format) : "?", *key;
	char *more = NULL;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)o, key, v)
	{
		if (!more && strcmp(key, "format") != 0 && strcmp(key, "full_precision_matrix_mult") != 0)
			more = vfm_strfmt(" (%.100s)", key);
	}
	if (strcmp(text, "float8_e4m3fn") != 0 && strcmp(text, "float8_e5m2") != 0) {
		free(more);
		more = vfm_strfmt(" (format %.100s)", text);
	}
	if (more)
		ckpt_fault_add(k->bad, name, more);
	free(more);
}

static int read_format(struct quantization *k, const struct vfm_ckpt_tensor *t, size_t len, struct vfm_err *err)
{
	char text[FORMAT_MAX];
	json_t *o;

	if (t->dtype != VFM_U8 || t->numel > FORMAT_MAX) {
		ckpt_fault_add(k->bad, t->name, " (no description)");
		return 0;
	}
	TRY(ckpt_read_stored(k->c, t, NULL, VFM_U8, text, err));
	o = vfm_json_parse(text, (size_t)t->numel, t->name, NULL);
	check_format(k, t->name, o);
	json_decref(o);
	if (tensor_of_layer(k->c, t->name, len, ".weight_scale") < 0)
		ckpt_fault_add(k->bad, t->name, " (without weight_scale)");
	return 0;
}

static int read_quant_meta(struct quantization *k, struct vfm_err *err)
{
	const char *layer;
	json_t *o, *v;
	char *where;
	int rc = ckpt_read_meta(k->c, "_quantization_metadata", &o, &where, err);

	if (rc == 0 && o && !json_is_object(json_object_get(o, "layers")))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: layers: expected an object", where);
	json_object_foreach(json_object_get(o, "layers"), layer, v) check_format(k, layer, v);
	json_decref(o);
	free(where);
	return rc;
}

/* Reads tensor i, if it describes a quantization. */
static int read_quant_tensor(struct quantization *k, int i, struct vfm_err *err)
{
	static const struct {
		const char *suffix;
		int (*read)(struct quantization *k, const struct vfm_ckpt_tensor *t, size_t len, struct vfm_err *err);
	} all[] = {{".scale_weight", read_scale}, {".weight_scale", read_scale}, {".comfy_quant", read_format},
		{".scale_input", NULL}, {".input_scale", NULL}};
	const struct vfm_ckpt_tensor *t = &k->c->t[i];
	const char *last = strrchr(t->name, '.');

	if (!strcmp(last ? last + 1 : t->name, "scaled_fp8")) { /* the mark of such a file */
		k->q->known[i] = true;
		return 0;
	}
	for (size_t j = 0; last && j < sizeof(all) / sizeof(all[0]); j++) {
		if (strcmp(last, all[j].suffix) != 0)
			continue;
		k->q->known[i] = true;
		k->inputs += !all[j].read;
		return all[j].read ? all[j].read(k, t, (size_t)(last - t->name), err) : 0;
	}
	return 0;
}

int ckpt_quant_read(struct vfm_ckpt *c, struct ckpt_quant *q, struct ckpt_faults *bad, struct vfm_err *err)
{
	struct quantization k = {c, q, bad, 0};

	*q = (struct ckpt_quant){
		vfm_calloc((size_t)c->n + 1, sizeof(*q->scale)), vfm_calloc((size_t)c->n + 1, sizeof(*q->known))};
	for (int i = 0; i < c->n; i++)
		TRY(read_quant_tensor(&k, i, err));
	TRY(read_quant_meta(&k, err));
	if (k.inputs)
		vfm_info("%s: %d scales of inputs are not read: they are for products in 8 bits", c->path, k.inputs);
	return 0;
}

void ckpt_quant_release(struct ckpt_quant *q)
{
	free(q->scale);
	free(q->known);
}
