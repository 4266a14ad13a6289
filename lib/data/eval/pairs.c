/* pairs.c - pairs clips by name or record, and measures PSNR and SSIM of their frames. */
#include "data/eval/pairs.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "data/record/clip_reader.h"
#include "data/record/provenance.h"
#include "data/record/record.h"
#include "io/json.h"
#include "media/av/probe.h"
#include "media/score/quality.h"

/* ---- sources ---- */

struct pair_clip {
	char *name;
	json_t *rec;
	size_t order; /* place in the source */
};

struct clips {
	struct pair_clip *v;
	size_t n, cap;
	const char *source;
	bool single; /* one file, which is not a list */
	int64_t left_out;
};

static void clips_release(struct clips *c)
{
	for (size_t i = 0; i < c->n; i++) {
		free(c->v[i].name);
		json_decref(c->v[i].rec);
	}
	free(c->v);
}

/* Takes the reference to rec. */
static void append_clip(struct clips *c, char *name, json_t *rec)
{
	vfm_grow(&c->v, &c->cap, c->n + 1, sizeof(*c->v));
	c->v[c->n] = (struct pair_clip){name, rec, c->n};
	c->n++;
}

static int add_media_clip(struct clips *c, const char *path, const char *name, struct vfm_err *err)
{
	json_t *rec = json_pack("{s:s}", "src", path);
	const char *dot = strrchr(name, '.'), *slash = strrchr(name, '/');

	if (!rec)
		return vfm_fail(err, VFM_EUSAGE, "the name of the file '%s' is not UTF-8", path);
	if (!dot || dot == name || (slash && dot < slash))
		dot = name + strlen(name);
	append_clip(c, vfm_strfmt("%.*s", (int)(dot - name), name), rec);
	return 0;
}

static int compare_entries(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int add_folder_clips(struct clips *c, struct vfm_err *err)
{
	char *root = vfm_strdup(c->source);
	FTS *tree = fts_open((char *[]){root, NULL}, FTS_LOGICAL | FTS_NOCHDIR, compare_entries);
	size_t skip = strlen(root);
	FTSENT *e;
	int rc = 0;

	while (tree && rc == 0 && (errno = 0, e = fts_read(tree))) {
		const char *name = e->fts_path + skip;

		if (e->fts_info == FTS_D && e->fts_level > FTS_ROOTLEVEL && e->fts_name[0] == '.')
			fts_set(tree, e, FTS_SKIP);
		if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_DC) {
			errno = e->fts_info == FTS_DC ? ELOOP : e->fts_errno;
			rc = vfm_fail_errno(err, VFM_EUSAGE, "cannot read '%s'", e->fts_path);
		} else if (e->fts_info != FTS_D && e->fts_info != FTS_DP && e->fts_name[0] != '.' &&
			vfm_media_name(e->fts_name)) {
			rc = add_media_clip(c, e->fts_path, name + strspn(name, "/"), err);
		}
	}
	if (rc == 0 && errno)
		rc = vfm_fail_errno(err, VFM_EUSAGE, "cannot read the folder '%s'", c->source);
	if (tree)
		fts_close(tree);
	free(root);
	return rc;
}

static int add_record_clip(void *ctx, const json_t *rec, struct vfm_err *err)
{
	struct clips *c = ctx;
	const char *id = vfm_rec_str(rec, "id", NULL);

	if (vfm_provenance_is_header(rec))
		return 0;
	if (vfm_rec_is_out(rec)) {
		c->left_out++;
		return 0;
	}
	if (!id)
		return vfm_fail(err, VFM_EUSAGE, "id: missing (expected a string)");
	if (!vfm_rec_str(rec, "src", NULL))
		return vfm_fail(err, VFM_EUSAGE, "src: missing (expected the path of a video or image)");
	append_clip(c, vfm_strdup(id), json_incref((json_t *)(uintptr_t)rec));
	return 0;
}

