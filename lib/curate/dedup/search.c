/* search.c - reads the vectors of records, takes a query from a record, an array or a file, and writes matches. */
#include "curate/dedup/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/dedup/nearest.h"
#include "data/record/provenance.h"
#include "data/record/record.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "io/npy.h"

/* ---- records ---- */

typedef int (*record_fn)(struct vfm_search *s, json_t *rec, void *ctx, struct vfm_err *err);

/* Calls fn for each record with a vector; returns what it returns if that is not 0. */
static int for_each_record(struct vfm_search *s, record_fn fn, void *ctx, struct vfm_err *err)
{
	int rc = 0;

	s->left_out = 0;
	for (int i = 0; i < s->n_paths && rc == 0; i++) {
		struct vfm_jsonl in = {0};
		json_t *rec;

		TRY(vfm_jsonl_open(&in, s->paths[i], err));
		while (rc == 0 && (rc = vfm_jsonl_next(&in, &rec, err)) == 1) {
			bool is_header = vfm_provenance_is_header(rec);

			rc = 0;
			if (is_header)
				;
			else if (vfm_rec_is_out(rec) || !vfm_rec_at(rec, s->key))
				s->left_out++;
			else
				rc = fn(s, rec, ctx, err);
			json_decref(rec);
			if (rc < 0)
				vfm_err_context(err, "%s:%lld", in.name, (long long)in.line);
			else if (rc == 0)
				continue;
			break;
		}
		vfm_jsonl_close(&in);
	}
	return rc;
}

static int add_search_vector(struct vfm_search *s, json_t *rec, void *ctx, struct vfm_err *err)
{
	const json_t *model = json_object_get(vfm_rec_at(rec, s->key), "maker");
	const char *id = vfm_rec_str(rec, "id", NULL), *matrix = ctx;

	if (!id)
		return vfm_fail(err, VFM_EUSAGE, "id: missing (expected a string)");
	if (vfm_names_add(&s->ids, id) < 0)
		return vfm_fail(err, VFM_EUSAGE, "two records have the id '%.80s'", id);
	if (s->ids.n == 1 && json_is_object(model))
		TRY(vfm_encoder_id_from_json(&s->model, model, "maker", err));
	return matrix ? 0 : vfm_features_add(&s->vectors, rec, s->key, err);
}

int vfm_search_open(
	struct vfm_search *s, char *const *paths, int n, const char *key, const char *matrix, struct vfm_err *err)
{
	int rc;

	s->paths = paths;
	s->n_paths = n;
	s->key = key;
	TRY(matrix ? vfm_features_open(&s->vectors, matrix, key, err) : vfm_features_begin(&s->vectors, err));
	if (matrix && s->vectors.ids)
		return vfm_fail(err, VFM_EUSAGE, "'%s': expected an npy file", matrix);
	rc = for_each_record(s, add_search_vector, (void *)(uintptr_t)matrix, err);
	if (rc < 0)
		return rc;
	if (matrix && s->vectors.rows != s->ids.n)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' has %lld rows, but %lld records have a vector: it is of other records", matrix,
			(long long)s->vectors.rows, (long long)s->ids.n);
	return matrix ? 0 : vfm_features_end(&s->vectors, err);
}

void vfm_search_close(struct vfm_search *s)
{
	vfm_features_close(&s->vectors);
	vfm_names_release(&s->ids);
	*s = (struct vfm_search){0};
}

int vfm_search_save(const struct vfm_search *s, const char *path, struct vfm_err *err)
{
	struct vfm_npy n = {.type = s->vectors.type, .ndim = 2, .shape = {s->vectors.rows, s->vectors.dim}};

	return vfm_npy_save(path, &n, s->vectors.data, NULL, err);
}

/* ---- queries ---- */

int vfm_search_of_id(const struct vfm_search *s, const char *id, float *query, struct vfm_err *err)
{
	int64_t row = vfm_names_find(&s->ids, id);

	if (row < 0)
		return vfm_fail(err, VFM_EUSAGE, "--id: no record '%s' has a vector", id);
	vfm_features_read_f32(&s->vectors, row, query);
	return 0;
}

