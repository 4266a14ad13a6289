/* vfm-bench eval - reconstructions, feature sets and similarities. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/stats.h"
#include "bench.h"
#include "data/eval/frechet.h"
#include "data/eval/pairs.h"
#include "data/record/features.h"
#include "io/file.h"
#include "io/json.h"
#include "io/opt.h"

enum { NOT_GIVEN = -1 };

static struct {
	bool reconstruction, frechet, cosine;
	const char *size, *key, *text_key, *each;
	struct vfm_table_opts table;
	int64_t frames, resamples, seed, threads;
	double confidence;
} o = {.frames = NOT_GIVEN, .resamples = NOT_GIVEN, .seed = NOT_GIVEN, .confidence = NOT_GIVEN};

static const struct vfm_opt opts[] = {
	{VFM_OPT_FLAG, 0, "reconstruction", NULL, "PSNR and SSIM of reconstructions", &o.reconstruction},
	{VFM_OPT_FLAG, 0, "frechet", NULL, "Frechet distance between two sets of features", &o.frechet},
	{VFM_OPT_FLAG, 0, "cosine", NULL, "cosine similarity of clips and captions", &o.cosine},
	{VFM_OPT_STR, 0, "size", "WxH", "originals were scaled and cropped to this size", &o.size},
	{VFM_OPT_INT, 0, "frames", "N", "compare the first N frames of each clip", &o.frames, 1, HUGE_VAL},
	{VFM_OPT_STR, 0, "key", "KEY", "key of a record that names its file (reconstruction, embedding)", &o.key},
	{VFM_OPT_STR, 0, "text-key", "KEY", "key that names the vector of the caption (text_embedding)", &o.text_key},
	{VFM_OPT_STR, 0, "each", "FILE", "write a record for each clip to FILE", &o.each},
	{VFM_OPT_INT, 0, "resamples", "N", "resamples for intervals; 0: none", &o.resamples, 0, 10000000},
	{VFM_OPT_NUM, 0, "confidence", "X", "level of the intervals (0.95)", &o.confidence},
	{VFM_OPT_INT, 0, "seed", "N", "seed of the resamples (0)", &o.seed, 0, HUGE_VAL},
	{VFM_OPT_INT, 0, "threads", "N", "compute threads", &o.threads, 1, 1024},
	VFM_TABLE_OPTS(&o.table),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench eval",
	.synopsis = "[OPTION ...] --reconstruction RECORDS | ORIGINALS RECONSTRUCTIONS\n"
		    "[OPTION ...] --frechet FEATURES FEATURES\n"
		    "[OPTION ...] --cosine RECORDS | VECTORS VECTORS",
	.summary = "evaluate reconstructions and samples",
	.opts = opts,
};

/* ---- options ---- */

