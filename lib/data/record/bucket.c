/* bucket.c - makes buckets from options, and chooses the size and number of frames of a clip. */
#include "data/record/bucket.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/stats.h"
#include "data/record/record.h"
#include "data/record/stage.h"
#include "io/json.h"

enum { SIZES_MAX = 4096, ASPECTS_MAX = 256, RATIO_MAX = 10000, SOURCE_SIDE_MAX = 1 << 20, FPS_MAX = 240 };
#define NEARLY 1e-9 /* of a side: sqrt(A r) of a legal size may be less by rounding */

/* ---- lists ---- */

/* Copies the next item of a list with commas to `item` and moves *list after it.  Returns 0 at the end of the list, or
 * VFM_EUSAGE for an item that is empty or too long. */
static int next_item(const char **list, char *item, size_t size, struct vfm_err *err)
{
	size_t n;

	if (!*list)
		return 0;
	n = strcspn(*list, ",");
	if (n == 0 || n >= size)
		return vfm_fail(err, VFM_EUSAGE, "'%.80s': expected a list with commas", *list);
	memcpy(item, *list, n);
	item[n] = 0;
	*list = (*list)[n] ? *list + n + 1 : NULL;
	return 1;
}

/* Parses "832x480" or, with another separator, "16:9". */
static bool parse_sides(const char *s, char separator, int64_t most, int64_t *a, int64_t *b)
{
	const char *at = strchr(s, separator);
	struct vfm_err err;
	char first[16];

	if (!at || at == s || (size_t)(at - s) >= sizeof(first))
		return false;
	memcpy(first, s, (size_t)(at - s));
	first[at - s] = 0;
	return vfm_parse_i64(first, 1, most, a, &err) == 0 && vfm_parse_i64(at + 1, 1, most, b, &err) == 0;
}

/* ---- sizes ---- */

static int add_bucket_size(struct vfm_buckets *b, int64_t width, int64_t height, struct vfm_err *err)
{
	for (size_t i = 0; i < b->n_sizes; i++)
		if (b->sizes[i].width == width && b->sizes[i].height == height)
			return 0;
	if (b->n_sizes == SIZES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "more than %d sizes", SIZES_MAX);
	vfm_grow(&b->sizes, &b->sizes_cap, b->n_sizes + 1, sizeof(b->sizes[0]));
	b->sizes[b->n_sizes++] = (struct vfm_bucket_size){(int)width, (int)height};
	return 0;
}

/* VFM_EUSAGE unless `n` is a multiple; names those around it. */
static int check_side(const char *size, const char *side, int64_t n, int32_t multiple, struct vfm_err *err)
{
	int64_t below = n / multiple * multiple;

	if (n == below)
		return 0;
	if (below && below + multiple <= VFM_BUCKET_SIDE_MAX)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: the %s must be a multiple of %d, the tokenizer's stride times the patch: %lld or %lld",
			size, side, multiple, (long long)below, (long long)(below + multiple));
	return vfm_fail(err, VFM_EUSAGE,
		"%s: the %s must be a multiple of %d, the tokenizer's stride times the patch: %lld", size, side,
		multiple, (long long)(below ? below : multiple));
}

static int add_sizes(struct vfm_buckets *b, const char *list, const int32_t multiple[2], struct vfm_err *err)
{
	int64_t width, height;
	char item[32];
	int rc;

	while ((rc = next_item(&list, item, sizeof(item), err)) == 1) {
		if (!parse_sides(item, 'x', VFM_BUCKET_SIDE_MAX, &width, &height))
			return vfm_fail(
				err, VFM_EUSAGE, "expected WIDTHxHEIGHT up to %d, got '%s'", VFM_BUCKET_SIDE_MAX, item);
		TRY(check_side(item, "width", width, multiple[1], err));
		TRY(check_side(item, "height", height, multiple[0], err));
		TRY(add_bucket_size(b, width, height, err));
	}
	return rc;
}

