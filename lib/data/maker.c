#include "data/maker.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/num.h"

enum vfm_maker_relation vfm_maker_compare(const struct vfm_maker *a, const struct vfm_maker *b)
{
	if (!a->name[0] || !b->name[0])
		return VFM_MAKER_UNKNOWN;
	return a->version == b->version && !strcmp(a->name, b->name) ? VFM_MAKER_SAME : VFM_MAKER_DIFFERENT;
}

static int set_maker_name(struct vfm_maker *m, const char *name, size_t len, struct vfm_err *err)
{
	if (len == 0 || len >= sizeof(m->name))
		return vfm_fail(err, VFM_EINPUT, "a label has %zu bytes: expected 1 to %zu", len, sizeof(m->name) - 1);
	for (size_t i = 0; i < len; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == '@')
			return vfm_fail(err, VFM_EINPUT, "the label '%.*s' holds a character that is not allowed",
				(int)len, name);
	memcpy(m->name, name, len);
	m->name[len] = '\0';
	return 0;
}

int vfm_maker_parse(struct vfm_maker *m, const char *label, struct vfm_err *err)
{
	const char *at = strchr(label, '@');
	int64_t version = 1;

	*m = (struct vfm_maker){0};
	if (!*label)
		return 0;
	if (strlen(label) > VFM_MAKER_LABEL_BYTES)
		return vfm_fail(
			err, VFM_EINPUT, "the label '%.80s' has more than %d bytes", label, VFM_MAKER_LABEL_BYTES);
	if (at && vfm_parse_i64(at + 1, 1, INT32_MAX, &version, err) < 0) {
		vfm_err_context(err, "the version of the label '%.80s'", label);
		return VFM_EINPUT;
	}
	TRY(set_maker_name(m, label, at ? (size_t)(at - label) : strlen(label), err));
	m->version = (int32_t)version;
	return 0;
}

void vfm_maker_label(const struct vfm_maker *m, char label[VFM_MAKER_LABEL])
{
	if (m->version > 1)
		snprintf(label, VFM_MAKER_LABEL, "%s@%d", m->name, m->version);
	else
		snprintf(label, VFM_MAKER_LABEL, "%s", m->name);
}

json_t *vfm_maker_json(const struct vfm_maker *m)
{
	return m->name[0] ? json_pack("{s:s,s:i}", "name", m->name, "version", m->version) : json_null();
}

/* ---- both encoders ---- */

static int check_maker(const char *kind, const struct vfm_maker *a, const char *a_owner, const struct vfm_maker *b,
	const char *b_owner, struct vfm_err *err)
{
	char x[VFM_MAKER_LABEL], y[VFM_MAKER_LABEL];

	if (vfm_maker_compare(a, b) != VFM_MAKER_DIFFERENT)
		return 0;
	vfm_maker_label(a, x);
	vfm_maker_label(b, y);
	return vfm_fail(err, VFM_EUSAGE, "%s has %s '%s', %s has '%s'", a_owner, kind, x, b_owner, y);
}

int vfm_makers_check(const struct vfm_makers *a, const char *a_owner, const struct vfm_makers *b, const char *b_owner,
	struct vfm_err *err)
{
	TRY(check_maker("tokenizer", &a->tokenizer, a_owner, &b->tokenizer, b_owner, err));
	return check_maker("text encoder", &a->text, a_owner, &b->text, b_owner, err);
}

void vfm_makers_fill(struct vfm_makers *all, const struct vfm_makers *one)
{
	if (!all->tokenizer.name[0])
		all->tokenizer = one->tokenizer;
	if (!all->text.name[0])
		all->text = one->text;
}

static const char *label_in(const json_t *rec, const char *section, const char *key)
{
	const char *label = json_string_value(json_object_get(json_object_get(rec, section), key));

	return label ? label : "";
}

int vfm_makers_from_record(struct vfm_makers *m, const json_t *rec, struct vfm_err *err)
{
	TRY(vfm_maker_parse(&m->tokenizer, label_in(rec, "latent", "tokenizer"), err));
	return vfm_maker_parse(&m->text, label_in(rec, "text", "embedder"), err);
}

json_t *vfm_makers_json(const struct vfm_makers *m)
{
	json_t *o = json_object();

	if (m->tokenizer.name[0])
		json_object_set_new(o, "tokenizer", vfm_maker_json(&m->tokenizer));
	if (m->text.name[0])
		json_object_set_new(o, "text", vfm_maker_json(&m->text));
	return o;
}

static int maker_from_json(
	struct vfm_maker *m, const json_t *all, const char *where, const char *key, struct vfm_err *err)
{
	const json_t *o = json_object_get(all, key);
	const char *name = "";
	int64_t version = 1;
	char path[80];

	if (!o)
		return 0;
	snprintf(path, sizeof(path), "%s.%s", where, key);
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", path);
	TRY(vfm_json_str(o, path, "name", true, &name, err));
	TRY(vfm_json_i64(o, path, "version", true, 1, INT32_MAX, &version, err));
	if (set_maker_name(m, name, strlen(name), err) < 0) {
		vfm_err_context(err, "%s.name", path);
		return VFM_EUSAGE;
	}
	m->version = (int32_t)version;
	return 0;
}

int vfm_makers_from_json(struct vfm_makers *m, const json_t *o, const char *where, struct vfm_err *err)
{
	*m = (struct vfm_makers){0};
	if (!o)
		return 0;
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(maker_from_json(&m->tokenizer, o, where, "tokenizer", err));
	return maker_from_json(&m->text, o, where, "text", err);
}
