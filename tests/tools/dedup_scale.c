/* dedup_scale - measures deduplication on synthetic hashes with planted copies.
 *
 *	dedup_scale clips CLIPS SEED                perceptual hashes of 6 slots
 *	dedup_scale images IMAGES SEED              of images
 *	dedup_scale records CLIPS SEED              these as records of vfm-curate hash, on stdout
 *	dedup_scale image-records IMAGES SEED
 *	dedup_scale check CLIPS SEED <RECORDS       what `vfm-curate dedup` made of them
 *	dedup_scale vectors ROWS DIM SEED [PROBE]   vectors, semantic deduplication (of probes 1 to 3) and search
 *
 * clips: 80 % are unique, the others are copies of them: noise on all coefficients, every fourth also mirrored, every
 * third cut by one slot at the start.  Copies of copies are not made.  Of the unique ones,
 * a fifth belong to scenes of 50 clips that share a background (a fixed camera) but move differently, and 0.5 % to one
 * such scene, as of one camera: their hashes resemble each other without being duplicates.  A tenth begin with one of
 * 20 title cards (1.5 s), a twentieth with black frames (1 s).  Backgrounds have the falling spectrum of pictures, and
 * are brighter above than below.  Those before a fixed camera have changes (media/match/clip_change.h) of normal shapes
 * at uniform places, and so have their copies, with noise.
 *
 * images: 32 x 32 pixels of noise with a falling spectrum; a tenth share one of 1000 layouts, with other detail. Copies
 * have another light and noise, every fourth is mirrored, and every third a crop of 93 % of a side.
 *
 * vectors: 1000 topics; 10 % are copies at cosine 0.95 to 1.
 *
 * Prints times, peak memory, and how many planted copies were found, and how many that were not planted.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"
#include "curate/dedup/clip_groups.h"
#include "curate/dedup/nearest.h"
#include "curate/dedup/semantic.h"

#define SLOTS   6
#define SCENE   50
#define CARDS   20
#define TOPICS  1000
#define LAYOUTS 1000
#define SIDE    VFM_PICTURE_SIDE

typedef void make_hash(uint64_t seed, int64_t i, int64_t n, struct vfm_clip_hash *h, int64_t *of);

static void must(int rc, const struct vfm_err *err)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "dedup_scale: %s\n", err->msg);
	exit(-rc);
}

/* User and system time of the process in seconds. */
static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
		1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double peak_gib(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_maxrss / (1 << 20);
}

/* Normals of a stream: element i. */
static void draw(uint64_t seed, uint64_t id, float *x, int n)
{
	const struct vfm_rng r = vfm_rng_stream(seed, 0, id, VFM_RNG_TEST);

	for (int i = 0; i < n; i += 4) {
		float v[4];

		vfm_rng_normal4(&r, (uint64_t)i / 4, v);
		for (int k = 0; k < 4 && i + k < n; k++)
			x[i + k] = v[k];
	}
}

/* Coefficients of an original: a background with a falling spectrum, and smooth motion. */
static void original(uint64_t seed, int64_t i, float x[SLOTS + 1][VFM_CLIP_HASH_COEFS])
{
	float ground[VFM_CLIP_HASH_COEFS], move[SLOTS + 3][VFM_CLIP_HASH_COEFS];
	uint64_t scene = i % 200 == 7 ? (uint64_t)1 << 41 /* before a fixed camera */
		: i % 5 == 0          ? (uint64_t)(i / (5 * SCENE))
				      : (uint64_t)1 << 40 | (uint64_t)i;
	int card = i % 10 == 1 ? 3 : 0, black = i % 20 == 3 ? 2 : 0;

	draw(seed, (uint64_t)1 << 50 | scene, ground, VFM_CLIP_HASH_COEFS);
	draw(seed, (uint64_t)1 << 51 | (uint64_t)i, move[0], (SLOTS + 3) * VFM_CLIP_HASH_COEFS);
	ground[1] += 0.7F;
	for (int k = 0; k < SLOTS + 1; k++)
		for (int c = 0; c < VFM_CLIP_HASH_COEFS; c++) {
			float fall = 1 / (1 + 0.1F * (float)c);

			x[k][c] = fall * (300 * ground[c] + 40 * (move[k][c] + 2 * move[k + 1][c] + move[k + 2][c]));
		}
	if (card)
		draw(seed, (uint64_t)1 << 56 | (uint64_t)(i / 10 % CARDS), ground, VFM_CLIP_HASH_COEFS);
	for (int k = 0; k < card + black; k++)
		for (int c = 0; c < VFM_CLIP_HASH_COEFS; c++)
			x[k][c] = card ? 300 * ground[c] / (1 + 0.1F * (float)c) : 0;
}