/* Parses "16:9" or "9:16..16:9/7" and appends the ratios. */
static int parse_aspect(const char *item, double *ratio, int *n, struct vfm_err *err)
{
	const char *dots = strstr(item, ".."), *slash = strrchr(item, '/');
	int64_t a[2], b[2], steps = 1;
	char text[2][32];
	bool good;

	snprintf(text[0], sizeof(text[0]), "%.*s", dots ? (int)(dots - item) : 31, item);
	good = parse_sides(text[0], ':', RATIO_MAX, &a[0], &b[0]);
	if (good && dots) {
		good = slash && slash > dots && vfm_parse_i64(slash + 1, 2, ASPECTS_MAX, &steps, err) == 0;
		snprintf(text[1], sizeof(text[1]), "%.*s", good ? (int)(slash - dots - 2) : 0, dots + 2);
		good = good && parse_sides(text[1], ':', RATIO_MAX, &a[1], &b[1]);
	}
	if (!good)
		return vfm_fail(err, VFM_EUSAGE,
			"expected WIDTH:HEIGHT up to %d, or a range such as 9:16..16:9/7, got '%s'", RATIO_MAX, item);
	if (*n + steps > ASPECTS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "more than %d aspect ratios", ASPECTS_MAX);
	for (int64_t i = 0; i < steps; i++) {
		double x = (double)a[0] / (double)b[0], y = dots ? (double)a[1] / (double)b[1] : x;

		/* both ends exactly, and equal steps between their logarithms */
		ratio[(*n)++] = i == 0 ? x : i == steps - 1 ? y : x * pow(y / x, (double)i / (double)(steps - 1));
	}
	return 0;
}

/* Returns the largest multiple of at most `side`; at least one multiple. */
static int64_t round_side(double side, int32_t multiple)
{
	int64_t n = (int64_t)floor(side * (1 + NEARLY) / multiple);

	return (n < 1 ? 1 : n) * multiple;
}

static int parse_area(const char *item, double *area, struct vfm_err *err)
{
	size_t n = strlen(item);
	int64_t width, height;
	struct vfm_err ignored;
	char digits[32];

	if (parse_sides(item, 'x', VFM_BUCKET_SIDE_MAX, &width, &height)) {
		*area = (double)width * (double)height;
		return 0;
	}
	snprintf(digits, sizeof(digits), "%.*s", n ? (int)n - 1 : 0, item);
	if (!n || item[n - 1] != 'p' || vfm_parse_i64(digits, 1, VFM_BUCKET_SIDE_MAX / 2, &height, &ignored) < 0)
		return vfm_fail(
			err, VFM_EUSAGE, "expected a size such as 832x480, or a height such as 480p, got '%s'", item);
	*area = (double)height * (double)height * 16 / 9;
	return 0;
}

/* Adds the size of an area in each of n ratios. */
static int add_area(struct vfm_buckets *b, const char *item, const double *ratio, int n, const int32_t multiple[2],
	struct vfm_err *err)
{
	double area;

	TRY(parse_area(item, &area, err));
	for (int i = 0; i < n; i++) {
		int64_t width = round_side(sqrt(area * ratio[i]), multiple[1]),
			height = round_side(sqrt(area / ratio[i]), multiple[0]);

		if (width > VFM_BUCKET_SIDE_MAX || height > VFM_BUCKET_SIDE_MAX)
			return vfm_fail(err, VFM_EUSAGE, "%s: the aspect ratio %g makes a size of %lldx%lld, over %d",
				item, ratio[i], (long long)width, (long long)height, VFM_BUCKET_SIDE_MAX);
		TRY(add_bucket_size(b, width, height, err));
	}
	return 0;
}

static int add_areas(
	struct vfm_buckets *b, const char *areas, const char *aspects, const int32_t multiple[2], struct vfm_err *err)
{
	double ratio[ASPECTS_MAX];
	int n = 0, rc;
	char item[64];

	while ((rc = next_item(&aspects, item, sizeof(item), err)) == 1)
		if (parse_aspect(item, ratio, &n, err) < 0)
			return vfm_err_context(err, "--aspects");
	if (rc < 0)
		return vfm_err_context(err, "--aspects");
	while ((rc = next_item(&areas, item, sizeof(item), err)) == 1)
		if (add_area(b, item, ratio, n, multiple, err) < 0)
			return vfm_err_context(err, "--area");
	return rc < 0 ? vfm_err_context(err, "--area") : 0;
}

static int compare_sizes(const void *x, const void *y)
{
	const struct vfm_bucket_size *a = x, *b = y;
	int64_t area = (int64_t)a->width * a->height, other = (int64_t)b->width * b->height;

	return area != other ? (area < other) - (area > other) : b->width - a->width;
}

/* ---- numbers of frames ---- */

static bool is_legal_count(const struct vfm_bucket_opts *o, int64_t n)
{
	return vfm_geometry_fit_patch(&o->geometry, n, o->patch[0]) == n;
}