static int add_record_clips(struct clips *c, struct vfm_err *err)
{
	int rc = vfm_jsonl_each(c->source, add_record_clip, c, err);

	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

static int read_clips(struct clips *c, const char *source, struct vfm_err *err)
{
	struct stat st;

	c->source = source;
	if (!strcmp(source, "-"))
		return add_record_clips(c, err);
	if (stat(source, &st) != 0)
		return vfm_fail_errno(err, VFM_EUSAGE, "cannot open '%s'", source);
	if (S_ISDIR(st.st_mode))
		return add_folder_clips(c, err);
	c->single = vfm_media_name(source);
	return c->single ? add_media_clip(c, source, source, err) : add_record_clips(c, err);
}

/* ---- pairs ---- */

static int compare_clips(const void *a, const void *b)
{
	return strcmp(((const struct pair_clip *)a)->name, ((const struct pair_clip *)b)->name);
}

static int compare_order(const void *a, const void *b)
{
	size_t x = ((const struct pair_clip *)a)->order, y = ((const struct pair_clip *)b)->order;

	return (x > y) - (x < y);
}

static int sort_clips(struct clips *c, struct vfm_err *err)
{
	if (c->n)
		qsort(c->v, c->n, sizeof(*c->v), compare_clips);
	for (size_t i = 1; i < c->n; i++)
		if (!strcmp(c->v[i].name, c->v[i - 1].name))
			return vfm_fail(err, VFM_EUSAGE, "'%s': two clips have the name '%s'", c->source, c->v[i].name);
	return 0;
}

static void append_pair(struct vfm_pairs *p, const char *name, json_t *original, json_t *reconstruction)
{
	vfm_grow(&p->v, &p->cap, p->n + 1, sizeof(*p->v));
	p->v[p->n++] = (struct vfm_pair){.name = vfm_strdup(name),
		.original = json_incref(original),
		.reconstruction = json_incref(reconstruction)};
}

/* Fails unless both have the same names; both are sorted. */
static int check_partners(const struct clips *a, const struct clips *b, struct vfm_err *err)
{
	for (size_t i = 0; i < a->n || i < b->n; i++) {
		int order = i >= a->n ? 1 : i >= b->n ? -1 : compare_clips(&a->v[i], &b->v[i]);

		if (order)
			return vfm_fail(err, VFM_EUSAGE, "'%s' of '%s' has no partner in '%s'",
				order < 0 ? a->v[i].name : b->v[i].name, order < 0 ? a->source : b->source,
				order < 0 ? b->source : a->source);
	}
	return 0;
}

static int pair_clips(struct vfm_pairs *p, struct clips *a, struct clips *b, struct vfm_err *err)
{
	if (a->single && b->single) {
		append_pair(p, a->v[0].name, a->v[0].rec, b->v[0].rec);
		return 0;
	}
	TRY(sort_clips(a, err));
	TRY(sort_clips(b, err));
	TRY(check_partners(a, b, err));
	for (size_t i = 0; i < a->n; i++) /* the partner of each, in the order of the originals */
		b->v[i].order = a->v[i].order;
	if (a->n) {
		qsort(a->v, a->n, sizeof(*a->v), compare_order);
		qsort(b->v, b->n, sizeof(*b->v), compare_order);
	}
	for (size_t i = 0; i < a->n; i++)
		append_pair(p, a->v[i].name, a->v[i].rec, b->v[i].rec);
	return 0;
}

int vfm_pairs_match(struct vfm_pairs *p, const char *originals, const char *reconstructions, struct vfm_err *err)
{
	struct clips a = {0}, b = {0};
	int rc;

	TRY_OUT(read_clips(&a, originals, err));
	TRY_OUT(read_clips(&b, reconstructions, err));
	TRY_OUT(pair_clips(p, &a, &b, err));
	p->left_out = a.left_out + b.left_out;
out:
	clips_release(&a);
	clips_release(&b);
	return rc;
}

/* Reads the view of a reconstruction that is an object. */
static int read_pair_view(struct vfm_pair_view *w, const json_t *o, const char *key, struct vfm_err *err)
{
	TRY(vfm_json_i32(o, key, "width", false, 1, 16384, &w->width, err));
	TRY(vfm_json_i32(o, key, "height", false, 1, 16384, &w->height, err));
	TRY(vfm_json_i64(o, key, "frames", false, 1, INT32_MAX, &w->frames, err));
	TRY(vfm_json_f64(o, key, "fps", false, &w->fps, err));
	if (!w->width != !w->height)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected both width and height, or none", key);
	if (!(w->fps >= 0 && w->fps <= 1000))
		return vfm_fail(err, VFM_EUSAGE, "%s.fps: expected a rate up to 1000", key);
	return 0;
}

static bool is_lossy(const json_t *o)
{
	const char *codec = vfm_rec_str(o, "codec", NULL);

	return codec && strcmp(codec, "ffv1") != 0 && strcmp(codec, "png") != 0;
}

/* Pairs a clip with its value v of `key`. */
static int pair_record(
	struct vfm_pairs *p, const struct pair_clip *c, const json_t *v, const char *key, struct vfm_err *err)
{
	const char *file = json_is_object(v) ? vfm_rec_str(v, "path", NULL) : json_string_value(v);
	json_t *rec;

	if (!file)
		return vfm_fail(err, VFM_EUSAGE,
			"the record '%s' has no %s (expected a path, or an object with 'path')", c->name, key);
	rec = json_pack("{s:s}", "src", file);
	append_pair(p, c->name, c->rec, rec);
	json_decref(rec);
	if (!json_is_object(v))
		return 0;
	p->lossy += is_lossy(v);
	return read_pair_view(&p->v[p->n - 1].view, v, key, err) < 0 ? vfm_err_context(err, "the record '%s'", c->name)
								     : 0;
}

int vfm_pairs_of_records(struct vfm_pairs *p, const char *path, const char *key, struct vfm_err *err)
{
	struct clips c = {.source = path};
	int rc;

	TRY_OUT(add_record_clips(&c, err));
	for (size_t i = 0; i < c.n; i++)
		TRY_OUT(pair_record(p, &c.v[i], vfm_rec_at(c.v[i].rec, key), key, err) < 0
				? vfm_err_context(err, "%s", path)
				: 0);
	p->left_out = c.left_out;
out:
	clips_release(&c);
	return rc;
}

void vfm_pairs_release(struct vfm_pairs *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free((char *)(uintptr_t)p->v[i].name);
		json_decref(p->v[i].original);
		json_decref(p->v[i].reconstruction);
	}
	free(p->v);
	*p = (struct vfm_pairs){0};
}

