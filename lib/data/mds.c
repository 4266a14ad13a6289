#include "data/mds.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/num.h"
#include "data/caption.h"
#include "data/extra.h"

#define MAX_INDEX ((size_t)1 << 30)

/* ---- names of columns ---- */

/* Returns the part that a name stands for, "latent.npy" of "latent"; NULL: none. */
static const char *part_named(struct vfm_arena *arena, const char *name)
{
	char caption[VFM_CAPTION_NAME], *part = vfm_arena_alloc(arena, strlen(name) + 5);

	if (!strcmp(name, "json") || !strcmp(name, "key"))
		return strcpy(part, name);
	sprintf(part, "%s.npy", name);
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (!strcmp(part, vfm_extra_kinds[e].part))
			return part;
	if (!strcmp(name, "latent") || vfm_text_part_name(part, caption))
		return part;
	return NULL;
}

struct renaming {
	const char *part, *column;
	bool is_bf16;
};

struct renamings {
	struct renaming r[VFM_MDS_COLUMNS];
	int n;
	bool needs_latent;
};

static int parse_renaming(struct vfm_mds *m, char *item, struct renaming *r, struct vfm_err *err)
{
	char *column = strchr(item, '='), *suffix = column ? strrchr(column, ':') : NULL;

	if (!column || column == item || !column[1])
		return vfm_fail(err, VFM_EUSAGE, "expected PART=COLUMN, got '%s'", item);
	*column++ = 0;
	if (suffix && !strcmp(suffix, ":bf16")) {
		*suffix = 0;
		r->is_bf16 = true;
	}
	r->part = part_named(&m->arena, item);
	r->column = column;
	if (!r->part)
		return vfm_fail(
			err, VFM_EUSAGE, "'%s': expected latent, text, text.NAME, cond, image, json or key", item);
	return 0;
}

static int parse_renamings(struct vfm_mds *m, const char *columns, struct renamings *to, struct vfm_err *err)
{
	char *text = columns ? vfm_arena_strdup(&m->arena, columns) : NULL, *save = NULL;

	for (char *item = text ? strtok_r(text, ",", &save) : NULL; item; item = strtok_r(NULL, ",", &save)) {
		if (to->n == VFM_MDS_COLUMNS)
			return vfm_fail(err, VFM_EUSAGE, "more than %d columns", VFM_MDS_COLUMNS);
		TRY(parse_renaming(m, item, &to->r[to->n], err));
		for (int i = 0; i < to->n; i++)
			if (!strcmp(to->r[i].part, to->r[to->n].part))
				return vfm_fail(err, VFM_EUSAGE, "'%s' is named twice", item);
		to->n++;
	}
	return 0;
}

/* A shard without latents is useless: its columns have other names. */
static int check_latent(const struct vfm_mds_shard *s, struct vfm_err *err)
{
	struct vfm_buf names = {0};

	for (int k = 0; k < s->n_columns; k++) {
		if (s->columns[k].part && !strcmp(s->columns[k].part, "latent.npy")) {
			vfm_buf_release(&names);
			return 0;
		}
		vfm_buf_addf(&names, "%s%.60s", k ? ", " : "", s->columns[k].name);
	}
	vfm_fail(err, VFM_EUSAGE, "'%s' has no column 'latent' but %s (--columns latent=COLUMN)", s->file, names.data);
	vfm_buf_release(&names);
	return VFM_EUSAGE;
}

/* Gives the columns of a shard their parts.  A part that was renamed is not also that of a column of its name. */
static int name_columns(struct vfm_mds *m, struct vfm_mds_shard *s, const struct renamings *to, struct vfm_err *err)
{
	for (int k = 0; k < s->n_columns; k++) {
		struct vfm_mds_column *c = &s->columns[k];

		c->part = part_named(&m->arena, c->name);
		for (int i = 0; i < to->n && c->part; i++)
			if (!strcmp(to->r[i].part, c->part))
				c->part = NULL;
	}
	for (int i = 0; i < to->n; i++) {
		struct vfm_mds_column *c = NULL;

		for (int k = 0; k < s->n_columns && !c; k++)
			if (!strcmp(s->columns[k].name, to->r[i].column))
				c = &s->columns[k];
		if (!c)
			return vfm_fail(err, VFM_EUSAGE, "'%s' has no column '%s'", s->file, to->r[i].column);
		c->part = to->r[i].part;
		c->is_bf16 = to->r[i].is_bf16;
	}
	return to->needs_latent ? check_latent(s, err) : 0;
}

