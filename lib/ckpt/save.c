/* save.c - collects the pieces of a rank, writes its files, and renames the folder after the manifest. */
#include "ckpt/save.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/par.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/find.h"
#include "ckpt/prune.h"
#include "io/file.h"
#include "io/json.h"

struct saved_entry;
struct file_piece {
	struct saved_entry *e;
	char *file_name; /* name of its tensor in the file */
	bool is_range;
	struct vfm_box box;
	int64_t a, b;
	struct vfm_runs src; /* from elements of data to those of the piece */
	int64_t numel;
};
struct saved_entry {
	char *name; /* "PART/NAME" */
	size_t part_len;
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
	struct file_piece *p;
	int n;
	int64_t nonfinite; /* elements written that are NaN or infinite */
	const void *data;
	struct vfm_ckpt *src; /* source of the values if data is NULL; the save reads it */
	const struct vfm_ckpt_tensor *src_t;
};
struct vfm_ckpt_writer {
	struct vfm_ckpt_spec spec;
	char *dir, *final, *tmp;
	json_t *config, *state;
	struct saved_entry *e;
	size_t n, cap;
};

struct vfm_ckpt_writer *vfm_ckpt_begin(const struct vfm_ckpt_spec *spec)
{
	struct vfm_ckpt_writer *w = vfm_calloc(1, sizeof(*w));

	w->spec = *spec;
	if (w->spec.size < 1)
		w->spec.size = 1;
	w->dir = vfm_strdup(spec->dir);
	w->spec.dir = w->dir;
	w->final = vfm_ckpt_path(spec->dir, spec->step);
	w->tmp = vfm_strfmt("%s.tmp", w->final);
	w->config = spec->config ? json_deep_copy(spec->config) : NULL;
	w->state = spec->state ? json_deep_copy(spec->state) : NULL;
	return w;
}

void vfm_ckpt_abandon(struct vfm_ckpt_writer *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->n; i++) {
		struct saved_entry *e = &w->e[i];

		for (int k = 0; k < e->n; k++) {
			free(e->p[k].file_name);
			vfm_runs_release(&e->p[k].src);
		}
		free(e->p);
		free(e->name);
	}
	free(w->e);
	json_decref(w->config);
	json_decref(w->state);
	free(w->dir);
	free(w->final);
	free(w->tmp);
	free(w);
}

/* ---- adding tensors ---- */

static int check_name(const char *name, size_t *part_len, struct vfm_err *err)
{
	const char *slash = strchr(name, '/');
	bool ok = vfm_json_takes(name) && slash && slash > name && slash[1] && strlen(name) < 1024 &&
		isalnum((unsigned char)name[0]);

	for (const char *p = name; ok && p < slash; p++)
		ok = isalnum((unsigned char)*p) || *p == '_' || *p == '-';
	if (!ok)
		return vfm_fail(err, VFM_EUSAGE, "checkpoint: bad tensor name '%.200s': expected PART/NAME", name);
	*part_len = (size_t)(slash - name);
	return 0;
}

static struct file_piece *new_piece(struct saved_entry *e)
{
	e->p = vfm_realloc(e->p, (size_t)e->n + 1, sizeof(*e->p));
	e->p[e->n] = (struct file_piece){0};
	return &e->p[e->n++];
}

static void add_range(struct saved_entry *e, int64_t a, int64_t b)
{
	struct vfm_box box[2 * VFM_NDIM_MAX];
	int n = vfm_range_boxes(e->ndim, e->shape, a, b, box);
	struct file_piece *p = new_piece(e);

	p->numel = b - a;
	p->a = a;
	p->b = b;
	p->is_range = n != 1;
	if (n == 1)
		p->box = box[0];
	else if (b == a && a == 0) { /* a tensor without elements */
		p->box = vfm_box_full(e->ndim, e->shape);
		p->is_range = vfm_box_numel(&p->box) != 0;
	}
	vfm_runs_add_range(&p->src, 0, b - a, 0);
}