/* An option that the chosen evaluation does not use is refused. */
static int refuse_unused(struct vfm_err *err)
{
	const bool pairs = o.reconstruction;
	const struct {
		const char *name;
		bool given, used;
	} list[] = {
		{"--size", o.size, pairs},
		{"--frames", o.frames != NOT_GIVEN, pairs},
		{"--text-key", o.text_key, o.cosine},
		{"--each", o.each, pairs || o.cosine},
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
		if (list[i].given && !list[i].used)
			return vfm_fail(err, VFM_EUSAGE, "%s: %s does not use it", list[i].name,
				o.reconstruction    ? "--reconstruction"
					: o.frechet ? "--frechet"
						    : "--cosine");
	return 0;
}

static int check_eval_options(struct vfm_err *err)
{
	if (o.reconstruction + o.frechet + o.cosine != 1)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --reconstruction, --frechet, --cosine");
	TRY(refuse_unused(err));
	if (o.confidence != NOT_GIVEN && !(o.confidence > 0 && o.confidence < 1))
		return vfm_fail(
			err, VFM_EUSAGE, "--confidence: expected a number between 0 and 1, got %g", o.confidence);
	if (o.threads)
		vfm_par_set_threads((int)o.threads);
	return 0;
}

static int parse_eval_size(struct vfm_pair_opts *p, struct vfm_err *err)
{
	int n = 0;

	if (!o.size)
		return 0;
	if (sscanf(o.size, "%5dx%5d%n", &p->width, &p->height, &n) != 2 || o.size[n] || p->width < 1 || p->height < 1 ||
		p->width > 16384 || p->height > 16384)
		return vfm_fail(err, VFM_EUSAGE, "--size: expected WIDTHxHEIGHT up to 16384, got '%s'", o.size);
	return 0;
}

static struct vfm_bootstrap bootstrap_options(void)
{
	return (struct vfm_bootstrap){.seed = o.seed == NOT_GIVEN ? 0 : (uint64_t)o.seed,
		.resamples = o.resamples,
		.confidence = o.confidence == NOT_GIVEN ? 0.95 : o.confidence};
}

/* ---- means ---- */

/* By default 10000 resamples; with many values as many as 5e8 draws give, at least 100. */
static int64_t resamples_of_mean(int64_t n)
{
	int64_t affordable = n ? 500000000 / n : 0;

	if (o.resamples != NOT_GIVEN)
		return o.resamples;
	return affordable > 10000 ? 10000 : affordable < 100 ? 100 : affordable;
}

static struct vfm_table *new_means_table(void)
{
	static const struct vfm_table_column columns[] = {{"metric", "metric", 0}, {"value", "mean", -6},
		{"low", "low", -6}, {"high", "high", -6}, {"n", "clips", 0},
		{"resamples", "resamples", 0, VFM_COLUMN_DETAIL}, {"kind", "kind", 0, VFM_COLUMN_DETAIL}, {0}};

	return vfm_table_new(columns);
}

/* A row for the mean of x [n], n >= 1. */
static void add_mean(struct vfm_table *t, const char *metric, const double *x, int64_t n)
{
	struct vfm_bootstrap boot = bootstrap_options();
	struct vfm_interval i;
	double sum = 0;

	boot.resamples = resamples_of_mean(n);
	i = vfm_bootstrap_mean(x, n, &boot);
	for (int64_t k = 0; k < n; k++)
		sum += x[k];
	vfm_table_row(t);
	vfm_table_str(t, "metric", metric);
	vfm_table_f64(t, "value", sum / (double)n);
	vfm_table_f64(t, "low", i.low);
	vfm_table_f64(t, "high", i.high);
	vfm_table_i64(t, "n", n);
	vfm_table_i64(t, "resamples", i.resamples);
	vfm_table_str(t, "kind", "measured");
}

static void note_intervals(struct vfm_table *t, const char *method)
{
	struct vfm_bootstrap boot = bootstrap_options();

	vfm_table_note(t, "low, high: %g %% interval, bootstrap (%s), seed %llu", 100 * boot.confidence, method,
		(unsigned long long)boot.seed);
}

static void note_left_out(struct vfm_table *t, int64_t n)
{
	if (n)
		vfm_table_note(t, "%lld records with 'error' or 'drop' were left out", (long long)n);
}

/* Prints and frees the table. */
static int end_table(struct vfm_table *t, struct vfm_err *err)
{
	int rc;

	bench_note_machine(t, vfm_par_threads(), NULL, NULL);
	rc = vfm_table_print(t, &o.table, stdout, err);
	vfm_table_free(t);
	return rc;
}

/* --each: `fill` returns the record of clip i. */
static int write_each(int64_t n, json_t *(*fill)(const void *ctx, int64_t i), const void *ctx, struct vfm_err *err)
{
	struct vfm_atomic a;
	int rc = 0;

	if (!o.each)
		return 0;
	TRY(vfm_atomic_open(&a, o.each, err));
	for (int64_t i = 0; i < n && rc >= 0; i++) {
		json_t *rec = fill(ctx, i);

		rc = vfm_jsonl_write(a.f, rec, err);
		json_decref(rec);
	}
	if (rc >= 0)
		return vfm_atomic_commit(&a, err);
	vfm_atomic_abort(&a);
	return rc;
}

/* ---- --reconstruction ---- */

struct reconstructions {
	struct vfm_pairs pairs;
	struct vfm_pair_quality *q; /* [pairs.n] */
	double *x;                  /* [pairs.n] */
};

static json_t *record_of_pair(const void *ctx, int64_t i)
{
	const struct reconstructions *r = ctx;
	const struct vfm_pair_quality *q = &r->q[i];

	return json_pack("{s:i,s:s,s:I,s:i,s:i,s:o,s:o,s:o}", "v", 1, "id", r->pairs.v[i].name, "frames",
		(json_int_t)q->frames, "width", q->width, "height", q->height, "mse", vfm_json_real(q->mse), "psnr",
		vfm_json_real(q->psnr), "ssim", vfm_json_real(q->ssim));
}

static int compare_pairs(struct reconstructions *r, struct vfm_err *err)
{
	struct vfm_pair_opts po = {.frames = o.frames == NOT_GIVEN ? 0 : o.frames, .threads = vfm_par_threads()};
	struct vfm_progress p;
	int rc = 0;

	TRY(parse_eval_size(&po, err));
	r->q = vfm_calloc(r->pairs.n, sizeof(*r->q));
	r->x = vfm_calloc(r->pairs.n, sizeof(*r->x));
	vfm_progress_start(&p, "clips", (int64_t)r->pairs.n);
	for (size_t i = 0; i < r->pairs.n && rc == 0; i++) {
		rc = vfm_pair_compare(&r->q[i], &r->pairs.v[i], &po, err);
		vfm_progress_step(&p, 1);
	}
	vfm_progress_end(&p);
	return rc;
}

static int print_reconstructions(struct reconstructions *r, struct vfm_err *err)
{
	struct vfm_table *t = new_means_table();
	int64_t n = (int64_t)r->pairs.n, equal = 0;

	for (int64_t i = 0; i < n; i++) {
		r->x[i] = r->q[i].psnr;
		equal += isinf(r->x[i]);
	}
	add_mean(t, "psnr", r->x, n);
	for (int64_t i = 0; i < n; i++)
		r->x[i] = r->q[i].ssim;
	add_mean(t, "ssim", r->x, n);
	for (int64_t i = 0; i < n; i++)
		r->x[i] = r->q[i].mse;
	add_mean(t, "mse", r->x, n);
	vfm_table_note(t,
		"psnr: dB, of the mean squared error (mse) of R, G, B in 8 bits over a clip; ssim: of luma, "
		"window 11 x 11, mean over frames");
	if (equal)
		vfm_table_note(t, "%lld clips equal their originals: their PSNR, and so its mean, is infinite",
			(long long)equal);
	if (r->pairs.lossy)
		vfm_table_note(t,
			"%lld reconstructions were compressed: the loss of their codec is part of these values "
			"('vfm-curate decode --codec ffv1' has none)",
			(long long)r->pairs.lossy);
	note_intervals(t, "BCa over clips");
	note_left_out(t, r->pairs.left_out);
	return end_table(t, err);
}

static int eval_reconstruction(char **operands, int n, struct vfm_err *err)
{
	struct reconstructions r = {.q = NULL};
	int rc;

	if (n == 2 && o.key)
		return vfm_fail(err, VFM_EUSAGE, "--key: for one file of RECORDS; there are two operands");
	if (n == 1)
		TRY_OUT(vfm_pairs_of_records(&r.pairs, operands[0], o.key ? o.key : "reconstruction", err));
	else if (n == 2)
		TRY_OUT(vfm_pairs_match(&r.pairs, operands[0], operands[1], err));
	else
		TRY_OUT(vfm_fail(err, VFM_EUSAGE, "expected RECORDS, or ORIGINALS and RECONSTRUCTIONS"));
	if (r.pairs.n == 0)
		TRY_OUT(vfm_fail(err, VFM_EUSAGE, "'%s' has no clips", operands[0]));
	TRY_OUT(compare_pairs(&r, err));
	TRY_OUT(write_each((int64_t)r.pairs.n, record_of_pair, &r, err));
	rc = print_reconstructions(&r, err);
out:
	vfm_pairs_release(&r.pairs);
	free(r.q);
	free(r.x);
	return rc;
}

/* ---- --frechet, --cosine ---- */

static int open_sets(
	struct vfm_features f[2], const char *const paths[2], const char *const keys[2], struct vfm_err *err)
{
	for (int s = 0; s < 2; s++)
		TRY(vfm_features_open(&f[s], paths[s], keys[s], err));
	return 0;
}

static int check_unchanged(struct vfm_features f[2], struct vfm_err *err)
{
	TRY(vfm_features_check(&f[0], err));
	return vfm_features_check(&f[1], err);
}

static void note_few_rows(struct vfm_table *t, const struct vfm_features *f)
{
	if (f->rows > f->dim)
		return;
	vfm_warn("'%s' has %lld vectors of %lld elements: its covariance is singular, and the distance much too large",
		f->name, (long long)f->rows, (long long)f->dim);
	vfm_table_note(t,
		"'%s' has no more vectors than elements: its covariance is singular, and the distance much "
		"too large",
		f->name);
}

static int print_frechet(const struct vfm_features s[2], const struct vfm_frechet *r, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"metric", "metric", 0}, {"value", "distance^2", -6},
		{"low", "low", -6}, {"high", "high", -6}, {"bias", "bias", -6}, {"n_a", "vectors 1", 0},
		{"n_b", "vectors 2", 0}, {"dim", "dim", 0}, {"resamples", "resamples", 0, VFM_COLUMN_DETAIL},
		{"kind", "kind", 0, VFM_COLUMN_DETAIL}, {0}};
	struct vfm_table *t = vfm_table_new(columns);

	vfm_table_row(t);
	vfm_table_str(t, "metric", "frechet");
	vfm_table_f64(t, "value", r->value);
	vfm_table_f64(t, "low", r->interval.low);
	vfm_table_f64(t, "high", r->interval.high);
	vfm_table_f64(t, "bias", r->bias);
	vfm_table_i64(t, "n_a", s[0].rows);
	vfm_table_i64(t, "n_b", s[1].rows);
	vfm_table_i64(t, "dim", s[0].dim);
	vfm_table_i64(t, "resamples", r->interval.resamples);
	vfm_table_str(t, "kind", "measured");
	note_few_rows(t, &s[0]);
	note_few_rows(t, &s[1]);
	if (r->interval.resamples)
		note_intervals(t, "percentiles less the bias");
	else if (o.resamples == NOT_GIVEN)
		vfm_table_note(t, "no interval: resamples of sets of this size take long; --resamples N computes it");
	note_left_out(t, s[0].left_out + s[1].left_out);
	return end_table(t, err);
}

