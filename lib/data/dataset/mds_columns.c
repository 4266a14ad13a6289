/* mds_columns.c - matches the columns of an MDS shard with the parts of a sample. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset/mds_impl.h"
#include "data/record/caption.h"
#include "data/record/extra.h"

const struct vfm_mds_type vfm_mds_types[VFM_MDS_TYPES] = {{"float16", 18, VFM_NPY_F16}, {"float32", 34, VFM_NPY_F32},
	{"float64", 66, VFM_NPY_F64}, {"uint8", 8, VFM_NPY_U8}, {"int32", 33, VFM_NPY_I32}, {"int64", 65, VFM_NPY_I64},
	{"uint16", 16, VFM_NPY_BF16}};

/* ---- encodings ---- */

/* "TYPE[:D,D,…]", what follows "ndarray:". */
static void parse_ndarray(struct vfm_mds_column *c, const char *text)
{
	size_t len = strcspn(text, ":");
	const char *at = text[len] ? text + len + 1 : NULL;

	for (int i = 0; i < VFM_MDS_TYPES; i++)
		if (strlen(vfm_mds_types[i].name) == len && !strncmp(vfm_mds_types[i].name, text, len)) {
			c->has_type = true;
			c->type = vfm_mds_types[i].type;
		}
	if (!c->has_type)
		c->kind = VFM_MDS_OTHER;
	while (at) {
		char *end;
		long long d = strtoll(at, &end, 10);

		if (end == at || d < 1 || d > INT32_MAX || (*end && *end != ',') || c->ndim == VFM_NPY_DIMS) {
			c->kind = VFM_MDS_OTHER;
			return;
		}
		c->has_shape = true;
		c->shape[c->ndim++] = d;
		at = *end ? end + 1 : NULL;
	}
}

void vfm_mds_parse_encoding(struct vfm_mds_column *c)
{
	static const struct {
		const char *name;
		enum vfm_mds_kind kind;
		uint32_t bytes;
		bool is_signed;
	} known[] = {{"bytes", VFM_MDS_BYTES, 0, false}, {"str", VFM_MDS_STR, 0, false},
		{"str_int", VFM_MDS_STR, 0, false}, {"json", VFM_MDS_JSON, 0, false}, {"int", VFM_MDS_INT, 8, true},
		{"int8", VFM_MDS_INT, 1, true}, {"int16", VFM_MDS_INT, 2, true}, {"int32", VFM_MDS_INT, 4, true},
		{"int64", VFM_MDS_INT, 8, true}, {"uint8", VFM_MDS_INT, 1, false}, {"uint16", VFM_MDS_INT, 2, false},
		{"uint32", VFM_MDS_INT, 4, false}, {"uint64", VFM_MDS_INT, 8, false}};

	c->kind = VFM_MDS_OTHER;
	/* A program may use one of these names for its own encoding; its values then have another size. */
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(c->encoding, known[i].name) && c->bytes == known[i].bytes) {
			c->kind = known[i].kind;
			c->is_signed = known[i].is_signed;
		}
	if (!strncmp(c->encoding, "ndarray", 7) && (!c->encoding[7] || c->encoding[7] == ':')) {
		c->kind = VFM_MDS_NDARRAY;
		if (c->encoding[7])
			parse_ndarray(c, c->encoding + 8);
	}
}

/* ---- parts ---- */

/* Returns the part that a name means, "latent.npy" of "latent"; NULL: none. */
static const char *part_named(struct vfm_arena *arena, const char *name)
{
	char caption[VFM_CAPTION_NAME + 1], *part = vfm_arena_alloc(arena, strlen(name) + 5);

	if (!strcmp(name, "json") || !strcmp(name, "key"))
		return strcpy(part, name);
	if (!strncmp(name, "text.", 5) && !vfm_caption_name_ok(name + 5))
		return NULL;
	sprintf(part, "%s.npy", name);
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (!strcmp(part, vfm_extra_kinds[e].part))
			return part;
	if (!strcmp(name, "latent") || vfm_text_part_name(part, caption))
		return part;
	return NULL;
}

/* Checks which columns can be a part. */
static const char *fitting_encodings(const char *part)
{
	if (!strcmp(part, "key"))
		return "str, bytes, str_int or an integer";
	return strcmp(part, "json")
		? "ndarray of float16, float32 or uint16, bytes, or a type and a shape (COLUMN:float16:DxDxDxD)"
		: "json, str or bytes";
}