static void add_pieces(struct saved_entry *e, const struct vfm_part *part, int64_t a, int64_t b)
{
	struct vfm_box *box, *loc;
	int n;

	vfm_part_range_boxes(part, a, b, &box, &loc, &n);
	for (int i = 0; i < n; i++) {
		struct file_piece *p = new_piece(e);

		p->box = box[i];
		p->numel = vfm_box_numel(&box[i]);
		vfm_runs_add_box(&p->src, part->shape, &loc[i], 0, a, b);
		for (size_t k = 0; k < p->src.n; k++)
			p->src.v[k].from -= a;
	}
	free(box);
	free(loc);
}

static int check_slice(
	const struct saved_entry *e, const struct vfm_slice *s, int64_t *a, int64_t *b, struct vfm_err *err)
{
	int64_t n = s && s->part ? vfm_part_numel(s->part) : vfm_shape_numel(e->ndim, e->shape);
	bool ok = n >= 0;

	*a = s ? s->a : 0;
	*b = s && s->b ? s->b : n;
	if (ok && s && s->part)
		ok = s->part->ndim == e->ndim &&
			!memcmp(s->part->global, e->shape, sizeof(*e->shape) * (size_t)e->ndim);
	if (!ok || *a < 0 || *b < *a || *b > n)
		return vfm_fail(err, VFM_EUSAGE, "checkpoint: tensor '%s': bad shape or slice", e->name);
	return 0;
}

/* Adds an entry, whose values the caller sets. */
static int add_tensor_entry(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, int ndim,
	const int64_t *shape, const struct vfm_slice *slice, struct saved_entry **out, struct vfm_err *err)
{
	struct saved_entry *e;
	size_t part_len;
	int64_t a, b;

	TRY(check_name(name, &part_len, err));
	if (ndim < 0 || ndim > VFM_NDIM_MAX)
		return vfm_fail(err, VFM_EUSAGE, "checkpoint: tensor '%s': %d dimensions, at most %d", name, ndim,
			VFM_NDIM_MAX);
	vfm_grow(&w->e, &w->cap, w->n + 1, sizeof(*w->e));
	e = *out = &w->e[w->n++];
	*e = (struct saved_entry){.name = vfm_strdup(name), .part_len = part_len, .dtype = dtype, .ndim = ndim};
	for (int d = 0; d < ndim; d++)
		e->shape[d] = shape[d];
	TRY(check_slice(e, slice, &a, &b, err));
	if (slice && slice->part)
		add_pieces(e, slice->part, a, b);
	else if (a < b || (a == 0 && b == 0))
		add_range(e, a, b);
	return 0;
}

int vfm_ckpt_add(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, int ndim, const int64_t *shape,
	const struct vfm_slice *slice, const void *data, struct vfm_err *err)
{
	struct saved_entry *e;

	TRY(add_tensor_entry(w, name, dtype, ndim, shape, slice, &e, err));
	e->data = data;
	return 0;
}

int vfm_ckpt_add_from(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, const struct vfm_slice *slice,
	struct vfm_ckpt *src, const struct vfm_ckpt_tensor *t, struct vfm_err *err)
{
	struct saved_entry *e;

	TRY(add_tensor_entry(w, name, dtype, t->ndim, t->shape, slice, &e, err));
	e->src = src;
	e->src_t = t;
	return 0;
}

/* ---- files ---- */

static int save_fail(const struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	return ckpt_save_fail(w->final, err);
}

static bool is_same_part(const struct saved_entry *x, const struct saved_entry *y)
{
	return x->part_len == y->part_len && !memcmp(x->name, y->name, x->part_len);
}

/* Returns the name of the file with the pieces of the part of e.  The caller frees it. */
static char *name_file(const struct vfm_ckpt_writer *w, const struct saved_entry *e)
{
	return vfm_strfmt("%.*s-%05d.safetensors", (int)e->part_len, e->name, w->spec.rank);
}

static int find_repeated(const struct vfm_ckpt_writer *w, const struct vfm_st_tensor *t, size_t n, struct vfm_err *err)
{
	for (size_t i = 1; i < n; i++)
		if (!strcmp(t[i - 1].name, t[i].name))
			return vfm_fail(err, VFM_EUSAGE, "cannot save checkpoint '%s': tensor '%s' was added twice",
				w->final, t[i].name);
	return 0;
}

/* Returns the tensors [*n] of the file with the pieces of the part of e0.  The caller frees them. */
static struct vfm_st_tensor *list_pieces(const struct vfm_ckpt_writer *w, const struct saved_entry *e0, size_t *n)
{
	struct vfm_st_tensor *list = NULL;
	size_t cap = 0;