static int eval_frechet(char **operands, int n, struct vfm_err *err)
{
	const char *key = o.key ? o.key : "embedding", *const keys[2] = {key, key};
	struct vfm_bootstrap boot = bootstrap_options();
	struct vfm_features s[2] = {{0}, {0}};
	struct vfm_frechet r;
	int rc;

	if (n != 2)
		return vfm_fail(err, VFM_EUSAGE, "expected two files of features, got %d", n);
	TRY_OUT(open_sets(s, (const char *[]){operands[0], operands[1]}, keys, err));
	TRY_OUT(vfm_frechet_of(&r, &s[0], &s[1], &boot, err));
	TRY_OUT(check_unchanged(s, err));
	rc = print_frechet(s, &r, err);
out:
	vfm_features_close(&s[0]);
	vfm_features_close(&s[1]);
	return rc;
}

struct cosines {
	const struct vfm_features *clips;
	double *x; /* [clips->rows] */
};

static json_t *record_of_cosine(const void *ctx, int64_t i)
{
	const struct cosines *c = ctx;
	json_t *id = c->clips->ids ? json_string(c->clips->ids[i]) : json_integer(i);

	return json_pack("{s:i,s:o,s:o}", "v", 1, "id", id, "cosine", vfm_json_real(c->x[i]));
}

