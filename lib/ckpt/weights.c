/* weights.c - opens foreign weights, finds tensors by name and shape, and reports all that are missing or unused. */
#include "ckpt/weights.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/map.h"
#include "ckpt/check.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/json.h"

#define MAX_CONFIG ((size_t)1 << 20)

struct weight_entry {
	struct vfm_weight t;
	bool known; /* requested or ignored */
	bool used;  /* requested, with this shape */
};
struct vfm_weights {
	char *path;
	struct vfm_ckpt *c;
	json_t *config;
	struct weight_entry *e; /* [c->n], sorted by name */
	struct vfm_map *map;    /* [c->n_files] */
	struct ckpt_faults missing, shapes, types;
};

/* ---- opening ---- */

/* Opens the files, with the names and shapes that they have. */
static int open_files(struct vfm_weights *w, struct vfm_err *err)
{
	const struct vfm_ckpt_how how = {.raw = true};
	const bool dir = ckpt_is_dir(w->path);
	char *single = vfm_strfmt("%s/model.safetensors", w->path);
	int rc;

	if (dir && access(single, F_OK) == 0)
		rc = ckpt_open_plain(&w->c, single, false, &how, err);
	else if (dir && !ckpt_plain_name(w->path))
		rc = vfm_fail(err, VFM_EUSAGE,
			"%s: no weights: expected a .safetensors or .pth file with a name in vfm-encoders(7)", w->path);
	else
		rc = ckpt_open_plain(&w->c, w->path, dir, &how, err);
	free(single);
	return rc;
}

static int read_weights_config(struct vfm_weights *w, struct vfm_err *err)
{
	char *folder = ckpt_is_dir(w->path) ? vfm_strdup(w->path) : vfm_dir_of(w->path),
	     *name = vfm_strfmt("%s/config.json", folder);
	int rc = 0;

	free(folder);
	if (access(name, F_OK) == 0) {
		w->config = vfm_json_load_regular(name, MAX_CONFIG, err);
		if (!w->config)
			rc = err ? err->code : VFM_EUSAGE;
		else if (!json_is_object(w->config))
			rc = vfm_fail(err, VFM_EUSAGE, "%s: expected an object", name);
	}
	free(name);
	return rc;
}

static int map_files(struct vfm_weights *w, struct vfm_err *err)
{
	w->map = vfm_calloc((size_t)w->c->n_files, sizeof(*w->map));
	for (int i = 0; i < w->c->n_files; i++) {
		const char *name = w->c->file[i].name;
		char *path = strcmp(name, w->c->path) ? vfm_strfmt("%s/%s", w->c->path, name) : vfm_strdup(name);
		int rc = vfm_map_open(&w->map[i], path, err);

		free(path);
		TRY(rc);
	}
	return 0;
}

/* Checks the place of each tensor in its file, which the header has promised, and lists it. */
static int list_weights(struct vfm_weights *w, struct vfm_err *err)
{
	w->e = vfm_calloc((size_t)w->c->n + 1, sizeof(*w->e));
	for (int i = 0; i < w->c->n; i++) {
		const struct vfm_ckpt_tensor *t = &w->c->t[i];
		const int file = t->piece[0].file;
		uint64_t off;

		TRY(ckpt_piece_place(w->c, t, &t->piece[0], &off, err));
		if (off > w->map[file].size || (uint64_t)t->bytes > w->map[file].size - off)
			return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s' reaches beyond the end of '%s'", w->path,
				t->name, w->c->file[file].name);
		w->e[i].t = (struct vfm_weight){.name = t->name,
			.dtype = t->dtype,
			.ndim = t->ndim,
			.numel = t->numel,
			.data = w->map[file].data + off};
		memcpy(w->e[i].t.shape, t->shape, sizeof(t->shape));
	}
	return 0;
}

char *vfm_weights_within(const char *path, const char *const *names)
{
	char *inner = vfm_first_in(path, names);

	return inner ? inner : vfm_strdup(path);
}

int vfm_weights_open(struct vfm_weights **out, const char *path, struct vfm_err *err)
{
	struct vfm_weights *w = vfm_calloc(1, sizeof(*w));
	int rc;

	w->path = vfm_strdup(path);
	TRY_OUT(open_files(w, err));
	TRY_OUT(read_weights_config(w, err));
	TRY_OUT(map_files(w, err));
	TRY_OUT(list_weights(w, err));
	*out = w;
	return 0;
out:
	vfm_weights_close(w);
	return rc;
}