	*n = 0;
	for (size_t i = 0; i < w->n; i++) {
		const struct saved_entry *e = &w->e[i];

		for (int k = 0; k < e->n && is_same_part(e, e0); k++) {
			const struct file_piece *p = &e->p[k];
			struct vfm_st_tensor t = {.name = p->file_name,
				.dtype = e->dtype,
				.ndim = p->is_range ? 1 : e->ndim,
				.source = p};

			for (int d = 0; d < t.ndim; d++)
				t.shape[d] = p->is_range ? p->numel : p->box.ext[d];
			vfm_grow(&list, &cap, *n + 1, sizeof(*list));
			list[(*n)++] = t;
		}
	}
	return list;
}

/* Names the pieces in the file: a whole tensor keeps its name; slices are numbered in the order of vfm_ckpt_add. */
static void name_pieces(struct vfm_ckpt_writer *w)
{
	size_t serial = 0;

	for (size_t i = 0; i < w->n; i++) {
		struct saved_entry *e = &w->e[i];
		const char *base = e->name + e->part_len + 1;

		for (int k = 0; k < e->n; k++) {
			bool whole = !e->p[k].is_range && e->p[k].numel == vfm_shape_numel(e->ndim, e->shape);

			e->p[k].e = e;
			free(e->p[k].file_name);
			e->p[k].file_name = whole ? vfm_strdup(base) : vfm_strfmt("%s@%zu", base, serial++);
		}
	}
}

/* Copies a piece from another checkpoint, block by block. */
static int copy_piece(struct ckpt_out *o, const struct file_piece *p, struct vfm_err *err)
{
	enum { BLOCK = 1 << 18 }; /* elements */
	struct saved_entry *e = p->e;
	size_t es = vfm_dtype_size(e->dtype);
	struct vfm_box box = p->box, loc = p->box;
	struct vfm_part part = {.ndim = e->ndim, .n = 1, .box = &box, .loc = &loc};
	uint8_t *buf = vfm_malloc(BLOCK * es);
	int rc = 0;

	for (int d = 0; d < e->ndim; d++) {
		part.global[d] = e->shape[d];
		part.shape[d] = box.ext[d];
		loc.off[d] = 0;
	}
	for (int64_t a = 0; a < p->numel && !rc; a += BLOCK) {
		int64_t n = p->numel - a < BLOCK ? p->numel - a : BLOCK, at = p->is_range ? p->a + a : a;
		struct vfm_slice s = {.part = p->is_range ? NULL : &part, .a = at, .b = at + n};

		rc = vfm_ckpt_read_tensor(e->src, e->src_t, &s, e->dtype, buf, err);
		if (!rc) {
			e->nonfinite += vfm_dtype_count_nonfinite(e->dtype, buf, (size_t)n);
			rc = ckpt_out_add(o, buf, (size_t)n * es, err);
		}
	}
	free(buf);
	return rc;
}

static int write_piece(struct ckpt_out *o, const struct file_piece *p, struct vfm_err *err)
{
	size_t es = vfm_dtype_size(p->e->dtype);

	if (p->e->src)
		return copy_piece(o, p, err);
	for (size_t k = 0; k < p->src.n; k++) {
		const char *run = (const char *)p->e->data + (size_t)p->src.v[k].from * es;

		p->e->nonfinite += vfm_dtype_count_nonfinite(p->e->dtype, run, (size_t)p->src.v[k].n);
		TRY(ckpt_out_add(o, run, (size_t)p->src.v[k].n * es, err));
	}
	return 0;
}

static int write_pieces(
	const struct vfm_ckpt_writer *w, struct ckpt_out *o, struct vfm_st_tensor *t, size_t n, struct vfm_err *err)
{
	char step[32], rank[32];
	const char *meta[3][2] = {{"format", "pt"}, {"vfm.rank", rank}, {"vfm.step", step}};
	struct vfm_buf head = {0};
	int rc;

	snprintf(step, sizeof(step), "%lld", (long long)w->spec.step);
	snprintf(rank, sizeof(rank), "%d/%d", w->spec.rank, w->spec.size);
	vfm_st_layout(t, n, meta, 3, &head);
	TRY_OUT(find_repeated(w, t, n, err));
	TRY_OUT(ckpt_out_add(o, head.data, head.len, err));
	for (size_t i = 0; i < n; i++)
		TRY_OUT(write_piece(o, t[i].source, err));
out:
	vfm_buf_release(&head);
	return rc;
}

