/* encoder_id.c - compares, labels, reads and writes encoder identities. */
#include "data/record/encoder_id.h"

#include <stdio.h>
#include <string.h>

#include "data/record/record.h"
#include "io/json.h"

#define TEXT_DIM_MAX  (1 << 20)
#define TEXT_ROWS_MAX UINT16_MAX

/* ---- one encoder ---- */

static bool has_same_name(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b)
{
	return !strcmp(a->name, b->name) && !strcmp(a->version, b->version);
}

/* Compares geometries and sizes of texts; one that is not recorded matches. */
static bool has_same_sizes(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b)
{
	const struct vfm_geometry *g = &a->geometry, *h = &b->geometry;

	if (vfm_geometry_is_known(g) && vfm_geometry_is_known(h) && !vfm_geometry_equal(g, h))
		return false;
	if (a->max_rows && b->max_rows && a->max_rows != b->max_rows)
		return false;
	return !a->dim || !b->dim || (a->dim == b->dim && a->rows == b->rows);
}

enum vfm_encoder_id_relation vfm_encoder_id_compare(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b)
{
	if (!a->name[0] || !b->name[0])
		return VFM_ENCODER_ID_UNKNOWN;
	return has_same_name(a, b) && !strcmp(a->sha256, b->sha256) && has_same_sizes(a, b) ? VFM_ENCODER_ID_SAME
											    : VFM_ENCODER_ID_DIFFERENT;
}

/* digits: of the sha256. */
static void write_label(const struct vfm_encoder_id *m, int digits, bool sizes, char label[VFM_ENCODER_ID_LABEL])
{
	char geometry[VFM_GEOMETRY_TEXT], rows[32] = "";
	size_t n;

	snprintf(label, VFM_ENCODER_ID_LABEL, "%s%s%s", m->name[0] ? m->name : "unknown", m->version[0] ? " " : "",
		m->version);
	n = strlen(label);
	if (m->sha256[0])
		snprintf(label + n, VFM_ENCODER_ID_LABEL - n, " (sha256 %.*s)", digits, m->sha256);
	n = strlen(label);
	if (m->rows)
		snprintf(rows, sizeof(rows), " in %d rows", m->rows);
	else if (m->max_rows)
		snprintf(rows, sizeof(rows), " in at most %d rows", m->max_rows);
	if (sizes && vfm_geometry_is_known(&m->geometry))
		snprintf(label + n, VFM_ENCODER_ID_LABEL - n, " (%s)", vfm_geometry_text(&m->geometry, geometry));
	else if (sizes && m->dim)
		snprintf(label + n, VFM_ENCODER_ID_LABEL - n, " (width %d%s)", m->dim, rows);
}

void vfm_encoder_id_label(const struct vfm_encoder_id *m, char label[VFM_ENCODER_ID_LABEL])
{
	write_label(m, 12, false, label);
}

void vfm_encoder_id_label_pair(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b,
	char x[VFM_ENCODER_ID_LABEL], char y[VFM_ENCODER_ID_LABEL])
{
	bool named = has_same_name(a, b), equal = named && !strcmp(a->sha256, b->sha256);
	int digits = named && !equal && !strncmp(a->sha256, b->sha256, 12) ? VFM_SHA256_HEX : 12;

	write_label(a, digits, equal, x);
	write_label(b, digits, equal, y);
}

json_t *vfm_encoder_id_json(const struct vfm_encoder_id *m)
{
	json_t *o;

	if (!m->name[0])
		return json_null();
	o = json_pack("{s:s,s:s}", "name", m->name, "version", m->version);
	if (m->sha256[0])
		json_object_set_new(o, "sha256", json_string(m->sha256));
	if (vfm_geometry_is_known(&m->geometry))
		json_object_set_new(o, "geometry", vfm_geometry_json(&m->geometry));
	if (m->dim)
		json_object_set_new(o, "dim", json_integer(m->dim));
	if (m->rows)
		json_object_set_new(o, "rows", json_integer(m->rows));
	else if (m->max_rows)
		json_object_set_new(o, "max_rows", json_integer(m->max_rows));
	return o;
}

static int read_name(const json_t *o, const char *where, const char *key, char *out, size_t size, struct vfm_err *err)
{
	const char *s = "";

	TRY(vfm_json_str(o, where, key, true, &s, err));
	if (!vfm_is_plain_name(s, size))
		return vfm_fail(err, VFM_EUSAGE, "%s.%s: expected 1 to %zu characters of A-Z a-z 0-9 . _ : / + -",
			where, key, size - 1);
	strcpy(out, s);
	return 0;
}

