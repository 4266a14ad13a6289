/* features.c - spools the vectors of records to a temporary file, and reads rows of it or of an npy file. */
#include "data/record/features.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/record/provenance.h"
#include "data/record/record.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input.h"
#include "io/json.h"
#include "spec/model/dtype.h"

#define DIM_MAX 16384 /* a covariance matrix of 2 GiB */

/* ---- an npy file ---- */

static int check_type(const struct vfm_npy *n, const char *what, struct vfm_err *err)
{
	if (n->type != VFM_NPY_F16 && n->type != VFM_NPY_BF16 && n->type != VFM_NPY_F32 && n->type != VFM_NPY_F64)
		return vfm_fail(err, VFM_EINPUT, "%s: expected floating-point numbers, got %s", what,
			vfm_npy_type_name(n->type));
	return 0;
}

static int check_dim(int64_t dim, const char *what, struct vfm_err *err)
{
	if (dim >= 1 && dim <= DIM_MAX)
		return 0;
	return vfm_fail(
		err, VFM_EINPUT, "%s: vectors of %lld elements, expected 1 to %d", what, (long long)dim, DIM_MAX);
}

static int open_matrix(struct vfm_features *f, struct vfm_err *err)
{
	struct vfm_npy n;

	TRY(vfm_map_open(&f->map, f->name, err));
	TRY(vfm_npy_parse(&n, f->map.data, f->map.size, f->map.size, f->name, err));
	if (n.ndim != 2)
		return vfm_fail(
			err, VFM_EINPUT, "%s: %d dimensions, expected 2: a row for each vector", f->name, n.ndim);
	TRY(check_type(&n, f->name, err));
	TRY(check_dim(n.shape[1], f->name, err));
	f->rows = n.shape[0];
	f->dim = n.shape[1];
	f->type = n.type;
	f->data = f->map.data + n.header_bytes;
	return vfm_npy_check_finite(&n, f->data, f->name, err);
}

/* ---- records ---- */

