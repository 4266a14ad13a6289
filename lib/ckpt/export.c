/* Writes a part of a checkpoint as files that other programs read, with our names or with theirs. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ckpt/adapters.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/export.h"
#include "io/file.h"
#include "io/json.h"

enum { BLOCK = 1 << 18 }; /* elements */

struct export_job {
	struct ckpt_exports files;
	const struct vfm_ckpt_export *x;
	const char *meta[6][2];
	size_t n_meta;
	/* with a layout of another program */
	struct vfm_foreign_map map;          /* its copies by (theirs, b) */
	const struct vfm_ckpt_tensor **ours; /* [map.n_ours] in c */
};

/* ---- the values of a tensor ---- */

/* Reads elements of a part, [s->a, s->b) of its source. */
static int read_scaled(const struct ckpt_exports *x, const struct ckpt_export_part *p, const struct vfm_slice *s,
	enum vfm_dtype dtype, struct vfm_err *err)
{
	const size_t n = (size_t)(s->b - s->a);
	float *w = (float *)(x->buf + (size_t)BLOCK * 8);

	if (p->scale == 1)
		return vfm_ckpt_read_tensor(x->c, p->src, s, dtype, x->buf, err);
	TRY(vfm_ckpt_read_tensor(x->c, p->src, s, VFM_F32, w, err));
	for (size_t i = 0; i < n; i++)
		w[i] = (float)(p->scale * w[i]);
	vfm_dtype_convert(dtype, x->buf, VFM_F32, w, n);
	return 0;
}

static int put_part(const struct ckpt_exports *x, const struct ckpt_export_part *p, enum vfm_dtype dtype, FILE *f,
	struct vfm_err *err)
{
	const float value = (float)p->scale;

	if (!p->src && value != 0)
		return vfm_st_put_bytes(x->out, &value, sizeof(value), f, err);
	if (!p->src)
		memset(x->buf, 0, (size_t)(p->b < BLOCK ? p->b : BLOCK) * vfm_dtype_size(dtype));
	for (int64_t a = p->a; a < p->b; a += BLOCK) {
		struct vfm_slice s = {.a = a, .b = a + BLOCK < p->b ? a + BLOCK : p->b};

		if (p->src)
			TRY(read_scaled(x, p, &s, dtype, err));
		TRY(vfm_st_put_bytes(x->out, x->buf, (size_t)(s.b - s.a) * vfm_dtype_size(dtype), f, err));
	}
	return 0;
}

static int put_exported(void *ctx, const struct vfm_st_tensor *t, FILE *f, struct vfm_err *err)
{
	const struct ckpt_export_part *p = t->source;
	int64_t left = vfm_shape_numel(t->ndim, t->shape);

	for (; left > 0; left -= p->b - p->a, p++)
		TRY(put_part(ctx, p, t->dtype, f, err));
	return 0;
}

void ckpt_export_add_parts(struct ckpt_exports *x, const char *name, enum vfm_dtype dtype, int ndim,
	const int64_t *shape, const struct ckpt_export_part *parts)
{
	struct vfm_st_tensor t = {.name = name, .dtype = dtype, .ndim = ndim, .source = parts};

	memcpy(t.shape, shape, (size_t)ndim * sizeof(*shape));
	vfm_grow(&x->t, &x->cap, x->n + 1, sizeof(*x->t));
	x->t[x->n++] = t;
}

void ckpt_export_add(struct ckpt_exports *x, const char *name, enum vfm_dtype dtype, int ndim, const int64_t *shape,
	struct ckpt_export_part part)
{
	struct ckpt_export_part *p = vfm_arena_alloc(&x->arena, sizeof(*p));

	*p = part;
	ckpt_export_add_parts(x, name, dtype, ndim, shape, p);
}

