#include "ckpt/convert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "ckpt/ckpt_impl.h"

/* ---- reshard ---- */

/* The default cut: writers get equal shares of each part's bytes, in the order of names, cut between rows (dimension
 * 0). */
struct even {
	const struct vfm_ckpt *c;
	int64_t *at, *all; /* [c->n] bytes of the tensors before it in its part; bytes of the part */
	int writers;
};

static size_t part_len(const char *name)
{
	const char *slash = strchr(name, '/');

	return slash ? (size_t)(slash - name) + 1 : 0;
}

static void even_init(struct even *e, const struct vfm_ckpt *c, int writers)
{
	int first = 0;

	*e = (struct even){.c = c, .writers = writers};
	e->at = vfm_calloc((size_t)c->n + 1, sizeof(int64_t));
	e->all = vfm_calloc((size_t)c->n + 1, sizeof(int64_t));
	for (int i = 0; i < c->n; i++) { /* t is sorted by name: the tensors of a part are contiguous */
		size_t len = part_len(c->t[i].name);

		if (i && (part_len(c->t[i - 1].name) != len || memcmp(c->t[i].name, c->t[i - 1].name, len) != 0))
			first = i;
		e->at[i] = i == first ? 0 : e->at[i - 1] + c->t[i - 1].bytes;
	}
	for (int i = c->n - 1; i >= 0; i--)
		e->all[i] = i + 1 < c->n && e->at[i + 1] ? e->all[i + 1] : e->at[i] + c->t[i].bytes;
}

/* Returns how many rows of tensor i belong to writers below r. */
static int64_t rows_before(const struct even *e, int i, int r)
{
	const struct vfm_ckpt_tensor *t = &e->c->t[i];
	int64_t rows = t->ndim ? t->shape[0] : 1;
	__int128 border = (__int128)e->all[i] * r / e->writers - e->at[i];

	if (r >= e->writers || border >= t->bytes)
		return rows;
	return border <= 0 ? 0 : (int64_t)(border * rows / t->bytes);
}

static int even_own(void *ctx, int writer, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err)
{
	const struct even *e = ctx;
	int i = (int)(t - e->c->t);
	int64_t rows = t->ndim ? t->shape[0] : 1, lo = rows_before(e, i, writer), hi = rows_before(e, i, writer + 1);

	(void)err;
	if (!t->numel)
		return writer == 0;
	out->a = t->numel / rows * lo;
	out->b = t->numel / rows * hi;
	return lo < hi;
}

static int fill_writer(
	struct vfm_ckpt_writer *w, int r, struct vfm_ckpt *c, const struct vfm_ckpt_cut *cut, struct vfm_err *err)
{
	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *t = &c->t[i];
		struct vfm_slice s = {0};
		int rc = cut->own(cut->ctx, r, t, &s, err);

		if (rc > 0)
			rc = vfm_ckpt_add_from(w, t->name, t->dtype, &s, c, t, err);
		TRY(rc);
	}
	return 0;
}

int vfm_ckpt_reshard(
	struct vfm_ckpt *c, const char *dir, int writers, const struct vfm_ckpt_cut *cut, struct vfm_err *err)
{
	struct vfm_ckpt_spec spec = {
		.dir = dir, .step = c->step, .size = writers, .config = c->config, .state = c->state};
	struct vfm_ckpt_cut by_size;
	struct vfm_ckpt_writer **w;
	struct even even = {0};
	int rc = 0;