static int print_cosine(const struct vfm_features s[2], const double *x, struct vfm_err *err)
{
	struct vfm_table *t = new_means_table();

	add_mean(t, "cosine", x, s[0].rows);
	note_intervals(t, "BCa over clips");
	note_left_out(t, s[0].left_out);
	return end_table(t, err);
}

static int eval_cosine(char **operands, int n, struct vfm_err *err)
{
	const char *key = o.key ? o.key : "embedding", *text_key = o.text_key ? o.text_key : "text_embedding";
	const char *const keys[2] = {key, n == 1 ? text_key : key};
	struct vfm_features s[2] = {{0}, {0}};
	struct cosines c = {.clips = &s[0]};
	int rc;

	if (n != 1 && n != 2)
		return vfm_fail(err, VFM_EUSAGE, "expected RECORDS, or two files of vectors");
	if (n == 2 && o.text_key)
		return vfm_fail(err, VFM_EUSAGE, "--text-key: for one file of RECORDS; there are two operands");
	if (n == 1 && !strcmp(operands[0], "-"))
		return vfm_fail(err, VFM_EUSAGE, "RECORDS are read twice: expected a file, got '-'");
	TRY_OUT(open_sets(s, (const char *[]){operands[0], operands[n - 1]}, keys, err));
	if (s[0].rows == 0)
		TRY_OUT(vfm_fail(err, VFM_EUSAGE, "'%s' has no vectors", operands[0]));
	c.x = vfm_calloc((size_t)s[0].rows, sizeof(double));
	TRY_OUT(vfm_features_cosine(&s[0], &s[1], c.x, err));
	TRY_OUT(check_unchanged(s, err));
	TRY_OUT(write_each(s[0].rows, record_of_cosine, &c, err));
	rc = print_cosine(s, c.x, err);
out:
	free(c.x);
	vfm_features_close(&s[0]);
	vfm_features_close(&s[1]);
	return rc;
}

int bench_eval(int argc, char **argv, struct vfm_err *err)
{
	char **operands = argv + 1;
	int n = 0, rc;

	TRY(rc = vfm_opt_parse(&cmd, argc, argv, &n, err));
	if (rc == VFM_OPT_DONE)
		return rc;
	TRY(check_eval_options(err));
	if (o.reconstruction)
		return eval_reconstruction(operands, n, err);
	if (o.frechet)
		return eval_frechet(operands, n, err);
	return eval_cosine(operands, n, err);
}