int vfm_features_end(struct vfm_features *f, struct vfm_err *err)
{
	FILE *spool = f->file;
	void *p;

	f->spool_bytes = (size_t)f->rows * (size_t)f->dim * vfm_npy_type_size(f->type);
	if (fflush(spool) != 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of vectors (TMPDIR)");
	if (f->rows == 0)
		return 0;
	p = mmap(NULL, f->spool_bytes, PROT_READ, MAP_PRIVATE, fileno(spool), 0);
	if (p == MAP_FAILED)
		return vfm_fail_errno(err, VFM_EENV, "cannot map the temporary file of vectors");
	f->spool = p;
	f->data = p;
	return 0;
}

/* Vectors of one set have the dimension, the dtype and the model of the first. */
static int check_same(
	struct vfm_features *f, const struct vfm_npy *n, const struct vfm_encoder_id *model, struct vfm_err *err)
{
	char x[VFM_ENCODER_ID_LABEL], y[VFM_ENCODER_ID_LABEL];

	if (f->rows == 0) {
		f->dim = n->shape[0];
		f->type = n->type;
		f->model = *model;
	}
	if (n->shape[0] != f->dim || n->type != f->type)
		return vfm_fail(err, VFM_EINPUT, "expected [%lld] of %s, as of the first record, got [%lld] of %s",
			(long long)f->dim, vfm_npy_type_name(f->type), (long long)n->shape[0],
			vfm_npy_type_name(n->type));
	if (vfm_encoder_id_compare(&f->model, model) != VFM_ENCODER_ID_DIFFERENT)
		return 0;
	vfm_encoder_id_label_pair(&f->model, model, x, y);
	return vfm_fail(err, VFM_EINPUT, "made by '%s', the first record by '%s'", y, x);
}

static int add_vector_file(struct vfm_features *f, FILE *spool, const char *path, const char *sha256,
	const struct vfm_encoder_id *model, struct vfm_err *err)
{
	struct vfm_npy n = {0};
	char *bytes = NULL, hex[VFM_SHA256_HEX];
	size_t len;
	int rc;

	TRY_OUT(vfm_read_regular(path, DIM_MAX * sizeof(double) + VFM_NPY_HEADER_MAX, &bytes, &len, err));
	if (sha256) {
		vfm_sha256_of(bytes, len, hex);
		if (strcmp(hex, sha256) != 0)
			TRY_OUT(vfm_fail(err, VFM_EINPUT, "'%s' is not the file of the record: another sha256", path));
	}
	TRY_OUT(vfm_npy_parse(&n, bytes, len, len, path, err));
	if (n.ndim != 1)
		TRY_OUT(vfm_fail(err, VFM_EINPUT, "'%s': %d dimensions, expected one vector", path, n.ndim));
	TRY_OUT(check_type(&n, path, err));
	TRY_OUT(check_dim(n.shape[0], path, err));
	TRY_OUT(vfm_npy_check_finite(&n, bytes + n.header_bytes, path, err));
	if (check_same(f, &n, model, err) < 0) {
		rc = vfm_err_context(err, "'%s'", path);
		goto out;
	}
	if (spool && fwrite(bytes + n.header_bytes, 1, n.data_bytes, spool) != n.data_bytes)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of vectors (TMPDIR)");
out:
	free(bytes);
	return rc;
}

static int add_vector(struct vfm_features *f, FILE *spool, const json_t *rec, const char *key, struct vfm_err *err)
{
	const json_t *v = vfm_rec_at(rec, key);
	const char *path = json_is_object(v) ? vfm_rec_str(v, "path", NULL) : json_string_value(v);
	const char *id = vfm_rec_str(rec, "id", NULL),
		   *sha256 = json_is_object(v) ? vfm_rec_str(v, "sha256", NULL) : NULL;
	struct vfm_encoder_id model = {0};

	if (!id)
		return vfm_fail(err, VFM_EINPUT, "id: missing (expected a string)");
	if (!path)
		return vfm_fail(err, VFM_EINPUT,
			"%s: missing (expected the path of an npy file, or an object with 'path')", key);
	if (json_is_object(json_object_get(v, "maker")))
		TRY(vfm_encoder_id_from_json(&model, json_object_get(v, "maker"), "maker", err));
	TRY(add_vector_file(f, spool, path, sha256, &model, err));
	if (!spool)
		return 0;
	vfm_grow(&f->ids, &f->cap_ids, (size_t)f->rows + 1, sizeof(*f->ids));
	f->ids[f->rows++] = vfm_arena_strdup(&f->arena, id);
	return 0;
}

int vfm_features_begin(struct vfm_features *f, struct vfm_err *err)
{
	vfm_grow(&f->ids, &f->cap_ids, 1, sizeof(*f->ids));
	return vfm_unlinked_temp(&f->file, err);
}

int vfm_features_add(struct vfm_features *f, const json_t *rec, const char *key, struct vfm_err *err)
{
	return add_vector(f, f->file, rec, key, err);
}

int vfm_features_explain(const struct vfm_features *f, const json_t *rec, const char *key, struct vfm_err *err)
{
	struct vfm_features copy = *f;

	copy.ids = NULL;
	copy.cap_ids = 0;
	return add_vector(&copy, NULL, rec, key, err);
}

static int take_vector(void *ctx, const json_t *rec, struct vfm_err *err)
{
	struct vfm_features *f = ctx;

	if (vfm_provenance_is_header(rec))
		return 0;
	if (!vfm_rec_is_out(rec))
		return vfm_features_add(f, rec, f->key, err);
	f->left_out++;
	return 0;
}

static int spool_records(struct vfm_features *f, struct vfm_err *err)
{
	TRY(vfm_features_begin(f, err));
	TRY(vfm_jsonl_each(f->name, take_vector, f, err));
	return vfm_features_end(f, err);
}

int vfm_features_open(struct vfm_features *f, const char *path, const char *key, struct vfm_err *err)
{
	size_t n = strlen(path);

	f->name = vfm_strdup(path);
	f->key = key;
	return n > 4 && !strcmp(path + n - 4, ".npy") ? open_matrix(f, err) : spool_records(f, err);
}

void vfm_features_close(struct vfm_features *f)
{
	if (f->map.path)
		vfm_map_close(&f->map);
	if (f->file)
		fclose(f->file);
	if (f->spool)
		munmap(f->spool, f->spool_bytes);
	free(f->ids);
	free(f->name);
	vfm_arena_release(&f->arena);
	*f = (struct vfm_features){0};
}

/* ---- reading ---- */

/* A header of npy may have any length: the row may have any alignment. */
static const uint8_t *features_row(const struct vfm_features *f, int64_t row)
{
	return f->data + (size_t)row * (size_t)f->dim * vfm_npy_type_size(f->type);
}

void vfm_features_read_f32(const struct vfm_features *f, int64_t row, float *out)
{
	vfm_dtype_convert(VFM_F32, out, vfm_dtype_of_npy(f->type), features_row(f, row), (size_t)f->dim);
}

void vfm_features_read(const struct vfm_features *f, int64_t first, int64_t n, int64_t stride, double *out)
{
	for (int64_t r = 0; r < n; r++)
		vfm_dtype_to_f64(
			out + r * stride, vfm_dtype_of_npy(f->type), features_row(f, first + r), (size_t)f->dim);
}

int vfm_features_check(struct vfm_features *f, struct vfm_err *err)
{
	return f->map.path ? vfm_map_check(&f->map, NULL, NULL, err) : 0;
}

static int check_dims(const struct vfm_features *a, const struct vfm_features *b, struct vfm_err *err)
{
	if (!a->rows || !b->rows || a->dim == b->dim)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "vectors of '%s' have %lld elements, those of '%s' %lld", a->name,
		(long long)a->dim, b->name, (long long)b->dim);
}