int ckpt_export_write(struct ckpt_exports *x, struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2],
	size_t n_meta, const char *path, struct vfm_err *err)
{
	if (!x->buf)
		x->buf = vfm_malloc((size_t)BLOCK * (8 + sizeof(float)));
	return vfm_st_write(path, t, n, meta, n_meta, put_exported, x, err);
}

void ckpt_exports_release(struct ckpt_exports *x)
{
	free(x->buf);
	free(x->t);
	vfm_arena_release(&x->arena);
}

/* ---- files ---- */

/* Writes one file with the tensors t [n]. */
static int write_one(struct export_job *j, struct vfm_st_tensor *t, size_t n, const char *path, struct vfm_err *err)
{
	return ckpt_export_write(&j->files, t, n, j->meta, j->n_meta, path, err);
}

static int64_t st_bytes(const struct vfm_st_tensor *t)
{
	return vfm_shape_numel(t->ndim, t->shape) * (int64_t)vfm_dtype_size(t->dtype);
}

/* Returns the end of [i, end), the tensors of the next file. */
static size_t shard_end(const struct export_job *j, size_t i)
{
	const struct vfm_st_tensor *t = j->files.t;
	int64_t sum = st_bytes(&t[i++]);

	while (i < j->files.n && sum + st_bytes(&t[i]) <= j->x->shard_bytes)
		sum += st_bytes(&t[i++]);
	return i;
}

static char *export_name(const char *stem, int k, int n, bool indexed)
{
	return indexed ? vfm_strfmt("%s-%05d-of-%05d.safetensors", stem, k, n) : vfm_strfmt("%s.safetensors", stem);
}

/* Writes the files of a directory, and the index.  As diffusers, a single file with its names has no index. */
static int write_shards(struct export_job *j, const char *dir, struct vfm_err *err)
{
	const char *stem = j->x->layout ? CKPT_STEM_FOREIGN : "model";
	json_t *map = json_object();
	int64_t total = 0;
	int n = 0, k = 0, rc = 0;
	char *path, *index;

	for (size_t i = 0; i < j->files.n; i = shard_end(j, i))
		n++;
	for (size_t i = 0, end; i < j->files.n && !rc; i = end) {
		char *name = export_name(stem, ++k, n, n > 1 || !j->x->layout);

		end = shard_end(j, i);
		path = vfm_strfmt("%s/%s", dir, name);
		for (size_t m = i; m < end; m++) {
			json_object_set_new(map, j->files.t[m].name, json_string(name));
			total += st_bytes(&j->files.t[m]);
		}
		rc = write_one(j, j->files.t + i, end - i, path, err);
		free(path);
		free(name);
	}
	index = vfm_strfmt("%s.safetensors.index.json", stem);
	map = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	if (!rc && (n > 1 || !j->x->layout))
		rc = vfm_json_save(dir, index, map, 2, err);
	json_decref(map);
	free(index);
	return rc;
}

/* Fails if `dir` has files: those of another export would mix with the new ones. */
static int check_empty(const char *dir, struct vfm_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *de;
	bool empty = true;

	if (!d && errno == ENOENT)
		return 0;
	if (!d)
		return vfm_fail_errno(err, VFM_EENV, "cannot open directory '%s'", dir);
	while (empty && (de = readdir(d)) != NULL)
		empty = !strcmp(de->d_name, ".") || !strcmp(de->d_name, "..");
	closedir(d);
	return empty ? 0 : vfm_fail(err, VFM_EUSAGE, "'%s' is not empty; give a new directory", dir);
}

