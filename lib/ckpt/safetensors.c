/* safetensors.c - parses and checks headers; lays out and writes files in canonical order. */
#include "ckpt/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "io/file.h"
#include "io/json.h"

static int parse_st_tensor(
	struct vfm_st_tensor *t, const json_t *v, uint64_t bytes, const char *file, struct vfm_err *err)
{
	const json_t *shape = json_object_get(v, "shape"), *offs = json_object_get(v, "data_offsets");
	const char *dtype = json_string_value(json_object_get(v, "dtype"));
	int64_t lo, hi, n;

	if (!json_is_object(v) || !dtype || !json_is_array(shape) || json_array_size(offs) != 2)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: tensor '%.200s': expected dtype, shape and data_offsets", file, t->name);
	if (vfm_dtype_parse(dtype, &t->dtype, NULL) < 0 || strcmp(vfm_dtype_st_name(t->dtype), dtype) != 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s': unknown dtype '%.32s'", file, t->name, dtype);
	if (json_array_size(shape) > VFM_NDIM_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s': %zu dimensions, at most %d", file, t->name,
			json_array_size(shape), VFM_NDIM_MAX);
	t->ndim = (int)json_array_size(shape);
	for (int d = 0; d < t->ndim; d++) {
		const json_t *x = json_array_get(shape, (size_t)d);

		t->shape[d] = json_is_integer(x) ? json_integer_value(x) : -1;
	}
	n = vfm_shape_numel(t->ndim, t->shape);
	if (n < 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s': bad shape", file, t->name);
	lo = json_is_integer(json_array_get(offs, 0)) ? json_integer_value(json_array_get(offs, 0)) : -1;
	hi = json_is_integer(json_array_get(offs, 1)) ? json_integer_value(json_array_get(offs, 1)) : -1;
	if (lo < 0 || hi < lo || (uint64_t)hi > bytes)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: tensor '%.200s': data offsets [%lld, %lld] beyond the data of %llu bytes", file, t->name,
			(long long)lo, (long long)hi, (unsigned long long)bytes);
	if ((uint64_t)(hi - lo) != (uint64_t)n * vfm_dtype_size(t->dtype)) /* n <= 2^60 */
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s': %lld bytes of data, the shape needs %llu", file,
			t->name, (long long)(hi - lo), (unsigned long long)n * vfm_dtype_size(t->dtype));
	t->begin = (uint64_t)lo;
	t->end = (uint64_t)hi;
	return 0;
}

static int parse_meta(struct vfm_st *st, const json_t *meta, const char *file, struct vfm_err *err)
{
	const char *key;
	const json_t *v;

	if (json_is_null(meta)) /* the Rust library writes and reads it as none */
		return 0;
	if (!json_is_object(meta))
		return vfm_fail(err, VFM_EUSAGE, "%s: __metadata__: expected an object", file);
	st->meta = vfm_calloc(json_object_size(meta) + 1, sizeof(*st->meta));
	json_object_foreach((json_t *)(uintptr_t)meta, key, v)
	{
		if (!json_is_string(v))
			return vfm_fail(err, VFM_EUSAGE, "%s: __metadata__.%.100s: expected a string", file, key);
		st->meta[st->n_meta].key = vfm_arena_strdup(&st->arena, key);
		st->meta[st->n_meta++].value = vfm_arena_strdup(&st->arena, json_string_value(v));
	}
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct vfm_st_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(struct vfm_st_tensor *const *)a)->name, (*(struct vfm_st_tensor *const *)b)->name);
}

static int parse_header(struct vfm_st *st, const json_t *root, const char *file, struct vfm_err *err)
{
	const char *key;
	const json_t *v;
	uint64_t at = 0;

	if (!json_is_object(root))
		return vfm_fail(err, VFM_EUSAGE, "%s: header: expected an object", file);
	st->t = vfm_calloc(json_object_size(root) + 1, sizeof(*st->t));
	json_object_foreach((json_t *)(uintptr_t)root, key, v)
	{
		if (!strcmp(key, "__metadata__")) {
			TRY(parse_meta(st, v, file, err));
			continue;
		}
		st->t[st->n].name = vfm_arena_strdup(&st->arena, key);
		TRY(parse_st_tensor(&st->t[st->n++], v, st->bytes, file, err));
	}
	if (st->n)
		qsort(st->t, st->n, sizeof(*st->t), by_offset);
	for (size_t i = 0; i < st->n; i++) {
		if (st->t[i].begin != at)
			return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s' %s", file, st->t[i].name,
				st->t[i].begin < at ? "overlaps another one" : "leaves a gap before it");
		at = st->t[i].end;
	}
	if (at != st->bytes)
		return vfm_fail(err, VFM_EUSAGE, "%s: %llu bytes after the last tensor", file,
			(unsigned long long)(st->bytes - at));
	vfm_st_index(st);
	return 0;
}

void vfm_st_index(struct vfm_st *st)
{
	st->by_name = vfm_calloc(st->n + 1, sizeof(struct vfm_st_tensor *));
	for (size_t i = 0; i < st->n; i++)
		st->by_name[i] = &st->t[i];
	qsort(st->by_name, st->n, sizeof(struct vfm_st_tensor *), by_name);
}

int vfm_st_parse(struct vfm_st *st, const void *head, size_t len, uint64_t file_bytes, const char *name, uint64_t *need,
	struct vfm_err *err)
{
	uint64_t n;
	char *what;
	json_t *root;
	int rc;