int vfm_search_of_array(const struct vfm_search *s, const struct vfm_npy *npy, const void *data,
	const struct vfm_encoder_id *model, float *query, struct vfm_err *err)
{
	char x[VFM_ENCODER_ID_LABEL], y[VFM_ENCODER_ID_LABEL];

	if (npy->ndim != 1 || npy->shape[0] != s->vectors.dim)
		return vfm_fail(err, VFM_EUSAGE, "the query has %lld elements, the vectors of the records %lld",
			(long long)(npy->ndim == 1 ? npy->shape[0] : -1), (long long)s->vectors.dim);
	if (model && vfm_encoder_id_compare(&s->model, model) == VFM_ENCODER_ID_DIFFERENT) {
		vfm_encoder_id_label_pair(&s->model, model, x, y);
		return vfm_fail(err, VFM_EUSAGE, "the vectors were made by '%s', the query by '%s'", x, y);
	}
	vfm_features_read_f32(&(struct vfm_features){.type = npy->type, .dim = npy->shape[0], .data = data}, 0, query);
	return 0;
}

int vfm_search_of_file(const struct vfm_search *s, const char *path, float *query, struct vfm_err *err)
{
	char *bytes = NULL;
	struct vfm_npy n = {0};
	size_t len;
	int rc;

	TRY_OUT(vfm_read_regular(path, 16384 * sizeof(double) + VFM_NPY_HEADER_MAX, &bytes, &len, err));
	TRY_OUT(vfm_npy_parse(&n, bytes, len, len, path, err));
	if (n.type != VFM_NPY_F16 && n.type != VFM_NPY_BF16 && n.type != VFM_NPY_F32 && n.type != VFM_NPY_F64)
		TRY_OUT(vfm_fail(err, VFM_EINPUT, "%s: expected floating-point numbers, got %s", path,
			vfm_npy_type_name(n.type)));
	TRY_OUT(vfm_npy_check_finite(&n, bytes + n.header_bytes, path, err));
	rc = vfm_search_of_array(s, &n, bytes + n.header_bytes, NULL, query, err);
	if (rc < 0)
		vfm_err_context(err, "'%s'", path);
out:
	free(bytes);
	return rc;
}

/* ---- results ---- */

struct placed_row {
	struct vfm_near_row near;
	int64_t place; /* among the results */
};

struct results {
	struct placed_row *by_row; /* [n] */
	json_t **recs;             /* [n] in the order of the results */
	int64_t n, next, row;
};

static int take_result(struct vfm_search *s, json_t *rec, void *ctx, struct vfm_err *err)
{
	struct results *r = ctx;
	const struct placed_row *p = &r->by_row[r->next];

	(void)s, (void)err;
	if (r->row++ != p->near.row)
		return 0;
	json_object_set_new(rec, "similarity", vfm_json_real(round(p->near.similarity * 1e6) / 1e6));
	r->recs[p->place] = json_incref(rec);
	return ++r->next == r->n; /* 1: all are there */
}

static int compare_placed(const void *a, const void *b)
{
	const struct placed_row *p = a, *q = b;

	return p->near.row < q->near.row ? -1 : p->near.row > q->near.row;
}

int vfm_search_write(struct vfm_search *s, const float *query, int64_t k, FILE *out, struct vfm_err *err)
{
	struct vfm_near_row *near;
	struct results r = {0};
	int rc;

	if (k < 1 || k > VFM_NEAREST_MAX)
		return vfm_fail(err, VFM_EUSAGE, "--count: expected 1 to %d", VFM_NEAREST_MAX);
	near = vfm_calloc((size_t)k, sizeof(*near));
	r.by_row = vfm_calloc((size_t)k, sizeof(*r.by_row));
	r.recs = vfm_calloc((size_t)k, sizeof(json_t *));
	TRY_OUT(vfm_nearest_find(&s->vectors, query, k, near, &r.n, err));
	TRY_OUT(vfm_features_check(&s->vectors, err));
	if (r.n == 0)
		goto out;
	for (int64_t i = 0; i < r.n; i++)
		r.by_row[i] = (struct placed_row){near[i], i};
	qsort(r.by_row, (size_t)r.n, sizeof(*r.by_row), compare_placed);
	TRY_OUT(for_each_record(s, take_result, &r, err));
	if (r.next < r.n)
		TRY_OUT(vfm_fail(err, VFM_EENV, "the records changed while they were read"));
	rc = 0;
	for (int64_t i = 0; i < r.n && rc >= 0; i++)
		rc = vfm_jsonl_write(out, r.recs[i], err);
out:
	for (int64_t i = 0; i < k; i++)
		json_decref(r.recs[i]);
	free(near);
	free(r.by_row);
	free((void *)r.recs);
	return rc;
}