static bool is_black(const float *x)
{
	for (int c = 0; c < VFM_CLIP_HASH_COEFS; c++)
		if (x[c] != 0)
			return false;
	return true;
}

/* Returns the original of clip i of n: the first 80 % are originals. */
static int64_t original_of(uint64_t seed, int64_t i, int64_t n)
{
	const int64_t originals = n * 4 / 5;
	struct vfm_rng r;

	if (i < originals)
		return i;
	r = vfm_rng_stream(seed, 1, (uint64_t)i, VFM_RNG_TEST);
	return (int64_t)vfm_rng_below(&r, 0, (uint64_t)originals);
}

/* Whether an original is before a fixed camera. */
static bool is_fixed_camera(int64_t i)
{
	return i % 200 == 7 || i % 5 == 0;
}

/* The changes of a copy, clip i, of an original, or of itself; cut: by so many slots. */
static void make_changes(uint64_t seed, int64_t i, int64_t of, bool mirrored, int cut, struct vfm_clip_changes *c)
{
	enum { STEPS = 2 * SLOTS - 3, EACH = VFM_CHANGE_COEFS + 4 };
	const struct vfm_rng place = vfm_rng_stream(seed, 5, (uint64_t)of, VFM_RNG_TEST);
	float x[STEPS][EACH], noise[STEPS][EACH];

	draw(seed, (uint64_t)1 << 59 | (uint64_t)of, x[0], STEPS * EACH);
	draw(seed, (uint64_t)1 << 60 | (uint64_t)i, noise[0], STEPS * EACH);
	c->n = STEPS - 2 * cut;
	for (int k = 0; k < c->n; k++) {
		struct vfm_change *to = &c->steps[k];
		double at = vfm_rng_uniform(&place, (uint64_t)(2 * (k + 2 * cut)));
		float *v = x[k + 2 * cut], norm = 0;

		for (int j = 0; j < VFM_CHANGE_COEFS; j++) {
			v[j] = (v[j] + (i != of ? 0.3F * noise[k][j] : 0)) * (mirrored && j % 2 ? -1 : 1);
			norm += v[j] * v[j];
		}
		for (int j = 0; j < VFM_CHANGE_COEFS; j++)
			to->coef[j] = (int8_t)lrintf(127 * v[j] / sqrtf(norm));
		to->size = 60;
		to->x = (uint8_t)(255 * (mirrored ? 1 - at : at));
		to->y = (uint8_t)(255 * vfm_rng_uniform(&place, (uint64_t)(2 * (k + 2 * cut) + 1)));
	}
}

/* Clip i of n; *of: the original of a copy, or i. */
static void make_clip(uint64_t seed, int64_t i, int64_t n, struct vfm_clip_hash *h, int64_t *of)
{
	float x[SLOTS + 1][VFM_CLIP_HASH_COEFS], noise[SLOTS + 1][VFM_CLIP_HASH_COEFS];
	const uint64_t odd = VFM_CLIP_HASH_ODD;
	bool copy, mirrored, cut;

	*of = original_of(seed, i, n);
	copy = *of != i;
	original(seed, *of, x);
	mirrored = copy && i % 4 == 0;
	cut = copy && i % 3 == 0;
	if (copy)
		draw(seed, (uint64_t)1 << 52 | (uint64_t)i, noise[0], (SLOTS + 1) * VFM_CLIP_HASH_COEFS);
	for (int k = 0; k < SLOTS && copy; k++)
		for (int c = 0; c < VFM_CLIP_HASH_COEFS && !is_black(x[k]); c++) {
			float fall = 1 / (1 + 0.1F * (float)c);

			/* of the background, as cropping does, and of motion */
			x[k][c] += fall * (60 * noise[SLOTS][c] + 15 * noise[k][c]);
			x[k][c] *= mirrored && odd >> c & 1 ? -1 : 1;
		}
	vfm_clip_hash_quantize(h, x + cut, SLOTS - cut);
	if (is_fixed_camera(*of))
		make_changes(seed, i, *of, mirrored, cut, &h->changes);
}