/* ---- encodings ---- */

/* The types of elements of "ndarray"; with dynamic type a value begins with the number. */
static const struct {
	const char *name;
	int number;
	enum vfm_npy_type type;
} types[] = {{"float16", 18, VFM_NPY_F16}, {"float32", 34, VFM_NPY_F32}, {"float64", 66, VFM_NPY_F64},
	{"uint8", 8, VFM_NPY_U8}, {"int32", 33, VFM_NPY_I32}, {"int64", 65, VFM_NPY_I64}, {"uint16", 16, VFM_NPY_BF16}};

enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

/* "ndarray[:TYPE[:D,D,…]]".  An encoding that is not understood makes a column that cannot be read. */
static void parse_ndarray(struct vfm_mds_column *c, const char *text)
{
	size_t len = strcspn(text, ":");
	const char *at = text[len] ? text + len + 1 : NULL;

	for (int i = 0; i < N_TYPES; i++)
		if (strlen(types[i].name) == len && !strncmp(types[i].name, text, len)) {
			c->has_type = true;
			c->type = types[i].type;
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

static void parse_encoding(struct vfm_mds_column *c, const char *text)
{
	c->kind = VFM_MDS_OTHER;
	if (!strcmp(text, "bytes"))
		c->kind = VFM_MDS_BYTES;
	else if (!strcmp(text, "str") || !strcmp(text, "json"))
		c->kind = VFM_MDS_TEXT;
	else if (!strcmp(text, "int"))
		c->kind = VFM_MDS_INT;
	else if (!strncmp(text, "ndarray", 7) && (!text[7] || text[7] == ':')) {
		c->kind = VFM_MDS_NDARRAY;
		if (text[7])
			parse_ndarray(c, text + 8);
	}
}

/* ---- index.json ---- */

static int parse_columns(struct vfm_mds *m, struct vfm_mds_shard *s, const json_t *o, struct vfm_err *err)
{
	const json_t *names = json_object_get(o, "column_names"), *encodings = json_object_get(o, "column_encodings"),
		     *sizes = json_object_get(o, "column_sizes");
	size_t n = json_array_size(names);

	if (n < 1 || n > VFM_MDS_COLUMNS || json_array_size(encodings) != n || json_array_size(sizes) != n)
		return vfm_fail(err, VFM_EUSAGE,
			"column_names, column_encodings, column_sizes: expected arrays of equal length, 1 to %d",
			VFM_MDS_COLUMNS);
	s->n_columns = (int)n;
	s->columns = vfm_arena_alloc(&m->arena, n * sizeof(*s->columns));
	for (size_t i = 0; i < n; i++) {
		struct vfm_mds_column *c = &s->columns[i];
		const char *name = json_string_value(json_array_get(names, i)),
			   *encoding = json_string_value(json_array_get(encodings, i));
		const json_t *size = json_array_get(sizes, i);
		json_int_t bytes = json_integer_value(size);

		*c = (struct vfm_mds_column){0};
		if (!name || !encoding || (!json_is_null(size) && !json_is_integer(size)) || bytes < 0 ||
			bytes > UINT32_MAX)
			return vfm_fail(err, VFM_EUSAGE, "column %zu: expected a name, an encoding and a size", i);
		c->name = vfm_arena_strdup(&m->arena, name);
		c->bytes = (uint32_t)bytes;
		parse_encoding(c, encoding);
	}
	return 0;
}

/* A shard that is compressed can be read if the file that it was made of is there, too. */
static int check_compression(const char *dir, const struct vfm_mds_shard *s, const json_t *o, struct vfm_err *err)
{
	const char *how = json_string_value(json_object_get(o, "compression"));
	char *path = vfm_strfmt("%s/%s", dir, s->file);
	bool is_there = access(path, F_OK) == 0;

	free(path);
	if (!how || is_there)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"'%s' exists only compressed (%.40s): no sample of it can be read alone; decompress it beside "
		"index.json",
		s->file, how);
}

static int parse_shard(struct vfm_mds *m, const char *dir, const json_t *o, struct vfm_err *err)
{
	const json_t *raw = json_object_get(o, "raw_data");
	const char *format = "", *file = "";
	int64_t version = 0, bytes = 0, samples = 0;
	struct vfm_mds_shard *s;

	TRY(vfm_json_str(o, "", "format", true, &format, err));
	if (strcmp(format, "mds"))
		return vfm_fail(err, VFM_EUSAGE, "format: expected mds, got '%.40s'", format);
	TRY(vfm_json_i64(o, "", "version", true, 0, INT32_MAX, &version, err));
	if (version != 2)
		return vfm_fail(err, VFM_EUSAGE, "version: expected 2, got %" PRId64, version);
	TRY(vfm_json_i64(o, "", "samples", true, 1, UINT32_MAX / 4 - 2, &samples, err));
	TRY(vfm_json_str(raw, "raw_data", "basename", true, &file, err));
	TRY(vfm_json_i64(raw, "raw_data", "bytes", true, 0, INT64_MAX, &bytes, err));
	if (!*file || *file == '.' || strchr(file, '/'))
		return vfm_fail(err, VFM_EUSAGE, "raw_data.basename: '%.100s' is no name of a file", file);
	vfm_grow(&m->shards, &m->cap, m->n + 1, sizeof(*m->shards));
	s = &m->shards[m->n];
	*s = (struct vfm_mds_shard){
		.file = vfm_arena_strdup(&m->arena, file), .bytes = (uint64_t)bytes, .samples = (uint32_t)samples};
	TRY(parse_columns(m, s, o, err));
	TRY(check_compression(dir, s, o, err));
	m->n++;
	return 0;
}

static char *index_path(const char *dir)
{
	return vfm_strfmt("%s/index.json", dir);
}

bool vfm_mds_exists(const char *dir)
{
	char *path = index_path(dir);
	bool exists = access(path, F_OK) == 0;

	free(path);
	return exists;
}

static int parse_shards(
	struct vfm_mds *m, const char *dir, const json_t *root, const struct renamings *to, struct vfm_err *err)
{
	const json_t *shards = json_object_get(root, "shards"), *shard;
	size_t i;

	if (json_array_size(shards) < 1)
		return vfm_fail(err, VFM_EUSAGE, "shards: expected an array of at least one");
	json_array_foreach(shards, i, shard)
	{
		if (parse_shard(m, dir, shard, err) < 0 || name_columns(m, &m->shards[m->n - 1], to, err) < 0)
			return vfm_err_context(err, "shards[%zu]", i);
	}
	return 0;
}

int vfm_mds_open(struct vfm_mds *m, const char *dir, const char *columns, bool needs_latent, struct vfm_err *err)
{
	char *path = index_path(dir);
	struct renamings to = {.needs_latent = needs_latent};
	json_t *root = NULL;
	int rc;

	if (parse_renamings(m, columns, &to, err) < 0) {
		rc = vfm_err_context(err, "--columns");
		goto out;
	}
	root = vfm_json_load(path, MAX_INDEX, err);
	rc = root ? parse_shards(m, dir, root, &to, err) : err->code;
	if (root && rc < 0)
		vfm_err_context(err, "'%s'", path);
out:
	json_decref(root);
	free(path);
	return rc;
}

void vfm_mds_release(struct vfm_mds *m)
{
	free(m->shards);
	vfm_arena_release(&m->arena);
	*m = (struct vfm_mds){0};
}

/* ---- a shard ---- */

static uint32_t mds_number(const uint8_t *p)
{
	uint32_t x;

	memcpy(&x, p, sizeof(x));
	return le32toh(x);
}

static uint64_t table_bytes(const struct vfm_mds_shard *s)
{
	return 4 * ((uint64_t)s->samples + 2);
}

int vfm_mds_check(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, struct vfm_err *err)
{
	if (size != s->bytes)
		return vfm_fail(err, VFM_EINPUT, "%" PRIu64 " bytes where index.json says %" PRIu64, size, s->bytes);
	if (size < table_bytes(s) || mds_number(data) != s->samples)
		return vfm_fail(err, VFM_EINPUT, "not a shard of %u samples, as index.json says", s->samples);
	return 0;
}

int vfm_mds_sample(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, uint32_t i, uint64_t *at,
	uint64_t *bytes, uint64_t whole[2], struct vfm_err *err)
{
	uint64_t begin = mds_number(data + 4 + 4 * (uint64_t)i), end = mds_number(data + 8 + 4 * (uint64_t)i),
		 p = begin;

	if (begin < table_bytes(s) || end < begin || end > size)
		return vfm_fail(err, VFM_EINPUT, "sample %u: bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64, i, begin,
			end, size);
	for (int k = 0; k < s->n_columns; k++) {
		bytes[k] = s->columns[k].bytes;
		if (bytes[k])
			continue;
		if (end - p < 4)
			return vfm_fail(err, VFM_EINPUT, "sample %u ends in the sizes of its columns", i);
		bytes[k] = mds_number(data + p);
		p += 4;
	}
	for (int k = 0; k < s->n_columns; k++) {
		if (end - p < bytes[k])
			return vfm_fail(err, VFM_EINPUT, "sample %u ends in column '%s'", i, s->columns[k].name);
		at[k] = p;
		p += bytes[k];
	}
	if (p != end)
		return vfm_fail(err, VFM_EINPUT, "sample %u has %" PRIu64 " bytes more than its columns", i, end - p);
	whole[0] = begin;
	whole[1] = end;
	return 0;
}

/* ---- arrays ---- */

/* Reads the type of the elements, if the value has it. */
static int read_mds_type(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err)
{
	n->type = c->type;
	if (c->has_type)
		return 0;
	for (int i = 0; i < N_TYPES && bytes > 0; i++)
		if (types[i].number == value[0])
			n->type = types[i].type;
	if (n->type == VFM_NPY_NONE)
		return vfm_fail(err, VFM_EINPUT, "%s: elements of an unknown type", what);
	n->header_bytes++;
	return 0;
}

/* Reads the shape, if the value has it: a byte, 4 x dimensions + log2 of the bytes of each, and the dimensions. */
static int read_mds_shape(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err)
{
	size_t at = n->header_bytes + 1, size;

	n->ndim = c->ndim;
	memcpy(n->shape, c->shape, sizeof(n->shape));
	if (c->has_shape)
		return 0;
	if (bytes < at)
		return vfm_fail(err, VFM_EINPUT, "%s: truncated in its header", what);
	n->ndim = value[at - 1] >> 2;
	size = (size_t)1 << (value[at - 1] & 3);
	if (n->ndim < 1 || n->ndim > VFM_NPY_DIMS || bytes - at < size * (size_t)n->ndim)
		return vfm_fail(err, VFM_EINPUT, "%s: %d dimensions, or truncated in its header", what, n->ndim);
	for (int i = 0; i < n->ndim; i++, at += size) {
		uint64_t d = 0;

		memcpy(&d, value + at, size);
		d = le64toh(d);
		if (d < 1 || d > INT32_MAX)
			return vfm_fail(err, VFM_EINPUT, "%s: dimension %d is %" PRIu64, what, i, d);
		n->shape[i] = (int64_t)d;
	}
	n->header_bytes = at;
	return 0;
}

static int check_mds_size(struct vfm_npy *n, uint64_t bytes, const char *what, struct vfm_err *err)
{
	uint64_t left = bytes - n->header_bytes, elements = left / vfm_npy_type_size(n->type), count = 1;

	for (int i = 0; i < n->ndim && count <= elements; i++) /* at most 2^63: a dimension has 31 bits */
		count *= (uint64_t)n->shape[i];
	if (count != elements || left != count * vfm_npy_type_size(n->type))
		return vfm_fail(err, VFM_EINPUT, "%s: its shape and its %" PRIu64 " bytes disagree", what, bytes);
	n->data_bytes = left;
	return 0;
}

int vfm_mds_array(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err)
{
	*n = (struct vfm_npy){0};
	if (c->kind == VFM_MDS_BYTES)
		return vfm_npy_parse(n, value, bytes, bytes, what, err);
	if (c->kind != VFM_MDS_NDARRAY)
		return vfm_fail(err, VFM_EINPUT, "%s: column '%s' has no arrays (encoding ndarray, or bytes with .npy)",
			what, c->name);
	TRY(read_mds_type(n, c, value, bytes, what, err));
	if (n->type == VFM_NPY_BF16 && !c->is_bf16)
		return vfm_fail(err, VFM_EINPUT,
			"%s: column '%s' has uint16 elements; if they are bfloat16, add :bf16 to its name (--columns)",
			what, c->name);
	TRY(read_mds_shape(n, c, value, bytes, what, err));
	return check_mds_size(n, bytes, what, err);
}