/* Writes into a directory with a temporary name, which appears under its own when it is complete. */
static int write_directory(struct export_job *j, struct vfm_err *err)
{
	char *out = ckpt_bare_path(j->x->out), *tmp = vfm_strfmt("%s.tmp", out);
	int layout = 0, rc;

	TRY_OUT(check_empty(out, err));
	TRY_OUT(vfm_rm_rf(tmp, err)); /* of a killed export */
	TRY_OUT(vfm_mkdir_p(tmp, err));
	rc = write_shards(j, tmp, err);
	if (!rc && j->x->layout && vfm_foreign_find(j->x->model, j->x->layout, &layout, err) == 0) {
		json_t *config = vfm_foreign_write_config(j->x->model, layout);

		rc = vfm_json_save(tmp, "config.json", config, 2, err);
		json_decref(config);
	}
	if (!rc)
		rc = vfm_fsync_dir(tmp, err);
	if (!rc && rename(tmp, out) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot rename '%s' to '%s'", tmp, out);
	if (rc < 0)
		vfm_rm_rf(tmp, NULL);
out:
	free(tmp);
	free(out);
	return rc;
}

enum vfm_dtype ckpt_out_dtype(const struct vfm_ckpt_tensor *t, int dtype)
{
	return dtype >= 0 && vfm_dtype_is_float(t->dtype) ? (enum vfm_dtype)dtype : t->dtype;
}

/* ---- metadata ---- */

/* Adds a key and the text of v, which it frees, to the metadata of every file. */
static void add_meta(struct export_job *j, const char *key, json_t *v)
{
	struct vfm_buf text = {0};

	vfm_json_text(&text, v, 0);
	memcpy(j->meta[j->n_meta++], (const char *[]){key, vfm_arena_strdup(&j->files.arena, text.data)},
		sizeof(j->meta[0]));
	vfm_buf_release(&text);
	json_decref(v);
}

/* Adds what follows from the data of the training: its encoders, and the differences of encoders that were accepted. */
static void add_state(struct export_job *j)
{
	static const char *const keys[] = {"encoders", "forced"};
	json_t *o = json_object();

	for (int i = 0; i < 2; i++) {
		json_t *v = json_object_get(j->files.c->state, keys[i]);

		if (json_object_size(v) || json_array_size(v))
			json_object_set(o, keys[i], v);
	}
	if (json_object_size(o))
		add_meta(j, CKPT_META_STATE, json_incref(o));
	json_decref(o);
}

/* Adds the range of t that the network was trained for, unless it is all. */
static void add_time_range(struct export_job *j)
{
	double t[2];

	vfm_ckpt_time_range(j->files.c, t);
	if (t[0] <= 0 && t[1] >= 1 && j->x->adapters)
		vfm_ckpt_time_range(j->x->adapters, t);
	if (t[0] > 0 || t[1] < 1)
		add_meta(j, CKPT_META_RANGE, json_pack("[f,f]", t[0], t[1]));
}

/* ---- tensors ---- */

/* Lists the tensors of the part under their own names. */
static int list_own(struct export_job *j, struct vfm_err *err)
{
	const struct vfm_ckpt *c = j->files.c;

	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *t = &c->t[i];
		const char *name = vfm_ckpt_name_in(c, j->x->part, t),
			   *frozen = name ? NULL : vfm_ckpt_name_in(c, "model", t); /* its own average */

		if (frozen && vfm_ckpt_find_in(c, j->x->part, frozen) == t)
			name = frozen;
		if (name)
			ckpt_export_add(&j->files, name, ckpt_out_dtype(t, j->x->dtype), t->ndim, t->shape,
				(struct ckpt_export_part){t, 0, t->numel, 1});
	}
	return j->files.n ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", c->path, j->x->part);
}

