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
	struct vfm_ckpt *c;
	const struct vfm_ckpt_export *x;
	size_t cut;              /* length of "PART/" */
	struct vfm_st_tensor *t; /* the tensors to write, in the order of names */
	size_t n;
	struct vfm_buf state, model, lora, range; /* what the metadata holds of them; empty: nothing */
	/* with a layout of another program */
	struct vfm_foreign_map map;          /* its copies by (theirs, b) */
	const struct vfm_ckpt_tensor **ours; /* [map.n_ours] in c */
	size_t *first;                       /* [map.n_theirs + 1] the first copy of each */
};

/* Whether a tensor "model/NAME" stands for an average that is missing. */
static bool is_frozen_average(const struct export_job *j, const char *name)
{
	char *ema = vfm_strfmt("ema/%s", name);
	bool yes = j->cut && !strcmp(j->x->part, "ema") && vfm_ckpt_has_frozen(j->c) && !vfm_ckpt_find(j->c, ema);

	free(ema);
	return yes;
}

/* Our tensor `name`, without its part. */
static const struct vfm_ckpt_tensor *find_source(const struct export_job *j, const char *name)
{
	const char *part = is_frozen_average(j, name) ? "model" : j->x->part;
	char *full = j->cut ? vfm_strfmt("%s/%s", part, name) : vfm_strdup(name);
	const struct vfm_ckpt_tensor *t = vfm_ckpt_find(j->c, full);

	free(full);
	return t;
}

/* Writes elements [a, end) of a tensor. */
static int write_range(const struct export_job *j, const struct vfm_ckpt_tensor *src, int64_t a, int64_t end,
	enum vfm_dtype dtype, uint8_t *buf, FILE *f, struct vfm_err *err)
{
	size_t es = vfm_dtype_size(dtype);

	for (; a < end; a += BLOCK) {
		struct vfm_slice s = {.a = a, .b = a + BLOCK < end ? a + BLOCK : end};

		TRY(vfm_ckpt_read_tensor(j->c, src, &s, dtype, buf, err));
		if (fwrite(buf, es, (size_t)(s.b - s.a), f) != (size_t)(s.b - s.a))
			return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", j->x->out);
	}
	return 0;
}

/* Writes a tensor of the other program. */
static int write_foreign(
	const struct export_job *j, const char *name, enum vfm_dtype dtype, uint8_t *buf, FILE *f, struct vfm_err *err)
{
	int i = 0;

	while (strcmp(j->map.theirs[i].name, name) != 0)
		i++;
	for (size_t k = j->first[i]; k < j->first[i + 1]; k++) {
		const struct vfm_foreign_copy *p = &j->map.copy[k];

		TRY(write_range(j, j->ours[p->ours], p->a, p->a + p->n, dtype, buf, f, err));
	}
	return 0;
}

static int write_tensors(
	const struct export_job *j, const struct vfm_st_tensor *t, size_t n, FILE *f, struct vfm_err *err)
{
	uint8_t *buf = vfm_malloc((size_t)BLOCK * 8);
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		const struct vfm_ckpt_tensor *src = j->x->layout ? NULL : find_source(j, t[i].name);

		rc = src ? write_range(j, src, 0, src->numel, t[i].dtype, buf, f, err)
			 : write_foreign(j, t[i].name, t[i].dtype, buf, f, err);
	}
	free(buf);
	return rc;
}

