/* stats - the contents of records: a line for each key, histograms, reasons of drops. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/near.h"
#include "base/utf8.h"
#include "curate.h"
#include "data/record/histogram.h"
#include "data/record/reasons.h"
#include "io/json.h"
#include "io/opt.h"
#include "io/table.h"

enum {
	BINS = 20,
	COLUMNS = 100,
	KEY_COLUMNS = 24, /* of a table */
	VALUE_COLUMNS = 52,
	WORD_COLUMNS = 22, /* of --histogram */
	BAR = 60,
};

static int stats_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker, (void)err;
	vfm_histogram_add(ctx, rec);
	return 0;
}

static int64_t read_count(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

/* ---- cells ---- */

/* Truncates a text to a number of characters, the last one an ellipsis.  The caller frees the result. */
static char *cut_text(const char *text, int columns)
{
	return vfm_utf8_width(text, strlen(text)) <= columns
		? vfm_strdup(text)
		: vfm_strfmt("%.*s\u2026", (int)vfm_utf8_cut(text, columns - 1), text);
}

static void set_text_cell(struct vfm_table *t, const char *column, const char *text, int columns)
{
	char *cut = cut_text(text, columns);

	vfm_table_str(t, column, cut);
	free(cut);
}

/* Integers as they are, other numbers in four digits. */
static void set_value_cell(struct vfm_table *t, const char *column, double x)
{
	if (fabs(x) < 1e7 && x == rint(x))
		vfm_table_i64(t, column, (int64_t)x);
	else
		vfm_table_f64(t, column, x);
}

static int64_t find_most(const json_t *bins)
{
	int64_t most = 1, n;

	for (size_t i = 0; i < json_array_size(bins); i++) {
		n = json_integer_value(json_array_get(bins, i));
		most = n > most ? n : most;
	}
	return most;
}

/* One block character for each bin, by its share of the largest. */
static void set_sparkline(struct vfm_table *t, const char *column, const json_t *bins)
{
	static const char *const blocks[] = {
		" ", "\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
	int64_t most = find_most(bins);
	struct vfm_buf b = {0};

	for (size_t i = 0; i < json_array_size(bins); i++)
		vfm_buf_adds(&b, blocks[(json_integer_value(json_array_get(bins, i)) * 8 + most - 1) / most]);
	vfm_table_str(t, column, b.data);
	vfm_buf_release(&b);
}

static void begin_key_row(struct vfm_table *t, const char *key, int64_t n, int64_t missing)
{
	vfm_table_row(t);
	set_text_cell(t, "key", key, KEY_COLUMNS);
	vfm_table_i64(t, "n", n);
	vfm_table_i64(t, "missing", missing);
}

/* ---- tables ---- */

static int64_t sum_word_counts(const struct vfm_word_count *list, size_t n)
{
	int64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += list[i].n;
	return sum;
}

static double read_seconds(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* The reasons with their records and, if any record has a duration, their seconds. */
static void print_reasons(const json_t *counts, const json_t *seconds)
{
	bool timed = read_seconds(seconds, "dropped") + read_seconds(seconds, "failed") > 0;
	size_t n;
	struct vfm_word_count *list = vfm_word_counts_sort(counts, &n);

	for (size_t i = 0; i < n; i++) {
		char *text = cut_text(list[i].word, COLUMNS - (timed ? 26 : 12)), duration[VFM_DURATION_TEXT];
		double s = read_seconds(json_object_get(seconds, "reasons"), list[i].word);

		printf("%10lld", (long long)list[i].n);
		if (timed)
			printf("  %12s", s > 0 ? vfm_duration_text(duration, s) : "");
		printf("  %s\n", text);
		free(text);
	}
	free(list);
}

/* "N WORD" and, if they have a duration, "(S s)". */
static void print_count(const char *before, int64_t n, const char *word, double s)
{
	char duration[VFM_DURATION_TEXT];

	printf("%s%lld %s", before, (long long)n, word);
	if (s > 0)
		printf(" (%s)", vfm_duration_text(duration, s));
}

static int print_numbers(const json_t *numbers, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"key", "key", 0}, {"n", "n", 0}, {"missing", "missing", 0},
		{"min", "min", -4}, {"median", "median", -4}, {"max", "max", -4}, {"bins", "from min to max", 0}, {0}};
	struct vfm_table *t = vfm_table_new(columns);
	const char *key;
	json_t *x;
	int rc = 0;

	json_object_foreach((json_t *)(uintptr_t)numbers, key, x)
	{
		double min = json_number_value(json_object_get(x, "min")),
		       max = json_number_value(json_object_get(x, "max"));

		if (min == max)
			continue;
		begin_key_row(t, key, read_count(x, "count"), read_count(x, "missing"));
		set_value_cell(t, "min", min);
		set_value_cell(t, "median", json_number_value(json_object_get(x, "p50")));
		set_value_cell(t, "max", max);
		set_sparkline(t, "bins", json_object_get(x, "bins"));
	}
	if (vfm_table_rows(t)) {
		printf("\n");
		rc = vfm_table_print(t, &(struct vfm_table_opts){.format = VFM_TABLE_TEXT}, stdout, err);
	}
	vfm_table_free(t);
	return rc;
}

/* A row of a key with words; o: the whole object. */
static void add_words(struct vfm_table *t, const json_t *o, const char *key, const json_t *counts)
{
	size_t n;
	struct vfm_word_count *list = vfm_word_counts_sort(counts, &n);
	int64_t good = read_count(o, "records") - read_count(o, "dropped") - read_count(o, "failed");
	int64_t sum = sum_word_counts(list, n);
	struct vfm_buf b = {0};

	for (size_t i = 0; i < n; i++)
		vfm_buf_addf(&b, n == 1 ? "%s" : i ? ", %s %lld" : "%s %lld", list[i].word, (long long)list[i].n);
	if (n) {
		begin_key_row(t, key, sum, good - sum);
		vfm_table_i64(t, "distinct", (int64_t)n);
		set_text_cell(t, "values", b.data, VALUE_COLUMNS);
	}
	vfm_buf_release(&b);
	free(list);
}

/* Keys with words, and numbers that are the same in all records. */
static int print_words(const json_t *o, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"key", "key", 0}, {"n", "n", 0}, {"missing", "missing", 0},
		{"distinct", "distinct", 0}, {"values", "values, the most frequent first", 0}, {0}};
	struct vfm_table *t = vfm_table_new(columns);
	const char *key;
	char text[32];
	json_t *x;
	int rc = 0;

	json_object_foreach(json_object_get(o, "words"), key, x)
	{
		add_words(t, o, key, x);
	}
	json_object_foreach(json_object_get(o, "numbers"), key, x)
	{
		double min = json_number_value(json_object_get(x, "min"));

		if (min != json_number_value(json_object_get(x, "max")))
			continue;
		begin_key_row(t, key, read_count(x, "count"), read_count(x, "missing"));
		vfm_table_i64(t, "distinct", 1);
		snprintf(text, sizeof(text), "%.6g", min);
		vfm_table_str(t, "values", text);
	}
	if (vfm_table_rows(t)) {
		printf("\n");
		rc = vfm_table_print(t, &(struct vfm_table_opts){.format = VFM_TABLE_TEXT}, stdout, err);
	}
	vfm_table_free(t);
	return rc;
}