void vfm_weights_close(struct vfm_weights *w)
{
	if (!w)
		return;
	for (int i = 0; w->map && i < w->c->n_files; i++)
		vfm_map_close(&w->map[i]);
	ckpt_faults_release(&w->missing);
	ckpt_faults_release(&w->shapes);
	ckpt_faults_release(&w->types);
	free(w->map);
	free(w->e);
	json_decref(w->config);
	vfm_ckpt_close(w->c);
	free(w->path);
	free(w);
}

/* ---- tensors ---- */

const char *vfm_weights_path(const struct vfm_weights *w)
{
	return w->path;
}

const json_t *vfm_weights_config(const struct vfm_weights *w)
{
	return w->config;
}

int vfm_weights_metadata(const struct vfm_weights *w, const char *key, json_t **out, struct vfm_err *err)
{
	char *where;
	int rc = ckpt_read_meta(w->c, key, out, &where, err);

	free(where);
	return rc;
}

const struct vfm_weight *vfm_weights_find(const struct vfm_weights *w, const char *name)
{
	const struct vfm_ckpt_tensor *t = vfm_ckpt_find(w->c, name);

	return t ? &w->e[t - w->c->t].t : NULL;
}

const struct vfm_weight *vfm_weights_want(
	struct vfm_weights *w, int ndim, const int64_t *shape, const char *format, ...)
{
	const struct vfm_ckpt_tensor *t;
	struct weight_entry *e;
	char name[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(name, sizeof(name), format, ap);
	va_end(ap);
	t = vfm_ckpt_find(w->c, name);
	if (!t) {
		ckpt_fault_add(&w->missing, name, "");
		return NULL;
	}
	e = &w->e[t - w->c->t];
	e->known = true;
	if (!ckpt_shape_fits(&w->shapes, name, t, ndim, shape))
		return NULL;
	e->used = true;
	if (vfm_dtype_is_float(t->dtype))
		return &e->t;
	ckpt_fault_add(&w->types, name, "");
	return NULL;
}

void vfm_weights_ignore(struct vfm_weights *w, const char *prefix)
{
	for (int i = 0; i < w->c->n; i++)
		if (!strncmp(w->e[i].t.name, prefix, strlen(prefix)))
			w->e[i].known = true;
}

int vfm_weights_check(struct vfm_weights *w, const char *what, struct vfm_err *err)
{
	struct ckpt_faults unknown = {0};
	struct vfm_buf b = {0};
	int rc = 0;

	for (int i = 0; i < w->c->n; i++)
		if (!w->e[i].known)
			ckpt_fault_add(&unknown, w->e[i].t.name, "");
	ckpt_faults_report(&b, &w->missing, "missing");
	ckpt_faults_report(&b, &w->shapes, "of another shape");
	ckpt_faults_report(&b, &w->types, "not of floating-point numbers");
	ckpt_faults_report(&b, &unknown, "unknown");
	if (b.len)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: these are not the weights of %s: %s", w->path, what, b.data);
	vfm_buf_release(&b);
	return rc;
}

void vfm_weight_to_f32(const struct vfm_weight *t, float *dst)
{
	vfm_dtype_convert(VFM_F32, dst, t->dtype, t->data, (size_t)t->numel);
}

void vfm_weight_drop_pages(const struct vfm_weight *t)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)t->data,
		  to = from + (size_t)t->numel * vfm_dtype_size(t->dtype);

	from = (from + page - 1) / page * page;
	to = to / page * page;
	if (to > from)
		madvise((void *)from, to - from, MADV_DONTNEED);
}

int vfm_weights_sha256(const struct vfm_weights *w, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	return vfm_ckpt_sha256(w->c, hex, err);
}

int vfm_weights_sha256_used(const struct vfm_weights *w, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct vfm_sha256 *sha = vfm_sha256_new();
	char text[64];

	(void)err;
	for (int i = 0; i < w->c->n; i++) {
		const struct vfm_weight *t = &w->e[i].t;

		if (!w->e[i].used)
			continue;
		vfm_sha256_add(sha, t->name, strlen(t->name) + 1);
		vfm_sha256_add(sha, vfm_dtype_name(t->dtype), strlen(vfm_dtype_name(t->dtype)) + 1);
		for (int k = 0; k < t->ndim; k++) {
			snprintf(text, sizeof(text), "%lld ", (long long)t->shape[k]);
			vfm_sha256_add(sha, text, strlen(text));
		}
		vfm_sha256_add(sha, t->data, (size_t)t->numel * vfm_dtype_size(t->dtype));
	}
	vfm_sha256_end(sha, hex);
	return 0;
}