/* The picture of an original image: x [SIDE, SIDE]. */
static void draw_picture(uint64_t seed, int64_t i, float *x)
{
	float own[SIDE * SIDE], layout[SIDE * SIDE];
	const float *low = i % 10 == 5 ? layout : own;
	struct vfm_image_detail d = {.box = {0, VFM_IMAGE_UNIT, 0, VFM_IMAGE_UNIT}, .mean = 110};
	static _Thread_local struct vfm_image_view view;
	int n = 0;

	draw(seed, (uint64_t)1 << 57 | (uint64_t)i, own, SIDE * SIDE);
	if (low == layout)
		draw(seed, (uint64_t)1 << 58 | (uint64_t)(i / 10 % LAYOUTS), layout, SIDE * SIDE);
	for (int u = 0; u < SIDE; u++)
		for (int v = 0; v < SIDE; v++) {
			int square = u * u + v * v;
			float c;

			if (!square || square >= VFM_IMAGE_CUTOFF)
				continue;
			c = 900 / sqrtf((float)square) * (square < 16 ? low : own)[u * SIDE + v];
			d.coef[n++] = vfm_image_detail_quantize(c);
		}
	vfm_image_view_of(&view, &d);
	memcpy(x, view.fine, sizeof(view.fine));
}

static float pixel_at(const float *x, float row, float col)
{
	int j = (int)row, i = (int)col;
	float q = row - (float)j, p = col - (float)i;

	return (1 - q) * ((1 - p) * x[j * SIDE + i] + p * x[j * SIDE + i + 1]) +
		q * ((1 - p) * x[(j + 1) * SIDE + i] + p * x[(j + 1) * SIDE + i + 1]);
}

/* As make_clip, an image. */
static void make_image(uint64_t seed, int64_t i, int64_t n, struct vfm_clip_hash *h, int64_t *of)
{
	float x[SIDE * SIDE], noise[SIDE * SIDE], part, gain, row, col;
	uint16_t q[SIDE * SIDE];
	bool copy, mirrored;

	*of = original_of(seed, i, n);
	copy = *of != i;
	draw_picture(seed, *of, x);
	draw(seed, (uint64_t)1 << 52 | (uint64_t)i, noise, SIDE * SIDE);
	mirrored = copy && i % 4 == 0;
	part = copy && i % 3 == 0 ? 0.93F : 1;
	gain = copy ? 0.8F + 0.1F * (float)(i % 5) : 1;
	row = (1 - part) * (float)(i % 7) / 6 * (SIDE - 1.001F);
	col = (1 - part) * (float)(i % 11) / 10 * (SIDE - 1.001F);
	for (int j = 0; j < SIDE; j++)
		for (int k = 0; k < SIDE; k++) {
			float at = part * (float)(mirrored ? SIDE - 1 - k : k) * 0.9999F + col;
			float v = pixel_at(x, part * (float)j * 0.9999F + row, at) * gain;

			v += copy ? 2 * noise[j * SIDE + k] : 0;
			q[j * SIDE + k] = (uint16_t)(256 * fminf(255, fmaxf(0, v)));
		}
	vfm_clip_hash_of(h, q, 1, SIDE, true);
}

static int measure_clips(int64_t n, uint64_t seed, make_hash *make)
{
	const struct vfm_clip_groups_opts o = {.threshold = VFM_CLIP_THRESHOLD};
	int64_t planted = 0, found = 0, wrong = 0, of;
	struct vfm_clip_set set;
	struct vfm_clip_groups g;
	struct vfm_clip_hash h;
	struct vfm_err err = {0};
	double t[3], cpu[3];
	char name[32];

	t[0] = vfm_now(), cpu[0] = cpu_s();
	must(vfm_clip_set_open(&set, &err), &err);
	for (int64_t i = 0; i < n; i++) {
		make(seed, i, n, &h, &of);
		snprintf(name, sizeof(name), "%016llx", (unsigned long long)i);
		must(vfm_clip_set_add(&set, name, of == i ? 2 : 1, &h, &err), &err);
	}
	must(vfm_clip_set_flush(&set, &err), &err);
	t[1] = vfm_now(), cpu[1] = cpu_s();
	must(vfm_clip_groups_find(&g, &set, &o, &err), &err);
	t[2] = vfm_now(), cpu[2] = cpu_s();
	for (int64_t i = 0; i < n; i++) {
		const struct vfm_duplicate *d = &g.groups.of[g.rank[i]];
		bool member = vfm_groups_is_member(&g.groups, g.rank[i]);

		of = original_of(seed, i, n);
		planted += of != i;
		found += of != i && member && g.clip[d->of] == of;
		wrong += member && g.clip[d->of] != of;
	}
	printf("%lld clips: made in %.1f s (CPU %.1f s), grouped in %.1f s (CPU %.1f s), peak %.2f GiB; planted %lld, "
	       "found "
	       "%.4f, other pairs %lld; "
	       "compared %lld, cut off %lld\n",
		(long long)n, t[1] - t[0], cpu[1] - cpu[0], t[2] - t[1], cpu[2] - cpu[1], peak_gib(),
		(long long)planted, (double)found / (double)planted, (long long)wrong, (long long)g.stats.compared,
		(long long)g.stats.cut_off);
	vfm_clip_groups_release(&g);
	vfm_clip_set_close(&set);
	return 0;
}