static void add_count(struct vfm_buckets *b, int64_t n)
{
	vfm_grow(&b->frames, &b->frames_cap, b->n_frames + 1, sizeof(b->frames[0]));
	b->frames[b->n_frames++] = n;
}

static int refuse_count(const struct vfm_bucket_opts *o, int64_t n, struct vfm_err *err)
{
	int64_t below = vfm_geometry_fit_patch(&o->geometry, n, o->patch[0]), above = n + 1;
	char text[VFM_GEOMETRY_TEXT], near[64] = "";

	while (above <= VFM_BUCKET_FRAMES_MAX && !is_legal_count(o, above))
		above++;
	if (below && above <= VFM_BUCKET_FRAMES_MAX)
		snprintf(near, sizeof(near), ": %lld or %lld", (long long)below, (long long)above);
	else if (below || above <= VFM_BUCKET_FRAMES_MAX)
		snprintf(near, sizeof(near), ": %lld", (long long)(below ? below : above));
	return vfm_fail(err, VFM_EUSAGE, "%lld frames do not fit the tokenizer (%s) in patches of %d%s", (long long)n,
		vfm_geometry_text(&o->geometry, text), o->patch[0], near);
}

static int add_counts(struct vfm_buckets *b, const struct vfm_bucket_opts *o, struct vfm_err *err)
{
	const char *list = o->frames;
	char item[32];
	int64_t n;
	int rc;

	while ((rc = next_item(&list, item, sizeof(item), err)) == 1) {
		TRY(vfm_parse_i64(item, 1, VFM_BUCKET_FRAMES_MAX, &n, err));
		TRY(is_legal_count(o, n) ? 0 : refuse_count(o, n, err));
		add_count(b, n);
	}
	return rc;
}

/* Adds the counts that need no padding. */
static int add_all_counts(struct vfm_buckets *b, const struct vfm_bucket_opts *o, struct vfm_err *err)
{
	const struct vfm_geometry *g = &o->geometry;
	int64_t least = o->min_frames ? o->min_frames : 2;
	char text[VFM_GEOMETRY_TEXT];

	for (int64_t n = g->first; n <= o->max_frames; n += g->step) {
		if (n >= least && is_legal_count(o, n))
			add_count(b, n);
		if (!g->step)
			break;
	}
	if (b->n_frames)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"%lld to %lld: the tokenizer (%s) takes no such number of frames in patches of %d", (long long)least,
		(long long)o->max_frames, vfm_geometry_text(g, text), o->patch[0]);
}

/* Sorts the counts and removes those that stand twice. */
static void sort_counts(struct vfm_buckets *b)
{
	size_t n = 0;

	vfm_sort_i64(b->frames, b->n_frames);
	for (size_t i = 0; i < b->n_frames; i++)
		if (!n || b->frames[n - 1] != b->frames[i])
			b->frames[n++] = b->frames[i];
	b->n_frames = n;
}

/* ---- all buckets ---- */

static int check_bucket_opts(const struct vfm_bucket_opts *o, struct vfm_err *err)
{
	if (!o->sizes && !o->areas)
		return vfm_fail(err, VFM_EUSAGE, "--sizes LIST or --area LIST is missing: the sizes of the buckets");
	if (o->aspects && !o->areas)
		return vfm_fail(err, VFM_EUSAGE, "--aspects: it needs --area");
	if (!o->frames == !o->max_frames)
		return vfm_fail(err, VFM_EUSAGE,
			"expected one of --frames LIST and --max-frames N: the lengths of the buckets");
	if (o->frames && o->min_frames)
		return vfm_fail(err, VFM_EUSAGE, "--min-frames: it needs --max-frames");
	if (o->min_frames < 0 || o->max_frames < 0 || o->max_frames > VFM_BUCKET_FRAMES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "--min-frames, --max-frames: expected 1 to %d", VFM_BUCKET_FRAMES_MAX);
	if (!(o->fps >= 0 && o->fps <= FPS_MAX))
		return vfm_fail(err, VFM_EUSAGE, "--fps: expected a rate above 0, up to %d", FPS_MAX);
	if (!(o->max_upscale >= 1 && o->max_upscale <= 1000))
		return vfm_fail(err, VFM_EUSAGE, "--max-upscale: expected a factor from 1 (none) to 1000");
	if (!(o->max_crop >= 0 && o->max_crop <= 1))
		return vfm_fail(err, VFM_EUSAGE, "--max-crop: expected a share from 0 to 1");
	return 0;
}