static int read_encoder_id(struct vfm_encoder_id *m, const json_t *o, const char *where, struct vfm_err *err)
{
	const json_t *geometry = json_object_get(o, "geometry");
	const char *sha256 = "";
	char path[96];

	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(read_name(o, where, "name", m->name, sizeof(m->name), err));
	TRY(read_name(o, where, "version", m->version, sizeof(m->version), err));
	TRY(vfm_json_str(o, where, "sha256", false, &sha256, err));
	if (*sha256 && (strlen(sha256) != VFM_SHA256_HEX - 1 || strspn(sha256, "0123456789abcdef") != strlen(sha256)))
		return vfm_fail(err, VFM_EUSAGE, "%s.sha256: expected 64 lower-case hex digits", where);
	strcpy(m->sha256, sha256);
	snprintf(path, sizeof(path), "%s.geometry", where);
	if (geometry && !json_is_null(geometry))
		TRY(vfm_geometry_from_json(&m->geometry, geometry, path, err));
	TRY(vfm_json_i32(o, where, "dim", false, 1, TEXT_DIM_MAX, &m->dim, err));
	TRY(vfm_json_i32(o, where, "rows", false, 0, TEXT_ROWS_MAX, &m->rows, err));
	TRY(vfm_json_i32(o, where, "max_rows", false, 0, TEXT_ROWS_MAX, &m->max_rows, err));
	m->max_rows = m->rows ? 0 : m->max_rows;
	return 0;
}

int vfm_encoder_id_from_json(struct vfm_encoder_id *m, const json_t *o, const char *where, struct vfm_err *err)
{
	*m = (struct vfm_encoder_id){0};
	if (read_encoder_id(m, o, where, err) < 0) {
		*m = (struct vfm_encoder_id){0};
		return VFM_EUSAGE;
	}
	return 0;
}

/* ---- all encoders ---- */

const struct vfm_encoder_names vfm_encoder_kinds[VFM_ENCODER_KINDS] = {
	[VFM_ENCODER_TOKENIZER] = {"tokenizer", "tokenizer"},
	[VFM_ENCODER_TEXT] = {"text", "text encoder"},
	[VFM_ENCODER_IMAGE] = {"image", "image encoder"},
	[VFM_ENCODER_TEXT2] = {"text2", "second text encoder"},
};

int vfm_encoder_id_check(enum vfm_encoder_kind e, const struct vfm_encoder_id *a, const char *a_owner,
	const struct vfm_encoder_id *b, const char *b_owner, struct vfm_err *err)
{
	char x[VFM_ENCODER_ID_LABEL], y[VFM_ENCODER_ID_LABEL];

	if (vfm_encoder_id_compare(a, b) != VFM_ENCODER_ID_DIFFERENT)
		return 0;
	vfm_encoder_id_label_pair(a, b, x, y);
	return vfm_fail(
		err, VFM_EUSAGE, "%s has %s '%s', %s has '%s'", a_owner, vfm_encoder_kinds[e].name, x, b_owner, y);
}

int vfm_encoder_ids_check(const struct vfm_encoder_ids *a, const char *a_owner, const struct vfm_encoder_ids *b,
	const char *b_owner, struct vfm_err *err)
{
	for (int e = 0; e < VFM_ENCODER_KINDS; e++)
		TRY(vfm_encoder_id_check((enum vfm_encoder_kind)e, &a->of[e], a_owner, &b->of[e], b_owner, err));
	return 0;
}

int vfm_encoder_id_check_named(enum vfm_encoder_kind e, const struct vfm_encoder_id *sample,
	const struct vfm_encoder_id *dataset, struct vfm_err *err)
{
	const char *kind = vfm_encoder_kinds[e].name;
	char label[VFM_ENCODER_ID_LABEL];

	if (!sample->name[0] == !dataset->name[0])
		return 0;
	vfm_encoder_id_label(sample->name[0] ? sample : dataset, label);
	return sample->name[0]
		? vfm_fail(err, VFM_EINPUT, "the sample has %s '%s', the dataset names none", kind, label)
		: vfm_fail(err, VFM_EINPUT, "the sample names no %s, the dataset has '%s'", kind, label);
}

int vfm_encoder_id_check_latent(const struct vfm_encoder_id *m, int64_t channels, struct vfm_err *err)
{
	char label[VFM_ENCODER_ID_LABEL];

	if (!vfm_geometry_is_known(&m->geometry) || m->geometry.channels == channels)
		return 0;
	vfm_encoder_id_label(m, label);
	return vfm_fail(err, VFM_EINPUT, "the latent has %lld channels, its tokenizer '%s' makes %d",
		(long long)channels, label, m->geometry.channels);
}

int vfm_encoder_id_check_rows(
	enum vfm_encoder_kind e, const struct vfm_encoder_id *m, int64_t rows, int64_t dim, struct vfm_err *err)
{
	const char *what = vfm_encoder_kinds[e].key, *made = vfm_encoder_kinds[e].name;
	char label[VFM_ENCODER_ID_LABEL];