	*st = (struct vfm_st){0};
	*need = 0;
	if (file_bytes < 10)
		return vfm_fail(err, VFM_EUSAGE, "%s: not a safetensors file: %llu bytes", name,
			(unsigned long long)file_bytes);
	if (len < 8) {
		*need = 8;
		return VFM_EUSAGE;
	}
	n = vfm_read_le(head, 8);
	if (n < 2 || n > VFM_ST_MAX_HEADER || n > file_bytes - 8)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: not a safetensors file, or truncated: a header of %llu bytes in a file of %llu", name,
			(unsigned long long)n, (unsigned long long)file_bytes);
	if (len < 8 + n) {
		*need = 8 + n;
		return VFM_EUSAGE;
	}
	if (((const char *)head)[8] != '{')
		return vfm_fail(
			err, VFM_EUSAGE, "%s: not a safetensors file: the header does not begin with '{'", name);
	st->data = 8 + n;
	st->bytes = file_bytes - st->data;
	what = vfm_strfmt("%s: header", name);
	root = vfm_json_parse((const char *)head + 8, (size_t)n, what, err);
	free(what);
	if (!root)
		return VFM_EUSAGE;
	rc = parse_header(st, root, name, err);
	json_decref(root);
	if (rc < 0)
		vfm_st_release(st);
	return rc;
}

int vfm_st_open(struct vfm_st *st, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err)
{
	uint64_t len = file_bytes < 65536 ? file_bytes : 65536, need;
	uint8_t *buf = vfm_malloc(65536);
	int rc = vfm_full_pread(fd, buf, (size_t)len, 0, name, err);

	if (!rc) {
		rc = vfm_st_parse(st, buf, (size_t)len, file_bytes, name, &need, err);
		if (rc < 0 && need > len) { /* at most VFM_ST_MAX_HEADER + 8, and within the file */
			buf = vfm_realloc(buf, (size_t)need, 1);
			rc = vfm_full_pread(fd, buf, (size_t)need, 0, name, err);
			if (!rc)
				rc = vfm_st_parse(st, buf, (size_t)need, file_bytes, name, &need, err);
		}
	}
	free(buf);
	return rc;
}

const struct vfm_st_tensor *vfm_st_find(const struct vfm_st *st, const char *name)
{
	struct vfm_st_tensor key = {.name = name}, *kp = &key, **hit;

	hit = st->n ? bsearch(&kp, st->by_name, st->n, sizeof(kp), by_name) : NULL;
	return hit ? *hit : NULL;
}

void vfm_st_release(struct vfm_st *st)
{
	free(st->t);
	free(st->by_name);
	free(st->meta);
	vfm_arena_release(&st->arena);
	*st = (struct vfm_st){0};
}

static int by_size_then_name(const void *a, const void *b)
{
	const struct vfm_st_tensor *x = a, *y = b;
	size_t p = vfm_dtype_size(x->dtype), q = vfm_dtype_size(y->dtype);

	return p != q ? (p < q ? 1 : -1) : strcmp(x->name, y->name);
}

static void add_str(struct vfm_buf *b, const char *s)
{
	json_t *v = json_string(s);

	vfm_json_text(b, v, 0);
	json_decref(v);
}

void vfm_st_layout(struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2], size_t n_meta, struct vfm_buf *out)
{
	size_t start = out->len;
	uint64_t at = 0;

	if (n)
		qsort(t, n, sizeof(*t), by_size_then_name);
	vfm_buf_add(out, "\0\0\0\0\0\0\0\0", 8);
	vfm_buf_adds(out, "{");
	for (size_t i = 0; i < n_meta; i++) {
		vfm_buf_adds(out, i ? "," : "\"__metadata__\":{");
		add_str(out, meta[i][0]);
		vfm_buf_adds(out, ":");
		add_str(out, meta[i][1]);
	}
	if (n_meta)
		vfm_buf_adds(out, n ? "}," : "}");
	for (size_t i = 0; i < n; i++) {
		t[i].begin = at;
		at += (uint64_t)vfm_shape_numel(t[i].ndim, t[i].shape) * vfm_dtype_size(t[i].dtype);
		t[i].end = at;
		if (i)
			vfm_buf_adds(out, ",");
		add_str(out, t[i].name);
		vfm_buf_addf(out, ":{\"dtype\":\"%s\",\"shape\":[", vfm_dtype_st_name(t[i].dtype));
		for (int d = 0; d < t[i].ndim; d++)
			vfm_buf_addf(out, "%s%lld", d ? "," : "", (long long)t[i].shape[d]);
		vfm_buf_addf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t[i].begin,
			(unsigned long long)t[i].end);
	}
	vfm_buf_adds(out, "}");
	while ((out->len - start) % 64)
		vfm_buf_adds(out, " ");
	vfm_write_le(out->data + start, out->len - start - 8, 8);
}

int vfm_st_put_bytes(const char *path, const void *data, size_t len, FILE *f, struct vfm_err *err)
{
	return fwrite(data, 1, len, f) == len ? 0 : vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
}

int vfm_st_write(const char *path, struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2], size_t n_meta,
	vfm_st_put *put, void *ctx, struct vfm_err *err)
{
	struct vfm_atomic a = {0};
	struct vfm_buf head = {0};
	int rc = 0;

	vfm_st_layout(t, n, meta, n_meta, &head);
	if (head.len - 8 > VFM_ST_MAX_HEADER)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: too many tensors for one file", path);
	TRY_OUT(rc);
	TRY_OUT(vfm_atomic_open(&a, path, err));
	TRY_OUT(vfm_st_put_bytes(path, head.data, head.len, a.f, err));
	for (size_t i = 0; i < n; i++)
		TRY_OUT(put(ctx, &t[i], a.f, err));
	rc = vfm_atomic_commit(&a, err);
out:
	vfm_atomic_abort(&a);
	vfm_buf_release(&head);
	return rc;
}