static int write_records(int64_t n, uint64_t seed, make_hash *make)
{
	struct vfm_clip_hash h;
	int64_t of;

	for (int64_t i = 0; i < n; i++) {
		char *text;

		make(seed, i, n, &h, &of);
		text = vfm_clip_hash_text(&h);
		printf("{\"v\":1,\"id\":\"%016llx\",\"src\":\"/data/videos/"
		       "%016llx.mp4\",\"kind\":\"video\",\"width\":%d,"
		       "\"height\":%d,\"fps\":29.97,\"frames\":120,\"duration\":4.004,\"codec\":\"h264\",\"start_"
		       "frame\":%lld,"
		       "\"end_frame\":%lld,\"score\":{\"motion\":0.37,\"sharpness\":112.5,\"text_ratio\":0.012},"
		       "\"hash\":"
		       "{\"clip\":\"%s\",\"slots\":%d,\"flat_slots\":%d}}\n",
			(unsigned long long)i * 0x9E3779B97F4A7C15ULL, (unsigned long long)i / 10,
			of == i ? 1920 : 1280, of == i ? 1080 : 720, (long long)(i % 10 * 120),
			(long long)(i % 10 * 120 + 120), text, (int)h.slots,
			(int)h.slots - vfm_clip_hash_informative(&h));
		free(text);
	}
	return fflush(stdout) != 0;
}

/* Sets *x to the number in a record behind `key`, 16 hexadecimal digits. */
static bool find_number(const char *line, const char *key, uint64_t *x)
{
	const char *at = strstr(line, key);
	unsigned long long v;

	if (!at || sscanf(at + strlen(key), "%16llx", &v) != 1)
		return false;
	*x = v;
	return true;
}

static int check_records(int64_t n, uint64_t seed)
{
	const uint64_t inverse = 0xF1DE83E19937733DULL; /* of 0x9E3779B97F4A7C15 modulo 2^64 */
	int64_t planted = 0, found = 0, wrong = 0, seen = 0;
	char *line = NULL;
	size_t cap = 0;

	while (getline(&line, &cap, stdin) > 0) {
		uint64_t id, to = 0, of;
		bool member;

		if (!find_number(line, "\"id\":\"", &id))
			continue;
		id *= inverse;
		if (id >= (uint64_t)n)
			continue;
		seen++;
		member = find_number(line, "\"dedup\":{\"of\":\"", &to);
		of = (uint64_t)original_of(seed, (int64_t)id, n);
		planted += of != id;
		found += of != id && member && to * inverse == of;
		wrong += member && to * inverse != of;
	}
	free(line);
	printf("%lld records; planted %lld, found %.4f, other pairs %lld\n", (long long)seen, (long long)planted,
		(double)found / (double)(planted ? planted : 1), (long long)wrong);
	return seen != n;
}

struct making {
	float *x;
	int64_t n, dim;
	uint64_t seed;
};

static void make_rows(int64_t i0, int64_t i1, void *ctx)
{
	const struct making *m = ctx;
	float *topic = vfm_malloc((size_t)m->dim * sizeof(*topic)), *own = vfm_malloc((size_t)m->dim * sizeof(*own));

	for (int64_t i = i0; i < i1; i++) {
		const struct vfm_rng r = vfm_rng_stream(m->seed, 3, (uint64_t)i, VFM_RNG_TEST);
		int64_t originals = m->n * 9 / 10;
		int64_t of = i < originals ? i : (int64_t)vfm_rng_below(&r, 0, (uint64_t)originals);
		const struct vfm_rng p = vfm_rng_stream(m->seed, 4, (uint64_t)of, VFM_RNG_TEST);
		/* the noise of a copy: a cosine of 0.95 to 1 */
		float noise = (float)(0.32 * vfm_rng_uniform(&r, 4));

		draw(m->seed, (uint64_t)1 << 53 | vfm_rng_below(&p, 0, TOPICS), topic, (int)m->dim);
		draw(m->seed, (uint64_t)1 << 54 | (uint64_t)of, own, (int)m->dim);
		for (int64_t k = 0; k < m->dim; k++)
			m->x[i * m->dim + k] = topic[k] + 0.8F * own[k];
		if (of == i)
			continue;
		draw(m->seed, (uint64_t)1 << 55 | (uint64_t)i, own, (int)m->dim);
		for (int64_t k = 0; k < m->dim; k++)
			m->x[i * m->dim + k] += 1.28F * noise * own[k];
	}
	free(topic);
	free(own);
}

