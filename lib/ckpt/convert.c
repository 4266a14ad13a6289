/* convert.c - divides tensors among another number of writers, and imports plain safetensors and .pth files. */
#include "ckpt/convert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ckpt/save.h"
#include "io/file.h"
#include "io/json.h"

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
		return vfm_fail(err, VFM_EUSAGE, "%s: not a checkpoint; vfm-ckpt import makes it one", c->path);
	if (!c->n)
		return vfm_fail(err, VFM_EUSAGE, "%s: no tensors", c->path);
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

/* ---- import ---- */

int vfm_ckpt_import(struct vfm_ckpt *c, const char *part, int dtype, const json_t *config, const char *dir,
	int64_t step, struct vfm_err *err)
{
	struct vfm_ckpt_spec spec = {.dir = dir, .step = step, .state = c->state};
	struct vfm_ckpt_writer *w;
	int rc = 0;

	if (!c->plain)
		return vfm_fail(err, VFM_EUSAGE, "%s is already a checkpoint", c->path);
	spec.config = config ? config : c->config;
	w = vfm_ckpt_begin(&spec);
	for (int i = 0; i < c->n && !rc; i++) {
		char *name = vfm_strfmt("%s/%s", part, c->t[i].name);

		rc = vfm_ckpt_add_from(w, name, ckpt_out_dtype(&c->t[i], dtype), NULL, c, &c->t[i], err);
		free(name);
	}
	if (!rc)
		return vfm_ckpt_save(w, err);
	vfm_ckpt_abandon(w);
	return rc;
}