/* ---- quality ---- */

struct pair_comparison {
	struct vfm_clip_reader original, reconstruction;
	struct vfm_ssim *ssim;
	uint8_t *rgb[2];
	size_t bytes; /* of a picture */
	uint64_t squared_error;
	double ssim_sum;
	int64_t frames;
};

static int open_comparison(
	struct pair_comparison *c, const struct vfm_pair *p, const struct vfm_pair_opts *o, struct vfm_err *err)
{
	const struct vfm_pair_view *w = &p->view;
	struct vfm_clip_opts scaled = {.width = o->width ? o->width : w->width,
		.height = o->width ? o->height : w->height,
		.fit = VFM_CLIP_COVER,
		.fps = w->fps,
		.most = o->frames && (!w->frames || o->frames < w->frames) ? o->frames : w->frames,
		.threads = o->threads};
	struct vfm_clip_opts as_it_is = {.most = o->frames, .threads = o->threads};
	const struct vfm_clip_reader *a = &c->original, *b = &c->reconstruction;

	TRY(vfm_clip_open(&c->original, p->original, &scaled, err));
	TRY(vfm_clip_open(&c->reconstruction, p->reconstruction, &as_it_is, err));
	if (a->width != b->width || a->height != b->height)
		return vfm_fail(err, VFM_EINPUT, "'%s' is %dx%d%s, '%s' %dx%d", a->src, a->width, a->height,
			o->width ? " (--size)" : "", b->src, b->width, b->height);
	TRY(vfm_ssim_new(&c->ssim, a->width, a->height, err));
	c->bytes = (size_t)a->width * (size_t)a->height * 3;
	for (int i = 0; i < 2; i++) {
		c->rgb[i] = vfm_big_alloc(c->bytes, "a picture", err);
		if (!c->rgb[i])
			return VFM_EENV;
	}
	return 0;
}

/* Returns 1 if there was a frame, 0 at the end of both. */
static int compare_frame(struct pair_comparison *c, struct vfm_err *err)
{
	int a = vfm_clip_next(&c->original, c->rgb[0], err), b;

	TRY(a);
	b = vfm_clip_next(&c->reconstruction, c->rgb[1], err);
	TRY(b);
	if (a != b)
		return vfm_fail(err, VFM_EINPUT, "'%s' has more than %lld frames, '%s' only these",
			a ? c->original.src : c->reconstruction.src, (long long)c->frames,
			a ? c->reconstruction.src : c->original.src);
	if (!a)
		return 0;
	c->squared_error += vfm_squared_error(c->rgb[0], c->rgb[1], c->bytes);
	c->ssim_sum += vfm_ssim_rgb(c->ssim, c->rgb[0], c->rgb[1]);
	c->frames++;
	return 1;
}

int vfm_pair_compare(
	struct vfm_pair_quality *q, const struct vfm_pair *p, const struct vfm_pair_opts *o, struct vfm_err *err)
{
	struct pair_comparison c = {0};
	int rc = open_comparison(&c, p, o, err);

	while (rc >= 0 && (rc = compare_frame(&c, err)) == 1)
		;
	if (rc == 0 && o->frames && c.frames < o->frames)
		rc = vfm_fail(err, VFM_EINPUT, "%lld frames, expected %lld", (long long)c.frames, (long long)o->frames);
	if (rc == 0) {
		double mse = (double)c.squared_error / ((double)c.frames * (double)c.bytes);

		*q = (struct vfm_pair_quality){.frames = c.frames,
			.width = c.original.width,
			.height = c.original.height,
			.mse = mse,
			.psnr = vfm_psnr(mse),
			.ssim = c.ssim_sum / (double)c.frames};
	} else {
		vfm_err_context(err, "%s", p->name);
	}
	vfm_clip_close(&c.original);
	vfm_clip_close(&c.reconstruction);
	vfm_ssim_free(c.ssim);
	vfm_big_free(c.rgb[0], c.bytes);
	vfm_big_free(c.rgb[1], c.bytes);
	return rc;
}