/* Of some rows, compares the result with that of comparison with all rows. */
static void check_rows(const struct vfm_features *f, const struct vfm_semantic *g, double threshold)
{
	int64_t with = 0, found = 0, n, samples = f->rows < 500 ? f->rows : 500;
	float *x = vfm_malloc((size_t)f->dim * sizeof(*x));
	struct vfm_near_row near[64];
	struct vfm_err err;
	double t = vfm_now();

	for (int64_t i = 0; i < samples; i++) {
		int64_t row = f->rows - 1 - i * (f->rows / samples / 10);
		bool above = false;

		vfm_features_read_f32(f, row, x);
		must(vfm_nearest_find(f, x, 64, near, &n, &err), &err);
		for (int64_t k = 0; k < n; k++)
			above |= near[k].row != row && near[k].similarity >= 1 - threshold &&
				g->rank[near[k].row] < g->rank[row] &&
				!vfm_groups_is_member(&g->groups, g->rank[near[k].row]);
		with += above;
		found += above && vfm_groups_is_member(&g->groups, g->rank[row]);
	}
	printf("brute force: %lld of %lld rows resemble a kept row before them, of these %.4f were dropped; %.3f s a "
	       "query\n",
		(long long)with, (long long)samples, (double)found / (double)(with ? with : 1),
		(vfm_now() - t) / (double)samples);
	free(x);
}

static int measure_vectors(int64_t n, int64_t dim, uint64_t seed, int64_t only)
{
	struct making m = {vfm_malloc((size_t)(n * dim) * sizeof(float)), n, dim, seed};
	struct vfm_features f = {.rows = n, .dim = dim, .type = VFM_NPY_F32, .data = (const uint8_t *)m.x};
	double *quality = vfm_calloc((size_t)n, sizeof(*quality)), t, cpu;
	struct vfm_err err = {0};
	struct vfm_semantic g;

	vfm_par_for(n, 1024, make_rows, &m);
	printf("%lld vectors of %lld in memory: %.2f GiB\n", (long long)n, (long long)dim, peak_gib());
	for (int64_t probe = only ? only : 1; probe <= (only ? only : 3); probe++) {
		const struct vfm_semantic_opts o = {.threshold = VFM_SEMANTIC_THRESHOLD, .probe = probe};
		int64_t members = 0;

		t = vfm_now(), cpu = cpu_s();
		must(vfm_semantic_find(&g, &f, quality, &o, &err), &err);
		cpu = cpu_s() - cpu;
		for (int64_t i = 0; i < n; i++)
			members += vfm_groups_is_member(&g.groups, i);
		printf("probe %lld: %.1f s, CPU %.1f s (k-means %.1f, assignment %.1f, comparison %.1f), %lld "
		       "clusters, largest "
		       "%lld, "
		       "%lld duplicates, peak %.2f GiB\n",
			(long long)probe, vfm_now() - t, cpu, g.stats.seconds[0], g.stats.seconds[1],
			g.stats.seconds[2], (long long)g.stats.clusters, (long long)g.stats.largest, (long long)members,
			peak_gib());
		fflush(stdout);
		check_rows(&f, &g, o.threshold);
		vfm_semantic_release(&g);
	}
	free(quality);
	free(m.x);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "clips"))
		return measure_clips(atoll(argv[2]), strtoull(argv[3], NULL, 10), make_clip);
	if (argc == 4 && !strcmp(argv[1], "images"))
		return measure_clips(atoll(argv[2]), strtoull(argv[3], NULL, 10), make_image);
	if (argc == 4 && !strcmp(argv[1], "records"))
		return write_records(atoll(argv[2]), strtoull(argv[3], NULL, 10), make_clip);
	if (argc == 4 && !strcmp(argv[1], "image-records"))
		return write_records(atoll(argv[2]), strtoull(argv[3], NULL, 10), make_image);
	if (argc == 4 && !strcmp(argv[1], "check"))
		return check_records(atoll(argv[2]), strtoull(argv[3], NULL, 10));
	if ((argc == 5 || argc == 6) && !strcmp(argv[1], "vectors"))
		return measure_vectors(
			atoll(argv[2]), atoll(argv[3]), strtoull(argv[4], NULL, 10), argc == 6 ? atoll(argv[5]) : 0);
	fprintf(stderr,
		"usage: dedup_scale clips|images|records|image-records|check N SEED | vectors ROWS DIM SEED [PROBE]\n");
	return 2;
}