	if (c->plain)
		return vfm_fail(err, VFM_EUSAGE, "%s: not a checkpoint; convert it to a checkpoint first", c->path);
	if (writers < 1 || writers > VFM_CKPT_FILES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%d writers: expected 1 to %d", writers, VFM_CKPT_FILES_MAX);
	if (!cut) {
		even_init(&even, c, writers);
		by_size = (struct vfm_ckpt_cut){&even, even_own};
		cut = &by_size;
	}
	w = vfm_calloc((size_t)writers, sizeof(struct vfm_ckpt_writer *));
	for (int r = 0; r < writers; r++) {
		spec.rank = r;
		w[r] = vfm_ckpt_begin(&spec);
		if (!rc)
			rc = fill_writer(w[r], r, c, cut, err);
	}
	if (!rc)
		rc = vfm_ckpt_save_all(w, writers, err);
	else
		for (int r = 0; r < writers; r++)
			vfm_ckpt_abandon(w[r]);
	free(w);
	free(even.at);
	free(even.all);
	return rc;
}

/* ---- export ---- */

enum { BLOCK = 1 << 18 }; /* elements */

struct job {
	struct vfm_ckpt *c;
	const struct vfm_ckpt_export *x;
	size_t cut;              /* length of "PART/" */
	struct vfm_st_tensor *t; /* the tensors to write, in the order of names */
	size_t n;
	struct vfm_buf state; /* what the metadata holds of the state; empty: nothing */
};

static int write_tensors(
	const struct job *j, const struct vfm_st_tensor *t, size_t n, FILE *f, const char *path, struct vfm_err *err)
{
	uint8_t *buf = vfm_malloc((size_t)BLOCK * 8);
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		char *name = j->cut ? vfm_strfmt("%s/%s", j->x->part, t[i].name) : vfm_strdup(t[i].name);
		const struct vfm_ckpt_tensor *src = vfm_ckpt_find(j->c, name);
		size_t es = vfm_dtype_size(t[i].dtype);

		for (int64_t a = 0; a < src->numel && !rc; a += BLOCK) {
			struct vfm_slice s = {.a = a, .b = a + BLOCK < src->numel ? a + BLOCK : src->numel};

			rc = vfm_ckpt_read_tensor(j->c, src, &s, t[i].dtype, buf, err);
			if (!rc && fwrite(buf, es, (size_t)(s.b - s.a), f) != (size_t)(s.b - s.a))
				rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
		}
		free(name);
	}
	free(buf);
	return rc;
}

/* Writes one file.  Sorts t into the order of the format. */
static int write_one(const struct job *j, struct vfm_st_tensor *t, size_t n, const char *path, struct vfm_err *err)
{
	struct vfm_atomic a = {0};
	struct vfm_buf head = {0};
	char step[32];
	const char *meta[3][2] = {{"format", "pt"}};
	size_t n_meta = 1;
	int rc = 0;

	snprintf(step, sizeof(step), "%lld", (long long)j->c->step);
	if (!j->c->plain)
		memcpy(meta[n_meta++], (const char *[]){"vfm.step", step}, sizeof(meta[0]));
	if (j->state.len)
		memcpy(meta[n_meta++], (const char *[]){CKPT_META_STATE, j->state.data}, sizeof(meta[0]));
	vfm_st_layout(t, n, meta, n_meta, &head);
	if (head.len - 8 > VFM_ST_MAX_HEADER) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s: too many tensors for one file", path);
		goto out;
	}
	TRY_OUT(vfm_atomic_open(&a, path, err));
	if (fwrite(head.data, 1, head.len, a.f) != head.len) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
		goto out;
	}
	TRY_OUT(write_tensors(j, t, n, a.f, path, err));
	rc = vfm_atomic_commit(&a, err);
out:
	vfm_atomic_abort(&a);
	vfm_buf_release(&head);
	return rc;
}

static int64_t st_bytes(const struct vfm_st_tensor *t)
{
	return vfm_shape_numel(t->ndim, t->shape) * (int64_t)vfm_dtype_size(t->dtype);
}

/* Returns the end of [i, end), the tensors of the next file. */
static size_t shard_end(const struct job *j, size_t i)
{
	int64_t sum = st_bytes(&j->t[i++]);

	while (i < j->n && sum + st_bytes(&j->t[i]) <= j->x->shard_bytes)
		sum += st_bytes(&j->t[i++]);
	return i;
}