int vfm_buckets_make(struct vfm_buckets *b, const struct vfm_bucket_opts *o, struct vfm_err *err)
{
	int32_t multiple[2];

	*b = (struct vfm_buckets){.fps = o->fps, .max_upscale = o->max_upscale, .max_crop = o->max_crop};
	TRY(check_bucket_opts(o, err));
	vfm_geometry_multiple(&o->geometry, o->patch, multiple);
	if (o->sizes && add_sizes(b, o->sizes, multiple, err) < 0)
		return vfm_err_context(err, "--sizes");
	if (o->areas)
		TRY(add_areas(b, o->areas, o->aspects ? o->aspects : VFM_BUCKET_ASPECTS, multiple, err));
	if (o->frames ? add_counts(b, o, err) < 0 : add_all_counts(b, o, err) < 0)
		return vfm_err_context(err, o->frames ? "--frames" : "--min-frames, --max-frames");
	qsort(b->sizes, b->n_sizes, sizeof(b->sizes[0]), compare_sizes);
	sort_counts(b);
	b->takes_images = is_legal_count(o, 1);
	return 0;
}

void vfm_buckets_release(struct vfm_buckets *b)
{
	free(b->sizes);
	free(b->frames);
	*b = (struct vfm_buckets){0};
}

/* Adds "17,33,81", or of more than three numbers at equal distances "5..81/4". */
static void add_counts_text(struct vfm_buf *t, const struct vfm_buckets *b)
{
	size_t n = b->n_frames, equal = 2;

	while (n > 3 && equal < n && b->frames[equal] - b->frames[equal - 1] == b->frames[1] - b->frames[0])
		equal++;
	if (n > 3 && equal == n) {
		vfm_buf_addf(t, "%lld..%lld/%lld", (long long)b->frames[0], (long long)b->frames[n - 1],
			(long long)(b->frames[1] - b->frames[0]));
		return;
	}
	for (size_t i = 0; i < n; i++)
		vfm_buf_addf(t, "%s%lld", i ? "," : "", (long long)b->frames[i]);
}

char *vfm_buckets_text(const struct vfm_buckets *b)
{
	char fps[VFM_REAL_TEXT], upscale[VFM_REAL_TEXT], crop[VFM_REAL_TEXT];
	struct vfm_buf t = {0};

	vfm_buf_addf(&t, "sizes ");
	for (size_t i = 0; i < b->n_sizes; i++)
		vfm_buf_addf(&t, "%s%dx%d", i ? "," : "", b->sizes[i].width, b->sizes[i].height);
	vfm_buf_addf(&t, " frames ");
	add_counts_text(&t, b);
	vfm_buf_addf(&t, "%s fps %s max-upscale %s max-crop %s", b->takes_images ? " images" : "",
		vfm_real_text(fps, b->fps), vfm_real_text(upscale, b->max_upscale), vfm_real_text(crop, b->max_crop));
	return t.data;
}

/* ---- the choice ---- */

static double scale_to(const struct vfm_bucket_size *z, const struct vfm_bucket_source *s)
{
	double x = (double)z->width / (double)s->width, y = (double)z->height / (double)s->height;

	return x > y ? x : y;
}

/* Equal ratios give equal numbers: both products are exact, and the division is rounded once. */
static double kept_share(const struct vfm_bucket_size *z, const struct vfm_bucket_source *s)
{
	double a = (double)z->width * (double)s->height, b = (double)z->height * (double)s->width;

	return a < b ? a / b : b / a;
}

static bool keeps_enough(const struct vfm_buckets *b, double keep)
{
	return 1 - keep <= b->max_crop + 1e-12;
}

/* Returns the size of steps 1 to 3, or NULL. */
static const struct vfm_bucket_size *choose_bucket_size(const struct vfm_buckets *b, const struct vfm_bucket_source *s)
{
	const struct vfm_bucket_size *chosen = NULL;
	double best = 0, chosen_keep = 0, keep;

	for (size_t i = 0; i < b->n_sizes; i++) {
		keep = kept_share(&b->sizes[i], s);
		if (scale_to(&b->sizes[i], s) <= b->max_upscale && keeps_enough(b, keep) && keep > best)
			best = keep;
	}
	for (size_t i = 0; i < b->n_sizes && best > 0; i++) {
		const struct vfm_bucket_size *z = &b->sizes[i];
		bool smaller = chosen && (int64_t)z->width * z->height < (int64_t)chosen->width * chosen->height;

		keep = kept_share(z, s);
		if (smaller || scale_to(z, s) > b->max_upscale || !keeps_enough(b, keep) ||
			keep < best / VFM_BUCKET_NEAR)
			continue;
		if (!chosen || keep > chosen_keep) { /* of equal areas the first is the widest */
			chosen = z;
			chosen_keep = keep;
		}
	}
	return chosen;
}