static int print_stats(const json_t *o, struct vfm_err *err)
{
	int64_t records = read_count(o, "records"), dropped = read_count(o, "dropped"),
		failed = read_count(o, "failed");
	const json_t *seconds = json_object_get(o, "seconds");

	printf("%lld records:", (long long)records);
	print_count(" ", records - dropped - failed, "kept", read_seconds(seconds, "kept"));
	print_count(", ", dropped, "dropped", read_seconds(seconds, "dropped"));
	print_count(", ", failed, "failed", read_seconds(seconds, "failed"));
	printf("\n");
	print_reasons(json_object_get(o, "reasons"), seconds);
	TRY(print_numbers(json_object_get(o, "numbers"), err));
	return print_words(o, err);
}

/* ---- --histogram ---- */

static void print_bar(int64_t n, int64_t most)
{
	static const char *const parts[] = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
	int64_t eighths = (n * BAR * 8 + most - 1) / most;

	printf("%10lld%s", (long long)n, n ? "  " : "");
	for (int64_t i = 0; i < eighths / 8; i++)
		printf("\u2588");
	printf("%s\n", parts[eighths % 8]);
}

static void print_number_bars(const char *key, const json_t *x)
{
	static const char *const facts[] = {"min", "p5", "p50", "mean", "p95", "max"};
	static const char *const names[] = {"min", "5 %", "median", "mean", "95 %", "max"};
	const json_t *bins = json_object_get(x, "bins");
	double min = json_number_value(json_object_get(x, "min")), max = json_number_value(json_object_get(x, "max"));
	int64_t most = find_most(bins);

	printf("%s: n %lld, missing %lld", key, (long long)read_count(x, "count"), (long long)read_count(x, "missing"));
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
		printf(", %s %.4g", names[i], json_number_value(json_object_get(x, facts[i])));
	printf("\n");
	for (int i = 0; max > min && i < BINS; i++) {
		printf("  %9.4g to %-9.4g", min + (max - min) * i / BINS, min + (max - min) * (i + 1) / BINS);
		print_bar(json_integer_value(json_array_get(bins, (size_t)i)), most);
	}
}

