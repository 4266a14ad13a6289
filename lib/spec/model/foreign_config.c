/* foreign_config.c - translates config.json of other programs to dimensions and back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "spec/model/foreign_impl.h"

static int bad_value(const json_t *v, const char *where, const char *key, const char *want, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int rc;

	vfm_json_text(&b, v, 0);
	rc = vfm_fail(err, VFM_EUSAGE, "%s: %s: %.200s is not supported; expected %s", where, key, b.data, want);
	vfm_buf_release(&b);
	return rc;
}

static int read_one_of(const struct vfm_foreign_key *k, const json_t *v, const char *where, struct vfm_err *err)
{
	json_t *all = json_loads(k->values, JSON_DECODE_ANY, NULL), *x;
	bool found = false;
	char *want;
	size_t i;
	int rc = 0;

	json_array_foreach(all, i, x) found = found || json_equal(x, v);
	json_decref(all);
	if (!found) {
		want = vfm_strfmt("one of %s", k->values);
		rc = bad_value(v, where, k->key, want, err);
		free(want);
	}
	return rc;
}

/* Sets a dimension, or fails if another key has given another value. */
static int set_dim(int64_t *dim, int64_t v, const char *where, const char *key, struct vfm_err *err)
{
	if (*dim && *dim != v)
		return vfm_fail(err, VFM_EUSAGE, "%s: %s: %lld contradicts another key, which gives %lld", where, key,
			(long long)v, (long long)*dim);
	*dim = v;
	return 0;
}

/* Values that become dimensions together with others. */
struct foreign_ratios {
	int64_t head_dim; /* 0: not read */
	double mlp;       /* 0: not read */
	const char *mlp_key;
};

static int read_foreign_int(struct vfm_model_spec *m, const struct vfm_foreign_key *k, const json_t *v,
	const char *where, struct foreign_ratios *r, struct vfm_err *err)
{
	int64_t *dim = (int64_t *)(void *)((char *)m + k->off), more = 0, volume = 1;

	if (k->type != VFM_FOREIGN_HEAD_DIM && json_is_null(v))
		return 0;
	if (k->type == VFM_FOREIGN_COUNT && json_is_integer(v) && json_integer_value(v) == 0)
		return 0;
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 20)
		return bad_value(v, where, k->key,
			k->type == VFM_FOREIGN_COUNT ? "an integer of 0 to 1048576" : "an integer of 1 to 1048576",
			err);
	switch (k->type) {
	case VFM_FOREIGN_IMAGE:
		return 0;
	case VFM_FOREIGN_HEAD_DIM:
		dim = &r->head_dim;
		break;
	case VFM_FOREIGN_INPUTS:
		dim = vfm_foreign_dim(m, 'X');
		more = (int64_t)k->off;
		break;
	case VFM_FOREIGN_CONTEXT:
		dim = vfm_foreign_dim(m, 'Y');
		break;
	case VFM_FOREIGN_FEATURES:
		dim = &m->channels;
		volume = m->patch[0] * m->patch[1] * m->patch[2];
		if (json_integer_value(v) % volume)
			return bad_value(v, where, k->key, "channels times the patch", err);
		break;
	default:
		break;
	}
	return set_dim(dim, json_integer_value(v) / volume + more, where, k->key, err);
}

static int read_foreign_num(const struct vfm_foreign_key *k, const json_t *v, double *x, const char *where,
	const char *want, struct vfm_err *err)
{
	if (!json_is_number(v) || !(json_number_value(v) > 0 && json_number_value(v) < 1e9))
		return bad_value(v, where, k->key, want, err);
	*x = json_number_value(v);
	return 0;
}