/* Finds our tensors of the model; lists those that are missing, unknown or have another shape in one error. */
static int find_ours(struct export_job *j, struct vfm_err *err)
{
	const struct vfm_ckpt *c = j->files.c;
	struct ckpt_faults missing = {0}, unknown = {0}, shapes = {0};
	bool *known = vfm_calloc((size_t)c->n + 1, sizeof(*known));
	struct vfm_buf b = {0};
	int rc = 0;

	for (int i = 0; i < j->map.n_ours; i++) {
		const struct vfm_foreign_tensor *want = &j->map.ours[i];
		const struct vfm_ckpt_tensor *t = j->ours[i] = vfm_ckpt_find_in(c, j->x->part, want->name);

		if (!t) {
			ckpt_fault_add(&missing, want->name, "");
			continue;
		}
		known[t - c->t] = true;
		ckpt_shape_fits(&shapes, want->name, t, want->ndim, want->shape);
	}
	for (int i = 0; i < c->n; i++)
		if (!known[i] && vfm_ckpt_name_in(c, j->x->part, &c->t[i]))
			ckpt_fault_add(&unknown, c->t[i].name, "");
	ckpt_faults_report(&b, &missing, "missing");
	ckpt_faults_report(&b, &unknown, "unknown");
	ckpt_faults_report(&b, &shapes, "of another shape");
	if (b.len)
		rc = vfm_fail(err, VFM_EUSAGE, "%s does not hold the model of its configuration: %s", c->path, b.data);
	vfm_buf_release(&b);
	free(known);
	return rc;
}

/* Adds a tensor of the other program, which consists of the copies k [n]. */
static int add_foreign(struct export_job *j, const struct vfm_foreign_tensor *theirs, const struct vfm_foreign_copy *k,
	size_t n, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *first = j->ours[k->ours];
	struct ckpt_export_part *p = vfm_arena_alloc(&j->files.arena, n * sizeof(*p));
	enum vfm_dtype dtype = ckpt_out_dtype(first, j->x->dtype);

	for (size_t i = 0; i < n; i++) {
		p[i] = (struct ckpt_export_part){j->ours[k[i].ours], k[i].a, k[i].a + k[i].n, 1};
		if (ckpt_out_dtype(p[i].src, j->x->dtype) != dtype)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: tensors '%s' and '%s' have different types, but are one in the layout %s; "
				"--dtype TYPE gives them one",
				j->files.c->path, first->name, p[i].src->name, j->x->layout);
	}
	ckpt_export_add_parts(&j->files, theirs->name, dtype, theirs->ndim, theirs->shape, p);
	return 0;
}

/* Lists the tensors of the other program, and what they consist of. */
static int list_foreign(struct export_job *j, struct vfm_err *err)
{
	struct vfm_foreign_map *map = &j->map;
	size_t *first;
	int layout, rc = 0;

	TRY(vfm_foreign_find(j->x->model, j->x->layout, &layout, err));
	vfm_foreign_expand(map, j->x->model, layout);
	j->ours = vfm_calloc((size_t)map->n_ours, sizeof(struct vfm_ckpt_tensor *));
	TRY(find_ours(j, err));
	first = vfm_foreign_order_copies(map);
	for (int i = 0; i < map->n_theirs && rc == 0; i++)
		rc = add_foreign(j, &map->theirs[i], &map->copy[first[i]], first[i + 1] - first[i], err);
	free(first);
	if (rc == 0)
		add_meta(j, CKPT_META_MODEL, vfm_model_json(j->x->model));
	return rc;
}

int vfm_ckpt_export(struct vfm_ckpt *c, const struct vfm_ckpt_export *x, struct vfm_err *err)
{
	struct export_job j = {.files = {.c = c, .out = x->out}, .x = x, .meta = {{"format", "pt"}}, .n_meta = 1};
	int rc;

	if (!c->plain)
		add_meta(&j, "vfm.step", json_integer(c->step));
	add_state(&j);
	TRY_OUT(x->layout ? list_foreign(&j, err) : list_own(&j, err));
	if (vfm_ckpt_is_adapters(c))
		add_meta(&j, CKPT_META_LORA, ckpt_lora_config(c));
	add_time_range(&j);
	rc = x->shard_bytes > 0 ? write_directory(&j, err) : write_one(&j, j.files.t, j.files.n, x->out, err);
out:
	ckpt_exports_release(&j.files);
	vfm_foreign_map_release(&j.map);
	free(j.ours);
	return rc;
}