/* Says why no size fits: all crop too much, or the others need too much scaling. */
static void explain_size(const struct vfm_buckets *b, const struct vfm_bucket_source *s, char why[VFM_BUCKET_WHY])
{
	char limit[VFM_REAL_TEXT];
	bool fits = false;

	for (size_t i = 0; i < b->n_sizes; i++)
		fits |= keeps_enough(b, kept_share(&b->sizes[i], s));
	if (fits)
		snprintf(why, VFM_BUCKET_WHY, "too small for the buckets (--max-upscale %s)",
			vfm_real_text(limit, b->max_upscale));
	else
		snprintf(why, VFM_BUCKET_WHY, "aspect ratio too far from the buckets (--max-crop %s)",
			vfm_real_text(limit, b->max_crop));
}

bool vfm_buckets_choose(const struct vfm_buckets *b, const struct vfm_bucket_source *s, struct vfm_bucket *out,
	char why[VFM_BUCKET_WHY])
{
	const struct vfm_bucket_size *z = choose_bucket_size(b, s);
	size_t i = b->n_frames;

	if (!z) {
		explain_size(b, s, why);
		return false;
	}
	*out = (struct vfm_bucket){
		.width = z->width, .height = z->height, .frames = 1, .fps = s->is_image ? 0 : b->fps};
	if (s->is_image) {
		if (!b->takes_images)
			snprintf(why, VFM_BUCKET_WHY, "an image: the tokenizer takes no single frame");
		return b->takes_images;
	}
	while (i && b->frames[i - 1] > s->frames)
		i--;
	if (!i) {
		snprintf(why, VFM_BUCKET_WHY, "too short: fewer than %lld frames", (long long)b->frames[0]);
		return false;
	}
	out->frames = b->frames[i - 1];
	return true;
}

int64_t vfm_bucket_resampled(int64_t n, double rate, double fps)
{
	const double slack = 1e-6; /* of clip_reader.c and cut.c, in seconds */
	double to_last = floor(fps * ((double)(n - 1) / rate + slack)) + 1,
	       to_end = ceil(fps * ((double)n / rate - slack));
	double least = to_last < to_end ? to_last : to_end;

	return least > VFM_BUCKET_FRAMES_MAX ? VFM_BUCKET_FRAMES_MAX : (int64_t)least;
}

/* ---- records ---- */

static int record_i64(
	const json_t *o, const char *where, const char *key, int64_t most, int64_t *out, struct vfm_err *err)
{
	return vfm_rec_blame(vfm_json_i64(o, where, key, true, 1, most, out, err), err);
}

/* Counts the frames of a clip's record, before or after `clip`. */
static int count_source_frames(const json_t *rec, const struct vfm_rec_media *m, int64_t *n, struct vfm_err *err)
{
	if (m->end_frame < 0)
		TRY(record_i64(rec, "", "frames", INT64_MAX / 2, n, err));
	*n = (m->end_frame < 0 ? *n : m->end_frame) - m->start_frame;
	if (*n < 1)
		return vfm_fail(
			err, VFM_EINPUT, "frames: expected more than start_frame %lld", (long long)m->start_frame);
	return 0;
}

/* Returns the frames a second of the n frames of a clip, or 0.  Where the rate varies, `fps` is the mean of the file.
 */
static double source_rate(const json_t *rec, int64_t n)
{
	double start_s, end_s = 0, frames;
	int num = 0, den = 1, end = 0;

	if (json_is_true(json_object_get(rec, "vfr"))) {
		if (!vfm_rec_num(rec, "start_s", &start_s) || !vfm_rec_num(rec, "end_s", &end_s)) {
			start_s = 0;
			if (!vfm_rec_num(rec, "duration_s", &end_s) || !vfm_rec_num(rec, "frames", &frames) ||
				frames != (double)n)
				end_s = 0;
		}
		if (end_s > start_s)
			return (double)n / (end_s - start_s);
	}
	if (sscanf(vfm_rec_str(rec, "fps", ""), "%d/%d%n", &num, &den, &end) != 2 || vfm_rec_str(rec, "fps", "")[end])
		return 0;
	return num > 0 && den > 0 ? (double)num / den : 0;
}