static int read_foreign_key(struct vfm_model_spec *m, const struct vfm_foreign_key *k, const json_t *v,
	const char *where, struct foreign_ratios *r, struct vfm_err *err)
{
	void *field = (char *)m + k->off;
	int64_t *dim = field;

	switch (k->type) {
	case VFM_FOREIGN_INT:
	case VFM_FOREIGN_COUNT:
	case VFM_FOREIGN_DOUBLE:
	case VFM_FOREIGN_HEAD_DIM:
	case VFM_FOREIGN_INPUTS:
	case VFM_FOREIGN_IMAGE:
	case VFM_FOREIGN_CONTEXT:
	case VFM_FOREIGN_FEATURES:
		return read_foreign_int(m, k, v, where, r, err);
	case VFM_FOREIGN_MLP_RATIO:
		r->mlp_key = k->key;
		return read_foreign_num(k, v, &r->mlp, where, "a number above 0", err);
	case VFM_FOREIGN_NUM3:
		if (json_array_size(v) != 3)
			return bad_value(v, where, k->key, "an array of three numbers", err);
		for (size_t i = 0; i < 3; i++)
			TRY(read_foreign_num(k, json_array_get(v, i), (double *)field + i, where,
				"an array of three numbers above 0", err));
		return 0;
	case VFM_FOREIGN_INT3:
		if (json_array_size(v) != 3)
			return bad_value(v, where, k->key, "an array of three integers", err);
		for (size_t i = 0; i < 3; i++) {
			const json_t *x = json_array_get(v, i);

			if (!json_is_integer(x) || json_integer_value(x) < 1 || json_integer_value(x) > 1 << 10)
				return bad_value(v, where, k->key, "an array of three integers", err);
			dim[i] = json_integer_value(x);
		}
		return 0;
	case VFM_FOREIGN_NUM:
		return read_foreign_num(k, v, field, where, "a number above 0", err);
	case VFM_FOREIGN_ONE_OF:
		return read_one_of(k, v, where, err);
	case VFM_FOREIGN_FLAG:
		return json_is_boolean(v) ? 0 : bad_value(v, where, k->key, "true or false", err);
	case VFM_FOREIGN_ANY:
		break;
	}
	return 0;
}

int vfm_foreign_read_config(struct vfm_model_spec *m, const struct vfm_foreign *f, int layout, const json_t *config,
	const char *where, struct vfm_err *err)
{
	struct foreign_ratios ratios = {0};
	const char *key;
	json_t *v;

	if (!json_is_object(config))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	json_object_foreach((json_t *)(uintptr_t)config, key, v)
	{
		const struct vfm_foreign_key *k = f->layout[layout].keys;

		while (k && k->key && strcmp(k->key, key) != 0)
			k++;
		if (k && k->key)
			TRY(read_foreign_key(m, k, v, where, &ratios, err));
		else if (key[0] != '_' && !json_is_null(v))
			return vfm_fail(err, VFM_EUSAGE, "%s: unknown key '%.80s' of the layout %s of %s", where, key,
				f->layout[layout].name, m->arch);
	}
	if (ratios.head_dim && m->heads)
		TRY(set_dim(&m->hidden, ratios.head_dim * m->heads, where, "attention_head_dim", err));
	if (ratios.mlp > 0 && m->hidden) {
		const int64_t ffn = (int64_t)(ratios.mlp * (double)m->hidden);

		if (ffn < 1)
			return vfm_fail(err, VFM_EUSAGE, "%s: %s: %g times %lld features are none", where,
				ratios.mlp_key, ratios.mlp, (long long)m->hidden);
		TRY(set_dim(&m->ffn, ffn, where, ratios.mlp_key, err));
	}
	return 0;
}

/* Returns the ratio whose product with model.hidden, rounded down as the readers do, is model.ffn. */
static double mlp_ratio(const struct vfm_model_spec *m)
{
	const double hidden = (double)m->hidden, ratio = (double)m->ffn / hidden;

	return (int64_t)(ratio * hidden) == m->ffn ? ratio : nextafter(ratio, INFINITY);
}

