/* mds.c - parses index.json and the offset tables of MDS shards, and reads arrays from them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "data/dataset/index.h"
#include "base/le.h"
#include "data/dataset/mds_impl.h"
#include "io/hash.h"
#include "io/json.h"

#define MAX_INDEX ((size_t)1 << 30)

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
		c->encoding = vfm_arena_strdup(&m->arena, encoding);
		c->bytes = (uint32_t)bytes;
		vfm_mds_parse_encoding(c);
	}
	return 0;
}

/* A compressed shard can be read if the file from which it was made is also present. */
static int check_compression(const char *dir, const struct vfm_mds_shard *s, const json_t *o, struct vfm_err *err)
{
	const char *how = json_string_value(json_object_get(o, "compression"));
	char *path = vfm_strfmt("%s/%s", dir, s->file);
	bool is_there = access(path, F_OK) == 0;

	free(path);
	if (!how || is_there)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"'%s' exists only compressed (%.40s): no sample of it can be read alone; decompress it next to "
		"index.json",
		s->file, how);
}

static int parse_hashes(struct vfm_mds *m, struct vfm_mds_shard *s, const json_t *hashes, struct vfm_err *err)
{
	const char *algorithm;
	json_t *value;

	s->hashes = vfm_arena_alloc(&m->arena, (json_object_size(hashes) + 1) * sizeof(*s->hashes));
	json_object_foreach((json_t *)(uintptr_t)hashes, algorithm, value)
	{
		if (!json_is_string(value))
			return vfm_fail(err, VFM_EUSAGE, "raw_data.hashes.%.40s: expected a text", algorithm);
		s->hashes[s->n_hashes++] = (struct vfm_mds_hash){
			vfm_arena_strdup(&m->arena, algorithm), vfm_arena_strdup(&m->arena, json_string_value(value))};
	}
	return 0;
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
	if (!vfm_shard_name_ok(file, true))
		return vfm_fail(err, VFM_EUSAGE,
			"raw_data.basename: '%.100s': expected a file in this folder or below, of at most 31 bytes",
			file);
	vfm_grow(&m->shards, &m->cap, m->n + 1, sizeof(*m->shards));
	s = &m->shards[m->n];
	*s = (struct vfm_mds_shard){
		.file = vfm_arena_strdup(&m->arena, file), .bytes = (uint64_t)bytes, .samples = (uint32_t)samples};
	TRY(parse_hashes(m, s, json_object_get(raw, "hashes"), err));
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

static int parse_shards(struct vfm_mds *m, const char *dir, const json_t *root, const struct vfm_mds_choices *choices,
	struct vfm_err *err)
{
	const json_t *shards = json_object_get(root, "shards"), *shard;
	size_t i;

	if (json_array_size(shards) < 1)
		return vfm_fail(err, VFM_EUSAGE, "shards: expected an array of at least one");
	json_array_foreach(shards, i, shard)
	{
		if (parse_shard(m, dir, shard, err) < 0 ||
			vfm_mds_choose(&m->shards[m->n - 1], choices, &m->arena, err) < 0)
			return vfm_err_context(err, "shards[%zu]", i);
	}
	return 0;
}

int vfm_mds_open(struct vfm_mds *m, const char *dir, const char *columns, bool needs_latent, struct vfm_err *err)
{
	char *path = index_path(dir);
	struct vfm_mds_choices choices = {.needs_latent = needs_latent};
	json_t *root = NULL;
	int rc;

	if (vfm_mds_parse_choices(&choices, columns, &m->arena, err) < 0) {
		rc = vfm_err_context(err, "--columns");
		goto out;
	}
	root = vfm_json_load(path, MAX_INDEX, err);
	rc = root ? parse_shards(m, dir, root, &choices, err) : err->code;
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

static uint64_t table_bytes(const struct vfm_mds_shard *s)
{
	return 4 * ((uint64_t)s->samples + 2);
}

int vfm_mds_check(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, struct vfm_err *err)
{
	if (size != s->bytes)
		return vfm_fail(err, VFM_EINPUT, "%" PRIu64 " bytes where index.json says %" PRIu64, size, s->bytes);
	if (size < table_bytes(s) || vfm_read_le32(data) != s->samples)
		return vfm_fail(err, VFM_EINPUT, "not a shard of %u samples, as index.json says", s->samples);
	return 0;
}

int vfm_mds_check_hashes(
	const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, const char **unchecked, struct vfm_err *err)
{
	*unchecked = NULL;
	for (int i = 0; i < s->n_hashes; i++) {
		const struct vfm_mds_hash *h = &s->hashes[i];
		char hex[VFM_DIGEST_HEX];

		if (!vfm_digest_of(h->algorithm, data, size, hex))
			*unchecked = *unchecked ? *unchecked : h->algorithm;
		else if (strcasecmp(hex, h->hex) != 0)
			return vfm_fail(
				err, VFM_EINPUT, "its %s is %s, index.json says %.128s", h->algorithm, hex, h->hex);
	}
	return 0;
}

int vfm_mds_sample(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, uint32_t i, uint64_t *at,
	uint64_t *bytes, uint64_t whole[2], struct vfm_err *err)
{
	uint64_t begin = vfm_read_le32(data + 4 + 4 * (uint64_t)i), end = vfm_read_le32(data + 8 + 4 * (uint64_t)i),
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
		bytes[k] = vfm_read_le32(data + p);
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
	for (int i = 0; i < VFM_MDS_TYPES && bytes > 0; i++)
		if (vfm_mds_types[i].number == value[0])
			n->type = vfm_mds_types[i].type;
	if (n->type == VFM_NPY_NONE)
		return vfm_fail(err, VFM_EINPUT, "%s: elements of an unknown type", what);
	n->header_bytes++;
	return 0;
}

/* A dimension of 0 is as large as the bytes say, if they say a whole number; else check_mds_size fails. */
static void fill_free_dimension(struct vfm_npy *n, uint64_t bytes)
{
	uint64_t others = vfm_npy_type_size(n->type), d;

	for (int i = 0; i < n->ndim && others <= bytes; i++)
		others *= n->shape[i] ? (uint64_t)n->shape[i] : 1;
	d = bytes / others;
	for (int i = 0; i < n->ndim; i++)
		if (n->shape[i] == 0)
			n->shape[i] = d < 1 ? 1 : d > INT32_MAX ? INT32_MAX : (int64_t)d;
}

/* Reads the shape, if the value has it: a byte, 4 x dimensions + log2 of the bytes of each, and the dimensions. */
static int read_mds_shape(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err)
{
	size_t at = n->header_bytes + 1, size;

	n->ndim = c->ndim;
	memcpy(n->shape, c->shape, sizeof(n->shape));
	if (c->has_shape) {
		fill_free_dimension(n, bytes - n->header_bytes);
		return 0;
	}
	if (bytes < at)
		return vfm_fail(err, VFM_EINPUT, "%s: truncated in its header", what);
	n->ndim = value[at - 1] >> 2;
	size = (size_t)1 << (value[at - 1] & 3);
	if (n->ndim < 1 || n->ndim > VFM_NPY_DIMS || bytes - at < size * (size_t)n->ndim)
		return vfm_fail(err, VFM_EINPUT, "%s: %d dimensions, or truncated in its header", what, n->ndim);
	for (int i = 0; i < n->ndim; i++, at += size) {
		uint64_t d = vfm_read_le(value + at, size);

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
	struct vfm_buf shape = {0};

	for (int i = 0; i < n->ndim && count <= elements; i++) /* at most 2^63: a dimension has 31 bits */
		count *= (uint64_t)n->shape[i];
	if (count == elements && left == count * vfm_npy_type_size(n->type)) {
		n->data_bytes = left;
		return 0;
	}
	for (int i = 0; i < n->ndim; i++)
		vfm_buf_addf(&shape, "%s%" PRId64, i ? "x" : "", n->shape[i]);
	vfm_fail(err, VFM_EINPUT, "%s: %" PRIu64 " bytes are no array of %s elements of %d bytes", what, left,
		shape.data, (int)vfm_npy_type_size(n->type));
	vfm_buf_release(&shape);
	return VFM_EINPUT;
}

/* Checks that uint16 elements, and no others, are marked as bfloat16 (:bf16). */
static int check_mds_bf16(
	const struct vfm_npy *n, const struct vfm_mds_column *c, const char *what, struct vfm_err *err)
{
	if (n->type == VFM_NPY_BF16 && !c->is_bf16 && c->kind != VFM_MDS_BYTES)
		return vfm_fail(err, VFM_EINPUT,
			"%s: column '%s' has uint16 elements; if they are bfloat16, add :bf16 to its name (--columns)",
			what, c->name);
	if (n->type != VFM_NPY_BF16 && c->is_bf16)
		return vfm_fail(err, VFM_EINPUT,
			"%s: column '%s' has %s elements, not uint16: leave out :bf16 (--columns)", what, c->name,
			vfm_npy_type_name(n->type));
	return 0;
}

int vfm_mds_array(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err)
{
	bool is_npy = bytes >= 6 && memcmp(value, "\x93NUMPY", 6) == 0;

	*n = (struct vfm_npy){0};
	if (c->kind == VFM_MDS_BYTES) {
		if (!is_npy)
			return vfm_fail(err, VFM_EINPUT,
				"%s: column '%s' has no .npy file; if it has plain elements, name their type and shape "
				"(--columns PART=%s:float16:DxDxDxD)",
				what, c->name, c->name);
		TRY(vfm_npy_parse(n, value, bytes, bytes, what, err));
		return check_mds_bf16(n, c, what, err);
	}
	if (c->is_raw && is_npy)
		return vfm_fail(err, VFM_EINPUT,
			"%s: column '%s' has .npy files, no plain elements: leave out type and shape (--columns)", what,
			c->name);
	TRY(read_mds_type(n, c, value, bytes, what, err));
	TRY(check_mds_bf16(n, c, what, err));
	TRY(read_mds_shape(n, c, value, bytes, what, err));
	return check_mds_size(n, bytes, what, err);
}