static int read_source(const struct vfm_buckets *b, const json_t *rec, struct vfm_bucket_source *s, struct vfm_err *err)
{
	struct vfm_rec_media m;
	double rate;

	TRY(vfm_rec_media(rec, &m, err));
	TRY(record_i64(rec, "", "width", SOURCE_SIDE_MAX, &s->width, err));
	TRY(record_i64(rec, "", "height", SOURCE_SIDE_MAX, &s->height, err));
	s->is_image = m.is_image;
	s->frames = 1;
	if (m.is_image)
		return 0;
	TRY(count_source_frames(rec, &m, &s->frames, err));
	if (b->fps <= 0)
		return 0;
	rate = source_rate(rec, s->frames);
	if (rate <= 0)
		return vfm_fail(err, VFM_EINPUT, "fps: expected a fraction such as 30000/1001 (--fps), got '%.40s'",
			vfm_rec_str(rec, "fps", ""));
	s->frames = vfm_bucket_resampled(s->frames, rate, b->fps);
	if (s->frames < 1)
		s->frames = 1;
	return 0;
}

const char *vfm_bucket_name(const struct vfm_bucket *b, char name[VFM_BUCKET_NAME])
{
	snprintf(name, VFM_BUCKET_NAME, "%dx%dx%lld", b->width, b->height, (long long)b->frames);
	return name;
}

int vfm_bucket_assign(const struct vfm_buckets *b, json_t *rec, struct vfm_err *err)
{
	char why[VFM_BUCKET_WHY], name[VFM_BUCKET_NAME];
	struct vfm_bucket_source s;
	struct vfm_bucket bucket;
	json_t *o;

	TRY(read_source(b, rec, &s, err));
	if (!vfm_buckets_choose(b, &s, &bucket, why)) {
		json_object_del(rec, "bucket");
		vfm_stage_drop(rec, "bucket", "%s", why);
		return 0;
	}
	o = json_pack("{s:s,s:i,s:i,s:I}", "name", vfm_bucket_name(&bucket, name), "width", bucket.width, "height",
		bucket.height, "frames", (json_int_t)bucket.frames);
	if (bucket.fps > 0)
		json_object_set_new(o, "fps", vfm_json_real(bucket.fps));
	json_object_set_new(rec, "bucket", o);
	return 0;
}

int vfm_bucket_read(struct vfm_bucket *b, const json_t *rec, struct vfm_err *err)
{
	const json_t *o = json_object_get(rec, "bucket"), *fps = json_object_get(o, "fps");
	int64_t width, height;

	if (!json_is_object(o))
		return vfm_fail(err, VFM_EINPUT, "the record has no bucket: vfm-curate bucket assigns one");
	TRY(record_i64(o, "bucket", "width", VFM_BUCKET_SIDE_MAX, &width, err));
	TRY(record_i64(o, "bucket", "height", VFM_BUCKET_SIDE_MAX, &height, err));
	TRY(record_i64(o, "bucket", "frames", VFM_BUCKET_FRAMES_MAX, &b->frames, err));
	if (fps && !(json_number_value(fps) > 0 && json_number_value(fps) <= FPS_MAX))
		return vfm_fail(err, VFM_EINPUT, "bucket.fps: expected a rate above 0, up to %d", FPS_MAX);
	b->width = (int)width;
	b->height = (int)height;
	b->fps = fps ? json_number_value(fps) : 0;
	return 0;
}

int vfm_bucket_rate(const struct vfm_bucket *b, double *fps, struct vfm_err *err)
{
	char asked[VFM_REAL_TEXT], counted[VFM_REAL_TEXT];

	if (*fps > 0 && *fps != b->fps)
		return vfm_fail(err, VFM_EINPUT, "--fps %s, but the frames of the bucket are %s%s%s",
			vfm_real_text(asked, *fps), b->fps > 0 ? "those at " : "all of the source",
			b->fps > 0 ? vfm_real_text(counted, b->fps) : "", b->fps > 0 ? " a second" : "");
	*fps = b->fps;
	return 0;
}

int vfm_bucket_check_frames(const struct vfm_bucket *b, int64_t frames, struct vfm_err *err)
{
	char name[VFM_BUCKET_NAME];

	if (frames == b->frames)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "%lld frame%s, but the bucket %s has %lld (--frames bucket)",
		(long long)frames, frames == 1 ? "" : "s", vfm_bucket_name(b, name), (long long)b->frames);
}