/* Writes one file.  Sorts t into the order of the format. */
static int write_one(
	const struct export_job *j, struct vfm_st_tensor *t, size_t n, const char *path, struct vfm_err *err)
{
	struct vfm_atomic a = {0};
	struct vfm_buf head = {0};
	char step[32];
	const char *meta[6][2] = {{"format", "pt"}};
	size_t n_meta = 1;
	int rc = 0;

	snprintf(step, sizeof(step), "%lld", (long long)j->c->step);
	if (!j->c->plain)
		memcpy(meta[n_meta++], (const char *[]){"vfm.step", step}, sizeof(meta[0]));
	if (j->state.len)
		memcpy(meta[n_meta++], (const char *[]){CKPT_META_STATE, j->state.data}, sizeof(meta[0]));
	if (j->model.len)
		memcpy(meta[n_meta++], (const char *[]){CKPT_META_MODEL, j->model.data}, sizeof(meta[0]));
	if (j->lora.len)
		memcpy(meta[n_meta++], (const char *[]){CKPT_META_LORA, j->lora.data}, sizeof(meta[0]));
	if (j->range.len)
		memcpy(meta[n_meta++], (const char *[]){CKPT_META_RANGE, j->range.data}, sizeof(meta[0]));
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
	TRY_OUT(write_tensors(j, t, n, a.f, err));
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
static size_t shard_end(const struct export_job *j, size_t i)
{
	int64_t sum = st_bytes(&j->t[i++]);

	while (i < j->n && sum + st_bytes(&j->t[i]) <= j->x->shard_bytes)
		sum += st_bytes(&j->t[i++]);
	return i;
}

/* Writes a JSON file DIR/NAME and frees v. */
static int write_json(const char *dir, const char *name, json_t *v, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", dir, name);
	struct vfm_buf text = {0};
	int rc;

	vfm_json_text(&text, v, 2);
	vfm_buf_adds(&text, "\n");
	rc = vfm_write_file(path, text.data, text.len, err);
	vfm_buf_release(&text);
	json_decref(v);
	free(path);
	return rc;
}

static char *export_name(const char *stem, int k, int n, bool indexed)
{
	return indexed ? vfm_strfmt("%s-%05d-of-%05d.safetensors", stem, k, n) : vfm_strfmt("%s.safetensors", stem);
}

/* Writes the files of a directory, and the index.  As diffusers, a single file with its names has no index. */
static int write_shards(const struct export_job *j, const char *dir, struct vfm_err *err)
{
	const char *stem = j->x->layout ? CKPT_STEM_FOREIGN : "model";
	json_t *map = json_object();
	int64_t total = 0;
	int n = 0, k = 0, rc = 0;
	char *path, *index;

	for (size_t i = 0; i < j->n; i = shard_end(j, i))
		n++;
	for (size_t i = 0, end; i < j->n && !rc; i = end) {
		char *name = export_name(stem, ++k, n, n > 1 || !j->x->layout);

		end = shard_end(j, i);
		path = vfm_strfmt("%s/%s", dir, name);
		for (size_t m = i; m < end; m++) {
			json_object_set_new(map, j->t[m].name, json_string(name));
			total += st_bytes(&j->t[m]);
		}
		rc = write_one(j, j->t + i, end - i, path, err);
		free(path);
		free(name);
	}
	index = vfm_strfmt("%s.safetensors.index.json", stem);
	map = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	if (!rc && (n > 1 || !j->x->layout))
		rc = write_json(dir, index, json_incref(map), err);
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
static int write_directory(const struct export_job *j, struct vfm_err *err)
{
	char *out = vfm_strdup(j->x->out), *tmp;
	int layout = 0, rc;

	for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
		out[n - 1] = 0;
	tmp = vfm_strfmt("%s.tmp", out);
	TRY_OUT(check_empty(out, err));
	TRY_OUT(vfm_rm_rf(tmp, err)); /* of a killed export */
	TRY_OUT(vfm_mkdir_p(tmp, err));
	rc = write_shards(j, tmp, err);
	if (!rc && j->x->layout && vfm_foreign_find(j->x->model, j->x->layout, &layout, err) == 0)
		rc = write_json(tmp, "config.json", vfm_foreign_write_config(j->x->model, layout), err);
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

/* Describes the range of t that the network was trained for, unless it is all. */
static void describe_range(struct vfm_buf *b, const struct vfm_ckpt *c, const struct vfm_ckpt *adapters)
{
	double t[2];
	json_t *range;

	vfm_ckpt_time_range(c, t);
	if (t[0] <= 0 && t[1] >= 1 && adapters)
		vfm_ckpt_time_range(adapters, t);
	if (t[0] <= 0 && t[1] >= 1)
		return;
	range = json_pack("[f,f]", t[0], t[1]);
	vfm_json_text(b, range, 0);
	json_decref(range);
}

/* Lists the tensors of the part under their own names. */
static int list_own(struct export_job *j, struct vfm_err *err)
{
	const struct vfm_ckpt *c = j->c;

	j->t = vfm_calloc((size_t)c->n + 1, sizeof(*j->t));
	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *s = &c->t[i];
		bool frozen = !strncmp(s->name, "model/", 6) && is_frozen_average(j, s->name + 6);

		if (j->cut && !frozen && (strncmp(s->name, j->x->part, j->cut - 1) != 0 || s->name[j->cut - 1] != '/'))
			continue;
		j->t[j->n] = (struct vfm_st_tensor){.name = s->name + (frozen ? 6 : j->cut),
			.dtype = ckpt_out_dtype(s, j->x->dtype),
			.ndim = s->ndim};
		memcpy(j->t[j->n++].shape, s->shape, sizeof(s->shape));
	}
	return j->n ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", c->path, j->x->part);
}

/* Finds our tensors of the model; lists those that are missing, unknown or have another shape in one error. */
static int find_ours(struct export_job *j, struct vfm_err *err)
{
	struct ckpt_faults missing = {0}, unknown = {0}, shapes = {0};
	bool *known = vfm_calloc((size_t)j->c->n + 1, sizeof(*known));
	struct vfm_buf b = {0};
	int rc = 0;

	for (int i = 0; i < j->map.n_ours; i++) {
		const struct vfm_foreign_tensor *want = &j->map.ours[i];
		const struct vfm_ckpt_tensor *t = j->ours[i] = find_source(j, want->name);

		if (!t) {
			ckpt_fault_add(&missing, want->name, "");
			continue;
		}
		known[t - j->c->t] = true;
		if (t->ndim != want->ndim || memcmp(t->shape, want->shape, sizeof(*t->shape) * (size_t)t->ndim) != 0)
			ckpt_fault_shape(&shapes, want->name, t->ndim, t->shape, want->ndim, want->shape);
	}
	for (int i = 0; i < j->c->n; i++)
		if (!known[i] &&
			(!j->cut ||
				(!strncmp(j->c->t[i].name, j->x->part, j->cut - 1) &&
					j->c->t[i].name[j->cut - 1] == '/')))
			ckpt_fault_add(&unknown, j->c->t[i].name, "");
	ckpt_faults_report(&b, &missing, "missing");
	ckpt_faults_report(&b, &unknown, "unknown");
	ckpt_faults_report(&b, &shapes, "of another shape");
	if (b.len)
		rc = vfm_fail(
			err, VFM_EUSAGE, "%s does not hold the model of its configuration: %s", j->c->path, b.data);
	vfm_buf_release(&b);
	free(known);
	return rc;
}

/* Lists the tensors of the other program, and what they consist of. */
static int list_foreign(struct export_job *j, struct vfm_err *err)
{
	struct vfm_foreign_map *map = &j->map;
	json_t *model;
	int layout;

	TRY(vfm_foreign_find(j->x->model, j->x->layout, &layout, err));
	vfm_foreign_expand(map, j->x->model, layout);
	j->ours = vfm_calloc((size_t)map->n_ours, sizeof(struct vfm_ckpt_tensor *));
	TRY(find_ours(j, err));
	j->first = vfm_foreign_order_copies(map);
	j->t = vfm_calloc((size_t)map->n_theirs, sizeof(*j->t));
	for (int i = 0; i < map->n_theirs; i++) {
		const struct vfm_ckpt_tensor *src = j->ours[map->copy[j->first[i]].ours];

		j->t[i] = (struct vfm_st_tensor){.name = map->theirs[i].name,
			.dtype = ckpt_out_dtype(src, j->x->dtype),
			.ndim = map->theirs[i].ndim};
		memcpy(j->t[i].shape, map->theirs[i].shape, sizeof(j->t[i].shape));
		for (size_t k = j->first[i]; k < j->first[i + 1]; k++)
			if (ckpt_out_dtype(j->ours[map->copy[k].ours], j->x->dtype) != j->t[i].dtype)
				return vfm_fail(err, VFM_EUSAGE,
					"%s: tensors '%s' and '%s' have different types, but are one in the layout %s; "
					"-t TYPE gives them one",
					j->c->path, src->name, j->ours[map->copy[k].ours]->name, j->x->layout);
	}
	j->n = (size_t)map->n_theirs;
	model = vfm_foreign_model_json(j->x->model);
	vfm_json_text(&j->model, model, 0);
	json_decref(model);
	return 0;
}

int vfm_ckpt_export(struct vfm_ckpt *c, const struct vfm_ckpt_export *x, struct vfm_err *err)
{
	struct export_job j = {.c = c, .x = x, .cut = c->plain ? 0 : strlen(x->part) + 1};
	json_t *state = exported_state(c);
	int rc;

	if (json_object_size(state))
		vfm_json_text(&j.state, state, 0);
	json_decref(state);
	if (vfm_ckpt_is_adapters(c)) {
		json_t *lora = ckpt_lora_config(c);

		vfm_json_text(&j.lora, lora, 0);
		json_decref(lora);
	}
	describe_range(&j.range, c, x->adapters);
	rc = x->layout ? list_foreign(&j, err) : list_own(&j, err);
	if (!rc)
		rc = x->shard_bytes > 0 ? write_directory(&j, err) : write_one(&j, j.t, j.n, x->out, err);
	vfm_buf_release(&j.state);
	vfm_buf_release(&j.model);
	vfm_buf_release(&j.lora);
	vfm_buf_release(&j.range);
	vfm_foreign_map_release(&j.map);
	free(j.ours);
	free(j.first);
	free(j.t);
	return rc;
}

int vfm_ckpt_consolidate(struct vfm_ckpt *c, const char *part, const char *out, struct vfm_err *err)
{
	struct vfm_ckpt_export x = {.part = part, .dtype = -1, .out = out};

	return vfm_ckpt_export(c, &x, err);
}