	vfm_encoder_id_label(m, label);
	if (m->dim && m->dim != dim)
		return vfm_fail(err, VFM_EINPUT, "the %s has width %lld, its %s '%s' makes %d", what, (long long)dim,
			made, label, m->dim);
	if (m->rows && m->rows != rows)
		return vfm_fail(err, VFM_EINPUT, "the %s has %lld rows, its %s '%s' makes %d", what, (long long)rows,
			made, label, m->rows);
	if (m->max_rows && rows > m->max_rows)
		return vfm_fail(err, VFM_EINPUT, "the %s has %lld rows, its %s '%s' makes at most %d", what,
			(long long)rows, made, label, m->max_rows);
	return 0;
}

static void fill_encoder_id(struct vfm_encoder_id *all, const struct vfm_encoder_id *one)
{
	enum vfm_encoder_id_relation rel = vfm_encoder_id_compare(all, one);

	if (!all->name[0])
		*all = *one;
	if (rel != VFM_ENCODER_ID_SAME)
		return;
	if (!vfm_geometry_is_known(&all->geometry))
		all->geometry = one->geometry;
	if (!all->dim) {
		all->dim = one->dim;
		all->rows = one->rows;
	}
	if (!all->max_rows)
		all->max_rows = one->max_rows;
}

void vfm_encoder_ids_fill(struct vfm_encoder_ids *all, const struct vfm_encoder_ids *one)
{
	for (int e = 0; e < VFM_ENCODER_KINDS; e++)
		fill_encoder_id(&all->of[e], &one->of[e]);
}

/* Reads rec[section].maker. */
static int read_section_encoder(struct vfm_encoder_id *m, const json_t *rec, const char *section, struct vfm_err *err)
{
	const json_t *o = json_object_get(json_object_get(rec, section), "maker");
	char where[32];

	*m = (struct vfm_encoder_id){0};
	if (!o || json_is_null(o))
		return 0;
	snprintf(where, sizeof(where), "%s.maker", section);
	return vfm_rec_blame(vfm_encoder_id_from_json(m, o, where, err), err);
}

int vfm_encoder_ids_from_record(struct vfm_encoder_ids *m, const json_t *rec, struct vfm_err *err)
{
	struct vfm_encoder_id cond;

	*m = (struct vfm_encoder_ids){0};
	TRY(read_section_encoder(&m->tokenizer, rec, "latent", err));
	TRY(read_section_encoder(&m->text, rec, "text", err));
	TRY(read_section_encoder(&m->image, rec, "image", err));
	TRY(read_section_encoder(&m->text2, rec, "text2", err));
	TRY(read_section_encoder(&cond, rec, "cond", err));
	return vfm_rec_blame(
		vfm_encoder_id_check(VFM_ENCODER_TOKENIZER, &cond, "the condition", &m->tokenizer, "the latent", err),
		err);
}

json_t *vfm_encoder_ids_json(const struct vfm_encoder_ids *m)
{
	json_t *o = json_object();

	for (int e = 0; e < VFM_ENCODER_KINDS; e++)
		if (m->of[e].name[0])
			json_object_set_new(o, vfm_encoder_kinds[e].key, vfm_encoder_id_json(&m->of[e]));
	return o;
}

static int read_one(
	struct vfm_encoder_id *m, const json_t *all, const char *where, const char *key, struct vfm_err *err)
{
	const json_t *o = json_object_get(all, key);
	char path[80];

	snprintf(path, sizeof(path), "%s.%s", where, key);
	return o ? vfm_encoder_id_from_json(m, o, path, err) : 0;
}

int vfm_encoder_ids_from_json(struct vfm_encoder_ids *m, const json_t *o, const char *where, struct vfm_err *err)
{
	*m = (struct vfm_encoder_ids){0};
	if (!o)
		return 0;
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	for (int e = 0; e < VFM_ENCODER_KINDS; e++)
		TRY(read_one(&m->of[e], o, where, vfm_encoder_kinds[e].key, err));
	return 0;
}

/* ---- differences that a user accepted ---- */

json_t *vfm_forced_entry(const char *tool, enum vfm_encoder_kind e, const char *file,
	const struct vfm_encoder_id *expected, const struct vfm_encoder_id *used)
{
	return json_pack("{s:s,s:s,s:s,s:o,s:o}", "tool", tool, "encoder", vfm_encoder_kinds[e].key, "file", file,
		"expected", vfm_encoder_id_json(expected), "used", vfm_encoder_id_json(used));
}

static bool has_entry(const json_t *all, const json_t *entry)
{
	const json_t *e;
	size_t i;

	json_array_foreach(all, i, e) if (json_equal(e, entry)) return true;
	return false;
}

void vfm_forced_add(json_t **all, const json_t *more)
{
	json_t *e;
	size_t i;

	json_array_foreach(more, i, e)
	{
		if (!*all)
			*all = json_array();
		if (!has_entry(*all, e))
			json_array_append_new(*all, json_deep_copy(e));
	}
}