static bool column_fits(const char *part, const struct vfm_mds_column *c)
{
	enum vfm_mds_kind kind = c->kind;

	if (!strcmp(part, "key"))
		return kind == VFM_MDS_STR || kind == VFM_MDS_BYTES || kind == VFM_MDS_INT;
	if (!strcmp(part, "json"))
		return kind == VFM_MDS_JSON || kind == VFM_MDS_STR || kind == VFM_MDS_BYTES;
	if (kind == VFM_MDS_NDARRAY && c->has_type)
		return c->type == VFM_NPY_F16 || c->type == VFM_NPY_BF16 || c->type == VFM_NPY_F32;
	return kind == VFM_MDS_NDARRAY || kind == VFM_MDS_BYTES;
}

/* ---- the choice of the user ---- */

/* Parses "DxDxD", where one D may be "?". */
static bool parse_raw_shape(struct vfm_npy *n, const char *text)
{
	bool has_free = false;

	for (;;) {
		char *end = (char *)(uintptr_t)text + 1;
		long long d = 0;

		if (*text != '?') {
			if (*text < '1' || *text > '9')
				return false;
			d = strtoll(text, &end, 10);
		} else if (has_free) {
			return false;
		}
		if (d > INT32_MAX || n->ndim == VFM_NPY_DIMS)
			return false;
		has_free |= d == 0;
		n->shape[n->ndim++] = d;
		if (!*end)
			return true;
		if (*end != 'x')
			return false;
		text = end + 1;
	}
}

static enum vfm_npy_type raw_type(const char *name)
{
	if (!strcmp(name, "float16"))
		return VFM_NPY_F16;
	if (!strcmp(name, "bfloat16"))
		return VFM_NPY_BF16;
	return strcmp(name, "float32") ? VFM_NPY_NONE : VFM_NPY_F32;
}

/* Takes ":bf16" or ":TYPE:DxDxD" from the end of a column's name. */
static void take_suffix(struct vfm_mds_choice *c, char *column)
{
	struct vfm_npy n = {0};
	char *last = strrchr(column, ':'), *type;

	if (!last)
		return;
	if (!strcmp(last, ":bf16")) {
		*last = 0;
		c->is_bf16 = true;
		return;
	}
	*last = 0;
	type = strrchr(column, ':');
	n.type = type ? raw_type(type + 1) : VFM_NPY_NONE;
	if (n.type == VFM_NPY_NONE || !parse_raw_shape(&n, last + 1)) {
		*last = ':'; /* of the name */
		return;
	}
	*type = 0;
	c->is_raw = true;
	c->raw = n;
}

static int parse_column_choice(struct vfm_mds_choice *c, char *item, struct vfm_arena *arena, struct vfm_err *err)
{
	char *column = strchr(item, '=');

	if (!column || column == item)
		return vfm_fail(err, VFM_EUSAGE, "expected PART=COLUMN, got '%s'%s", item,
			*item >= '0' && *item <= '9' ? "; the dimensions of a shape are DxDxDxD" : "");
	*column++ = 0;
	take_suffix(c, column);
	c->part = part_named(arena, item);
	c->column = column;
	if (!c->part)
		return vfm_fail(
			err, VFM_EUSAGE, "'%s': expected latent, text, text.NAME, cond, image, json or key", item);
	if ((c->is_raw || c->is_bf16) && (!strcmp(c->part, "key") || !strcmp(c->part, "json")))
		return vfm_fail(err, VFM_EUSAGE, "'%s' is no array: it has no type and shape", item);
	return 0;
}

int vfm_mds_parse_choices(struct vfm_mds_choices *to, const char *text, struct vfm_arena *arena, struct vfm_err *err)
{
	char *copy = text ? vfm_arena_strdup(arena, text) : NULL, *save = NULL;

	for (char *item = copy ? strtok_r(copy, ",", &save) : NULL; item; item = strtok_r(NULL, ",", &save)) {
		struct vfm_mds_choice *c = &to->list[to->n];

		if (to->n == VFM_MDS_COLUMNS)
			return vfm_fail(err, VFM_EUSAGE, "more than %d columns", VFM_MDS_COLUMNS);
		TRY(parse_column_choice(c, item, arena, err));
		for (int i = 0; i < to->n; i++) {
			if (!strcmp(to->list[i].part, c->part))
				return vfm_fail(err, VFM_EUSAGE, "'%s' is named twice", item);
			if (*c->column && !strcmp(to->list[i].column, c->column))
				return vfm_fail(err, VFM_EUSAGE, "column '%s' is named twice", c->column);
		}
		to->n++;
	}
	return 0;
}