static json_t *foreign_value(const struct vfm_model_spec *m, const struct vfm_foreign_key *k)
{
	const int64_t *dim = (const int64_t *)(const void *)((const char *)m + k->off);
	json_t *all, *first;

	switch (k->type) {
	case VFM_FOREIGN_INT:
		return *dim ? json_integer(*dim) : json_null();
	case VFM_FOREIGN_COUNT:
		return json_integer(*dim);
	case VFM_FOREIGN_DOUBLE:
		return json_integer(m->layers - m->single_layers);
	case VFM_FOREIGN_INT3:
		return json_pack("[III]", (json_int_t)dim[0], (json_int_t)dim[1], (json_int_t)dim[2]);
	case VFM_FOREIGN_NUM:
		return json_real(*(const double *)(const void *)((const char *)m + k->off));
	case VFM_FOREIGN_HEAD_DIM:
		return json_integer(vfm_model_head_dim(m));
	case VFM_FOREIGN_NUM3:
		return json_pack("[fff]", ((const double *)(const void *)dim)[0],
			((const double *)(const void *)dim)[1], ((const double *)(const void *)dim)[2]);
	case VFM_FOREIGN_INPUTS:
		return json_integer(vfm_foreign_inputs(m) - (int64_t)k->off);
	case VFM_FOREIGN_MLP_RATIO:
		return json_real(mlp_ratio(m));
	case VFM_FOREIGN_CONTEXT:
		return json_integer(vfm_model_context_dim(m));
	case VFM_FOREIGN_FEATURES:
		return json_integer(vfm_model_patch_dim(m));
	case VFM_FOREIGN_IMAGE:
		return m->image_dim ? json_integer(m->hidden) : json_null();
	case VFM_FOREIGN_FLAG:
		return json_boolean(*dim != 0);
	case VFM_FOREIGN_ONE_OF:
		all = json_loads(k->values, JSON_DECODE_ANY, NULL);
		first = json_incref(json_array_get(all, 0));
		json_decref(all);
		return first;
	case VFM_FOREIGN_ANY:
		break;
	}
	return json_loads(k->values, JSON_DECODE_ANY, NULL);
}

/* Fails unless the value of a key is that of the model. */
static int compare_value(const struct vfm_model_spec *m, const struct vfm_foreign_key *k, const json_t *v,
	const char *where, struct vfm_err *err)
{
	json_t *want = foreign_value(m, k);
	struct vfm_buf got = {0}, text = {0};
	int rc = 0;

	if (!json_equal(v, want)) {
		vfm_json_text(&got, v, 0);
		vfm_json_text(&text, want, 0);
		rc = vfm_fail(err, VFM_EUSAGE, "%s: %s: %.200s contradicts the tensors, which give %.200s", where,
			k->key, got.data, text.data);
		vfm_buf_release(&got);
		vfm_buf_release(&text);
	}
	json_decref(want);
	return rc;
}

int vfm_foreign_check_config(
	const struct vfm_model_spec *m, int layout, const json_t *config, const char *where, struct vfm_err *err)
{
	struct vfm_model_spec copy = *m;

	for (const struct vfm_foreign_key *k = vfm_model_arch(m)->foreign->layout[layout].keys; k && k->key; k++) {
		const json_t *v = json_object_get(config, k->key);
		const bool holds = k->type == VFM_FOREIGN_INT && k->needs && *vfm_foreign_dim(&copy, k->needs);

		if (v && (holds || k->type == VFM_FOREIGN_FLAG || k->type == VFM_FOREIGN_COUNT))
			TRY(compare_value(m, k, v, where, err));
	}
	return 0;
}

json_t *vfm_foreign_write_config(const struct vfm_model_spec *m, int layout)
{
	const struct vfm_foreign_layout *l = &vfm_model_arch(m)->foreign->layout[layout];
	struct vfm_model_spec copy = *m;
	json_t *o = json_object();

	json_object_set_new(o, "_class_name", json_string(l->class_name));
	for (const struct vfm_foreign_key *k = l->keys; k->key; k++)
		if (!k->needs || *vfm_foreign_dim(&copy, k->needs))
			json_object_set_new(o, k->key, foreign_value(m, k));
	return o;
}