/* Writes the file of the part of e0, unless this rank has none of it. */
static int write_file(const struct vfm_ckpt_writer *w, const struct saved_entry *e0, json_t *files, struct vfm_err *err)
{
	char *name = name_file(w, e0), *path = vfm_strfmt("%s/%s", w->tmp, name);
	struct ckpt_out_sums sums;
	struct ckpt_out *o = NULL;
	size_t n;
	struct vfm_st_tensor *t = list_pieces(w, e0, &n);
	int rc = 0;

	if (!n)
		goto out;
	o = ckpt_out_open(path, w->final, err);
	TRY_OUT(o ? write_pieces(w, o, t, n, err) : VFM_EENV);
	rc = ckpt_out_close(o, &sums, err);
	o = NULL;
	if (rc == 0)
		json_array_append_new(files,
			json_pack("{s:s, s:I, s:s, s:i, s:o}", "name", name, "bytes", (json_int_t)sums.bytes, "sha256",
				sums.sha256, "chunk_bytes", CKPT_CHUNK, "chunks", sums.chunks));
out:
	ckpt_out_abandon(o);
	free(t);
	free(path);
	free(name);
	return rc;
}

static json_t *int_array(const int64_t *v, int n)
{
	json_t *a = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(a, json_integer(v[i]));
	return a;
}

static json_t *piece_json(const struct saved_entry *e, const struct file_piece *p, const char *file)
{
	json_t *j = json_pack("{s:s, s:s}", "file", file, "tensor", p->file_name);

	if (p->is_range)
		json_object_set_new(j, "range", json_pack("[I,I]", (json_int_t)p->a, (json_int_t)p->b));
	else
		json_object_set_new(j, "box",
			json_pack("{s:o, s:o}", "offset", int_array(p->box.off, e->ndim), "extent",
				int_array(p->box.ext, e->ndim)));
	return j;
}

/* Writes this rank's files; sets *mine to {"tensors":[…],"files":[…]}. */
static int write_files(struct vfm_ckpt_writer *w, json_t **mine, struct vfm_err *err)
{
	json_t *files = json_array(), *tensors = json_array();
	int rc = 0;

	name_pieces(w);
	for (size_t i = 0; i < w->n && !rc; i++) {
		struct saved_entry *e = &w->e[i];
		bool seen = false;

		for (size_t k = 0; k < i && !seen; k++)
			seen = is_same_part(&w->e[k], e);
		if (!seen)
			rc = write_file(w, e, files, err);
	}
	for (size_t i = 0; i < w->n; i++) {
		const struct saved_entry *e = &w->e[i];
		char *file = name_file(w, e);
		json_t *pieces = json_array();

		for (int k = 0; k < e->n; k++)
			json_array_append_new(pieces, piece_json(e, &e->p[k], file));
		json_array_append_new(tensors,
			json_pack("{s:s, s:s, s:o, s:I, s:o}", "name", e->name, "dtype", vfm_dtype_name(e->dtype),
				"shape", int_array(e->shape, e->ndim), "nonfinite", (json_int_t)e->nonfinite, "pieces",
				pieces));
		free(file);
	}
	*mine = json_pack("{s:o, s:o}", "tensors", tensors, "files", files);
	return rc;
}

/* ---- the manifest ---- */

static int write_small(const struct vfm_ckpt_writer *w, const char *name, const struct vfm_buf *b, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", w->tmp, name);
	struct ckpt_out *o = ckpt_out_open(path, w->final, err);
	struct ckpt_out_sums sums;

	free(path);
	if (!o)
		return VFM_EENV;
	ckpt_out_add(o, b->data, b->len, err); /* a failure stays until the file is closed */
	TRY(ckpt_out_close(o, &sums, err));
	json_decref(sums.chunks);
	return 0;
}