/* Writes the index last: readers ignore files without an index. */
static int write_shards(const struct job *j, struct vfm_err *err)
{
	json_t *map = json_object(), *root;
	int64_t total = 0;
	struct vfm_buf text = {0};
	char *path;
	int n = 0, k = 0, rc = vfm_mkdir_p(j->x->out, err);

	for (size_t i = 0; i < j->n; i = shard_end(j, i))
		n++;
	for (size_t i = 0, end; i < j->n && !rc; i = end) {
		char *name = vfm_strfmt("model-%05d-of-%05d.safetensors", ++k, n);

		end = shard_end(j, i);
		path = vfm_strfmt("%s/%s", j->x->out, name);
		for (size_t m = i; m < end; m++) {
			json_object_set_new(map, j->t[m].name, json_string(name));
			total += st_bytes(&j->t[m]);
		}
		rc = write_one(j, j->t + i, end - i, path, err);
		free(path);
		free(name);
	}
	root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	vfm_json_text(&text, root, 2);
	vfm_buf_adds(&text, "\n");
	path = vfm_strfmt("%s/%s", j->x->out, CKPT_INDEX);
	if (!rc)
		rc = vfm_write_file(path, text.data, text.len, err);
	free(path);
	vfm_buf_release(&text);
	json_decref(root);
	return rc;
}

static enum vfm_dtype out_dtype(const struct vfm_ckpt_tensor *t, int dtype)
{
	return dtype >= 0 && vfm_dtype_is_float(t->dtype) ? (enum vfm_dtype)dtype : t->dtype;
}

/* What follows from the data of the training: its encoders, and the differences of encoders that were accepted. */
static json_t *exported_state(const struct vfm_ckpt *c)
{
	static const char *const keys[] = {"encoders", "forced"};
	json_t *o = json_object(), *v;

	for (int i = 0; i < 2; i++) {
		v = json_object_get(c->state, keys[i]);
		if (v && (json_object_size(v) || json_array_size(v)))
			json_object_set(o, keys[i], v);
	}
	return o;
}

int vfm_ckpt_export(struct vfm_ckpt *c, const struct vfm_ckpt_export *x, struct vfm_err *err)
{
	struct job j = {.c = c, .x = x, .cut = c->plain ? 0 : strlen(x->part) + 1};
	json_t *state = exported_state(c);
	int rc;

	if (json_object_size(state))
		vfm_json_text(&j.state, state, 0);
	json_decref(state);
	j.t = vfm_calloc((size_t)c->n + 1, sizeof(*j.t));
	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *s = &c->t[i];

		if (j.cut && (strncmp(s->name, x->part, j.cut - 1) != 0 || s->name[j.cut - 1] != '/'))
			continue;
		j.t[j.n] = (struct vfm_st_tensor){
			.name = s->name + j.cut, .dtype = out_dtype(s, x->dtype), .ndim = s->ndim};
		memcpy(j.t[j.n++].shape, s->shape, sizeof(s->shape));
	}
	if (!j.n)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", c->path, x->part);
	else
		rc = x->shard_bytes > 0 ? write_shards(&j, err) : write_one(&j, j.t, j.n, x->out, err);
	vfm_buf_release(&j.state);
	free(j.t);
	return rc;
}

int vfm_ckpt_consolidate(struct vfm_ckpt *c, const char *part, const char *out, struct vfm_err *err)
{
	struct vfm_ckpt_export x = {.part = part, .dtype = -1, .out = out};

	return vfm_ckpt_export(c, &x, err);
}

/* ---- import ---- */

int vfm_ckpt_import(struct vfm_ckpt *c, const char *part, int dtype, const json_t *config, const char *dir,
	int64_t step, struct vfm_err *err)
{
	struct vfm_ckpt_spec spec = {.dir = dir, .step = step, .config = config, .state = c->state};
	struct vfm_ckpt_writer *w;
	int rc = 0;

	if (!c->plain)
		return vfm_fail(err, VFM_EUSAGE, "%s is already a checkpoint", c->path);
	w = vfm_ckpt_begin(&spec);
	for (int i = 0; i < c->n && !rc; i++) {
		char *name = vfm_strfmt("%s/%s", part, c->t[i].name);

		rc = vfm_ckpt_add_from(w, name, out_dtype(&c->t[i], dtype), NULL, c, &c->t[i], err);
		free(name);
	}
	if (!rc)
		return vfm_ckpt_save(w, err);
	vfm_ckpt_abandon(w);
	return rc;
}