int vfm_features_match(const struct vfm_features *a, const struct vfm_features *b, struct vfm_err *err)
{
	char x[VFM_ENCODER_ID_LABEL], y[VFM_ENCODER_ID_LABEL];

	TRY(check_dims(a, b, err));
	if (vfm_encoder_id_compare(&a->model, &b->model) != VFM_ENCODER_ID_DIFFERENT)
		return 0;
	vfm_encoder_id_label_pair(&a->model, &b->model, x, y);
	return vfm_fail(
		err, VFM_EUSAGE, "vectors of '%s' were made by '%s', those of '%s' by '%s'", a->name, x, b->name, y);
}

/* ---- cosine similarity ---- */

struct id_row {
	const char *id;
	int64_t row;
};

static int compare_id_rows(const void *a, const void *b)
{
	return strcmp(((const struct id_row *)a)->id, ((const struct id_row *)b)->id);
}

/* Sets v [rows] to the rows of f by their ids, ascending. */
static int sort_ids(const struct vfm_features *f, struct id_row *v, struct vfm_err *err)
{
	for (int64_t i = 0; i < f->rows; i++)
		v[i] = (struct id_row){f->ids[i], i};
	qsort(v, (size_t)f->rows, sizeof(*v), compare_id_rows);
	for (int64_t i = 1; i < f->rows; i++)
		if (!strcmp(v[i].id, v[i - 1].id))
			return vfm_fail(err, VFM_EUSAGE, "'%s': two records have the id '%s'", f->name, v[i].id);
	return 0;
}

/* Sets partner [a->rows] to rows of b. */
static int match_ids(const struct vfm_features *a, const struct vfm_features *b, int64_t *partner, struct vfm_err *err)
{
	struct id_row *of_a = vfm_calloc((size_t)a->rows + 1, sizeof(*of_a));
	struct id_row *of_b = vfm_calloc((size_t)b->rows + 1, sizeof(*of_b));
	int rc = sort_ids(a, of_a, err);

	if (rc == 0)
		rc = sort_ids(b, of_b, err);
	for (int64_t i = 0; rc == 0 && (i < a->rows || i < b->rows); i++) {
		bool in_a = i < a->rows, in_b = i < b->rows;
		int order = !in_a ? 1 : !in_b ? -1 : strcmp(of_a[i].id, of_b[i].id);

		if (order != 0)
			rc = vfm_fail(err, VFM_EUSAGE, "the record '%s' of '%s' has no partner in '%s'",
				order < 0 ? of_a[i].id : of_b[i].id, order < 0 ? a->name : b->name,
				order < 0 ? b->name : a->name);
		else
			partner[of_a[i].row] = of_b[i].row;
	}
	free(of_a);
	free(of_b);
	return rc;
}

static int fail_zero(const struct vfm_features *f, int64_t row, struct vfm_err *err)
{
	if (f->ids)
		return vfm_fail(err, VFM_EINPUT, "'%s': the vector of the record '%s' is 0: it has no direction",
			f->name, f->ids[row]);
	return vfm_fail(err, VFM_EINPUT, "'%s': row %lld is 0: it has no direction", f->name, (long long)row);
}

/* Scales by the largest element first, so that no square overflows or vanishes.  Returns false for 0. */
static bool normalize(double *x, int64_t n)
{
	double most = 0, sum = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(x[i]));
	if (most == 0)
		return false;
	for (int64_t i = 0; i < n; i++)
		sum += x[i] / most * (x[i] / most);
	for (int64_t i = 0; i < n; i++)
		x[i] = x[i] / most / sqrt(sum);
	return true;
}

int vfm_features_cosine(const struct vfm_features *a, const struct vfm_features *b, double *out, struct vfm_err *err)
{
	int64_t *partner = NULL;
	double *x, *y;
	int rc = 0;

	TRY(vfm_features_match(a, b, err));
	if (!(a->ids && b->ids) && a->rows != b->rows)
		return vfm_fail(err, VFM_EUSAGE, "'%s' has %lld vectors, '%s' has %lld", a->name, (long long)a->rows,
			b->name, (long long)b->rows);
	partner = vfm_calloc((size_t)a->rows + 1, sizeof(*partner));
	x = vfm_calloc((size_t)a->dim + 1, sizeof(*x));
	y = vfm_calloc((size_t)a->dim + 1, sizeof(*y));
	for (int64_t i = 0; i < a->rows; i++)
		partner[i] = i;
	if (a->ids && b->ids)
		TRY_OUT(match_ids(a, b, partner, err));
	for (int64_t i = 0; i < a->rows; i++) {
		vfm_features_read(a, i, 1, a->dim, x);
		vfm_features_read(b, partner[i], 1, a->dim, y);
		if (!normalize(x, a->dim))
			TRY_OUT(fail_zero(a, i, err));
		if (!normalize(y, a->dim))
			TRY_OUT(fail_zero(b, partner[i], err));
		out[i] = 0;
		for (int64_t k = 0; k < a->dim; k++)
			out[i] += x[k] * y[k];
	}
out:
	free(partner);
	free(x);
	free(y);
	return rc;
}