static int write_manifest(struct vfm_ckpt_writer *w, json_t **ranks, struct vfm_err *err)
{
	json_t *files = json_array(), *tensors, *m, *f;
	struct vfm_buf text = {0}, sums = {0};
	int64_t nonfinite;
	char hex[VFM_SHA256_HEX];
	struct vfm_ckpt *check = NULL;
	size_t i;
	int rc;

	for (int r = 0; r < w->spec.size; r++)
		json_array_extend(files, json_object_get(ranks[r], "files"));
	tensors = ckpt_merge_tensors(ranks, w->spec.size, &nonfinite);
	m = json_pack("{s:i, s:I, s:i, s:I}", "v", 1, "step", (json_int_t)w->spec.step, "world", w->spec.size,
		"nonfinite", (json_int_t)nonfinite);
	json_object_set_new(m, "config", w->config ? json_incref(w->config) : json_object());
	json_object_set_new(m, "state", w->state ? json_incref(w->state) : json_object());
	json_object_set_new(m, "tensors", tensors);
	json_object_set_new(m, "files", files);
	ckpt_manifest_text(m, &text);
	/* A manifest that the parser refuses must not replace a valid checkpoint. */
	rc = ckpt_parse_manifest(&check, text.data, text.len, err);
	if (rc < 0) {
		vfm_err_context(err, "cannot save checkpoint '%s'", w->final);
		goto out;
	}
	vfm_ckpt_close(check);
	vfm_sha256_of(text.data, text.len, hex);
	vfm_buf_addf(&sums, "%s  %s\n", hex, CKPT_MANIFEST);
	for (i = 0; i < json_array_size(files); i++) {
		f = json_array_get(files, i);
		vfm_buf_addf(&sums, "%s  %s\n", json_string_value(json_object_get(f, "sha256")),
			json_string_value(json_object_get(f, "name")));
	}
	TRY_OUT(write_small(w, CKPT_MANIFEST, &text, err));
	TRY_OUT(write_small(w, CKPT_SUMS, &sums, err));
out:
	json_decref(m);
	vfm_buf_release(&text);
	vfm_buf_release(&sums);
	return rc;
}

/* ---- commit ---- */

static int make_tmp(struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	if (vfm_mkdir_p(w->dir, err) < 0) {
		vfm_err_context(err, "cannot save checkpoint '%s'", w->final);
		return VFM_EENV;
	}
	vfm_ckpt_sweep(w->dir);
	return mkdir(w->tmp, 0777) == 0 ? 0 : save_fail(w, err);
}

static int sync_dir(const struct vfm_ckpt_writer *w, const char *path, struct vfm_err *err)
{
	if (vfm_fsync_dir(path, err) < 0) {
		vfm_err_context(err, "cannot save checkpoint '%s'", w->final);
		return VFM_EENV;
	}
	return 0;
}

/* Renames the complete directory to its final name.  An existing checkpoint of the same step stays readable until
 * then. */
static int put_in_place(struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	TRY(sync_dir(w, w->tmp, err));
	if (rename(w->tmp, w->final) != 0) {
		if (errno != ENOTEMPTY && errno != EEXIST)
			return save_fail(w, err);
		if (renameat2(AT_FDCWD, w->tmp, AT_FDCWD, w->final, RENAME_EXCHANGE) != 0) {
			char *old = vfm_strfmt("%s.old.tmp", w->final);
			int bad = rename(w->final, old) != 0 || rename(w->tmp, w->final) != 0 ? errno : 0;

			vfm_rm_rf(old, NULL);
			free(old);
			if (bad) {
				errno = bad;
				return save_fail(w, err);
			}
		}
		vfm_rm_rf(w->tmp, NULL);
	}
	return sync_dir(w, w->dir, err);
}

/* all [size]: what the ranks have written. */
static int commit_rank0(struct vfm_ckpt_writer *w, char **all, struct vfm_err *err)
{
	json_t **ranks = vfm_calloc((size_t)w->spec.size, sizeof(json_t *));
	int rc = 0;

	for (int r = 0; r < w->spec.size && !rc; r++) {
		ranks[r] = vfm_json_parse(all[r], strlen(all[r]), "pieces of a rank", err);
		if (!ranks[r])
			rc = VFM_EENV;
	}
	if (!rc)
		rc = write_manifest(w, ranks, err);
	if (!rc)
		rc = put_in_place(w, err);
	for (int r = 0; r < w->spec.size; r++)
		json_decref(ranks[r]);
	free(ranks);
	return rc;
}