/* ---- the columns of a shard ---- */

static int fail_unfit(const struct vfm_mds_column *c, const char *part, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE, "column '%s' (%s) cannot be %s: expected %s", c->name, c->encoding, part,
		fitting_encodings(part));
}

static int apply_choice(struct vfm_mds_column *c, const struct vfm_mds_choice *choice, struct vfm_err *err)
{
	c->part = choice->part;
	c->unfit = NULL;
	c->is_chosen = true;
	c->is_bf16 = choice->is_bf16;
	if (choice->is_raw && c->kind == VFM_MDS_NDARRAY)
		return vfm_fail(
			err, VFM_EUSAGE, "column '%s' (%s) has a type and a shape of its own", c->name, c->encoding);
	if (choice->is_raw) {
		c->kind = VFM_MDS_NDARRAY;
		c->has_type = c->has_shape = c->is_raw = true;
		c->is_bf16 = choice->raw.type == VFM_NPY_BF16;
		c->type = choice->raw.type;
		c->ndim = choice->raw.ndim;
		memcpy(c->shape, choice->raw.shape, sizeof(c->shape));
	}
	if (!column_fits(c->part, c))
		return fail_unfit(c, c->part, err);
	return 0;
}

/* A shard without latents is useless: its columns have other names. */
static int check_latent(const struct vfm_mds_shard *s, struct vfm_err *err)
{
	struct vfm_buf names = {0};

	for (int k = 0; k < s->n_columns; k++) {
		const struct vfm_mds_column *c = &s->columns[k];

		if (c->part && !strcmp(c->part, "latent.npy")) {
			vfm_buf_release(&names);
			return 0;
		}
		if (c->unfit && !strcmp(c->unfit, "latent.npy")) {
			vfm_buf_release(&names);
			return fail_unfit(c, c->unfit, err);
		}
		vfm_buf_addf(&names, "%s%.60s (%.60s)", k ? ", " : "", c->name, c->encoding);
	}
	vfm_fail(err, VFM_EUSAGE, "no column 'latent' but %s (--columns latent=COLUMN)", names.data);
	vfm_buf_release(&names);
	return VFM_EUSAGE;
}

/* A column that is not chosen has the part of its name, if its encoding fits. */
static void choose_by_names(struct vfm_mds_shard *s, const struct vfm_mds_choices *choices, struct vfm_arena *arena)
{
	for (int k = 0; k < s->n_columns; k++) {
		struct vfm_mds_column *c = &s->columns[k];

		c->part = part_named(arena, c->name);
		for (int i = 0; i < choices->n && c->part; i++)
			if (!strcmp(choices->list[i].part, c->part))
				c->part = NULL;
		if (c->part && !column_fits(c->part, c)) {
			c->unfit = c->part;
			c->part = NULL;
		}
	}
}

/* A wrong type or shape is, with its colons, part of a name that no column has. */
static int fail_no_column(const struct vfm_mds_shard *s, const char *name, struct vfm_err *err)
{
	for (int k = 0; k < s->n_columns; k++) {
		const char *have = s->columns[k].name;
		size_t n = strlen(have);

		if (!strncmp(name, have, n) && name[n] == ':')
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' has no column '%.200s'; after '%.100s' expected :bf16 or :TYPE:DxDxDxD, where "
				"TYPE is float16, bfloat16 or float32 and one D may be ?",
				s->file, name, have);
	}
	return vfm_fail(err, VFM_EUSAGE, "'%s' has no column '%s'", s->file, name);
}

int vfm_mds_choose(
	struct vfm_mds_shard *s, const struct vfm_mds_choices *choices, struct vfm_arena *arena, struct vfm_err *err)
{
	choose_by_names(s, choices, arena);
	for (int i = 0; i < choices->n; i++) {
		const struct vfm_mds_choice *choice = &choices->list[i];
		struct vfm_mds_column *c = NULL;

		for (int k = 0; k < s->n_columns && !c; k++)
			if (!strcmp(s->columns[k].name, choice->column))
				c = &s->columns[k];
		if (!c && *choice->column)
			return fail_no_column(s, choice->column, err);
		if (c && apply_choice(c, choice, err) < 0)
			return vfm_err_context(err, "'%s'", s->file);
	}
	if (choices->needs_latent && check_latent(s, err) < 0)
		return vfm_err_context(err, "'%s'", s->file);
	return 0;
}