static void print_word_bars(const char *key, const json_t *counts)
{
	size_t n;
	struct vfm_word_count *list = vfm_word_counts_sort(counts, &n);

	printf("%s: n %lld, distinct %zu\n", key, (long long)sum_word_counts(list, n), n);
	for (size_t i = 0; i < n; i++) {
		char *text = cut_text(list[i].word, WORD_COLUMNS);

		printf("  %s%*s", text, WORD_COLUMNS - vfm_utf8_width(text, strlen(text)), "");
		print_bar(list[i].n, list[0].n);
		free(text);
	}
	free(list);
}

/* No record has the key. */
static int refuse_histogram_key(const json_t *o, const char *key, struct vfm_err *err)
{
	struct vfm_strlist names = {0};
	const char *name, *near;
	json_t *v;

	json_object_foreach(json_object_get(o, "numbers"), name, v)
	{
		vfm_strlist_add(&names, name);
		if (!strncmp(name, "score.", 6))
			vfm_strlist_add(&names, name + 6);
	}
	json_object_foreach(json_object_get(o, "words"), name, v)
	{
		if (json_object_size(v))
			vfm_strlist_add(&names, name);
	}
	vfm_strlist_add(&names, NULL);
	near = vfm_near(key, names.v);
	vfm_strlist_release(&names);
	if (near)
		return vfm_fail(
			err, VFM_EUSAGE, "--histogram: no record has the key '%s' (did you mean '%s'?)", key, near);
	return vfm_fail(
		err, VFM_EUSAGE, "--histogram: no record has the key '%s' (without --histogram: all keys)", key);
}

/* Looks for a key as it is, and for a score by its own name. */
static int print_bars(const json_t *o, const char *key, struct vfm_err *err)
{
	const json_t *numbers = json_object_get(o, "numbers"),
		     *words = json_object_get(json_object_get(o, "words"), key);
	char *score = vfm_strfmt("score.%s", key);
	const char *name = json_object_get(numbers, key) || !json_object_get(numbers, score) ? key : score;
	int rc = 0;

	if (json_object_get(numbers, name))
		print_number_bars(name, json_object_get(numbers, name));
	else if (json_object_size(words))
		print_word_bars(key, words);
	else
		rc = refuse_histogram_key(o, key, err);
	free(score);
	return rc;
}

static int print_results(const json_t *o, bool json, const struct vfm_strlist *keys, struct vfm_err *err)
{
	if (json)
		return vfm_jsonl_write(stdout, o, err) < 0 ? VFM_EENV : 0;
	if (!keys->n)
		return print_stats(o, err);
	for (int i = 0; i < keys->n; i++) {
		printf("%s", i ? "\n" : "");
		TRY(print_bars(o, keys->v[i], err));
	}
	return 0;
}

int curate_stats(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {
		.name = "stats", .fn = stats_record, .serial = true, .silent = true, .sees_all = true};
	struct vfm_histogram *histogram;
	struct vfm_strlist keys = {0};
	int json = 0, end;
	json_t *o;
	struct vfm_opt opts[] = {
		{VFM_OPT_LIST, 0, "histogram", "KEY", "draw the histogram of a key instead; may be repeated", &keys},
		{VFM_OPT_NAME, 0, "format", "text|json", "how to print them (default text)", &json},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate stats",
		.synopsis = "[OPTION ...] [FILE ...]",
		.summary = "summarize the keys of records and the reasons of drops",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc == 0 && json && keys.n)
		rc = vfm_fail(
			err, VFM_EUSAGE, "--histogram: not with --format json, which has the bins of all numbers");
	if (rc != 0)
		goto out;
	stage.ctx = histogram = vfm_histogram_new();
	rc = vfm_stage_run(&stage, NULL, err);
	if (rc == 0 || rc == VFM_EINPUT) {
		o = vfm_histogram_object(histogram, BINS);
		end = print_results(o, json, &keys, err);
		rc = end < 0 ? end : rc;
		json_decref(o);
	}
	vfm_histogram_free(histogram);
out:
	vfm_strlist_release(&keys);
	return rc;
}