static int agree_writers(const struct vfm_ckpt_writer *w, int rc, struct vfm_err *err)
{
	return w->spec.comm ? w->spec.comm->agree(w->spec.comm->ctx, rc, err) : rc;
}

static void free_texts(char **text, int n)
{
	for (int r = 0; text && r < n; r++)
		free(text[r]);
	free(text);
}

/* Saves the checkpoint of the n writers of this process: one of each rank, or all. */
static int save_writers(struct vfm_ckpt_writer **w, int n, struct vfm_err *err)
{
	const struct vfm_ckpt_comm *comm = w[0]->spec.comm;
	char **mine = vfm_calloc((size_t)n, sizeof(char *)), **all = NULL;
	bool first = w[0]->spec.rank == 0;
	int rc = 0;

	TRY_OUT(agree_writers(w[0], first ? make_tmp(w[0], err) : 0, err));
	for (int r = 0; r < n && !rc; r++) {
		struct vfm_buf text = {0};
		json_t *files = NULL;

		rc = write_files(w[r], &files, err);
		vfm_json_text(&text, files, 0);
		mine[r] = text.data;
		json_decref(files);
	}
	TRY_OUT(agree_writers(w[0], rc, err));
	if (comm)
		TRY_OUT(comm->gather(comm->ctx, mine[0], &all, err));
	TRY_OUT(agree_writers(w[0], first ? commit_rank0(w[0], comm ? all : mine, err) : 0, err));
out:
	if (rc < 0 && first)
		vfm_rm_rf(w[0]->tmp, NULL);
	free_texts(all, w[0]->spec.size);
	free_texts(mine, n);
	return rc;
}

int vfm_ckpt_save(struct vfm_ckpt_writer *w, struct vfm_err *err)
{
	struct vfm_err warn = {0}, mine = {0};
	struct vfm_ckpt_prune prune = {
		.keep_last = w->spec.keep_last, .keep_every = w->spec.keep_every, .spare = w->spec.step};
	int rc = save_writers(&w, 1, err ? err : &mine);

	if (!rc && w->spec.rank == 0 && vfm_ckpt_prune(w->dir, &prune, &warn) < 0)
		vfm_warn("%s", warn.msg); /* the save succeeded; only the pruning failed */
	vfm_ckpt_abandon(w);
	return rc;
}

int vfm_ckpt_save_all(struct vfm_ckpt_writer **w, int n, struct vfm_err *err)
{
	int rc = save_writers(w, n, err);

	for (int r = 0; r < n; r++)
		vfm_ckpt_abandon(w[r]);
	return rc;
}

struct vfm_ckpt_job {
	pthread_t thread;
	struct vfm_ckpt_writer *w;
	atomic_bool done;
	int rc;
	struct vfm_err err;
};

static void *job_main(void *arg)
{
	struct vfm_ckpt_job *j = arg;

	j->rc = vfm_ckpt_save(j->w, &j->err);
	atomic_store(&j->done, true);
	return NULL;
}

int vfm_ckpt_save_async(struct vfm_ckpt_writer *w, struct vfm_ckpt_job **job, struct vfm_err *err)
{
	struct vfm_ckpt_job *j = vfm_calloc(1, sizeof(*j));
	int rc;

	j->w = w;
	rc = vfm_thread_start(&j->thread, job_main, j);
	if (rc) {
		vfm_fail(err, VFM_EENV, "cannot save checkpoint '%s': cannot start a thread: %s", w->final,
			strerror(rc));
		vfm_ckpt_abandon(w);
		free(j);
		return VFM_EENV;
	}
	*job = j;
	return 0;
}

bool vfm_ckpt_done(struct vfm_ckpt_job *job)
{
	return atomic_load(&job->done);
}

int vfm_ckpt_wait(struct vfm_ckpt_job *job, struct vfm_err *err)
{
	int rc;

	if (!job)
		return 0;
	pthread_join(job->thread, NULL);
	rc = job->rc;
	if (rc < 0 && err)
		*err = job->err;
	free(job);
	return rc;
}
