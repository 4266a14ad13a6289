/* histogram.c - collects numbers, words and reasons by key, and prints them as a table or JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "base/stats.h"
#include "data/record/histogram.h"
#include "data/record/reasons.h"
#include "data/record/record.h"
#include "io/json.h"

#define MAX_KEYS   256
#define MAX_VALUES 65536
#define MAX_WORDS  64
#define N_WORDS    15 /* keys whose values are words */

struct values {
	int64_t n;
	double min, max, sum;
	double *v; /* [kept] */
	size_t kept, cap;
	bool sorted;
};

struct number {
	char *key;
	struct values good, dropped; /* of records that are kept, and of those with "drop" */
};

struct vfm_histogram {
	int64_t records, dropped, failed;
	double kept_s, dropped_s, failed_s;
	struct number numbers[MAX_KEYS];
	int n_numbers;
	json_t *words[N_WORDS]; /* word -> integer, of each of word_keys */
	struct vfm_reasons reasons;
	struct vfm_rng rng;
};

/* Keys without useful statistics: ids and bookkeeping. */
static const char *const ignored[] = {"v", "start_pts", "siblings", "transitions", "rotation"};
/* Texts of few values, and keys that are true or absent. */
static const char *const word_keys[N_WORDS] = {"kind", "container", "codec", "fps", "bucket.name", "pix_fmt", "sar",
	"color_transfer", "color_primaries", "has_audio", "vfr", "interlaced", "mirrored", "resized", "bad_times"};

struct vfm_histogram *vfm_histogram_new(void)
{
	struct vfm_histogram *t = vfm_calloc(1, sizeof(*t));

	for (int i = 0; i < N_WORDS; i++)
		t->words[i] = json_object();
	t->rng = vfm_rng_stream(0, 0, 0, VFM_RNG_SAMPLE);
	return t;
}

void vfm_histogram_free(struct vfm_histogram *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->n_numbers; i++) {
		free(t->numbers[i].key);
		free(t->numbers[i].good.v);
		free(t->numbers[i].dropped.v);
	}
	for (int i = 0; i < N_WORDS; i++)
		json_decref(t->words[i]);
	free(t);
}

static struct number *find_histogram_number(const struct vfm_histogram *t, const char *name)
{
	for (int i = 0; i < t->n_numbers; i++)
		if (!strcmp(t->numbers[i].key, name))
			return (struct number *)(uintptr_t)&t->numbers[i];
	return NULL;
}

static struct number *number_of(struct vfm_histogram *t, const char *prefix, const char *key)
{
	char name[160];
	struct number *x;

	snprintf(name, sizeof(name), "%s%s", prefix, key);
	x = find_histogram_number(t, name);
	if (x || t->n_numbers == MAX_KEYS)
		return x;
	x = &t->numbers[t->n_numbers++];
	*x = (struct number){.key = vfm_strdup(name)};
	x->good.min = x->dropped.min = INFINITY;
	x->good.max = x->dropped.max = -INFINITY;
	return x;
}

static void add_histogram_value(struct vfm_histogram *t, struct values *x, double v)
{
	uint64_t at;

	x->n++;
	x->sum += v;
	x->min = fmin(x->min, v);
	x->max = fmax(x->max, v);
	x->sorted = false;
	if (x->kept < MAX_VALUES) {
		vfm_grow(&x->v, &x->cap, x->kept + 1, sizeof(x->v[0]));
		x->v[x->kept++] = v;
		return;
	}
	/* Reservoir sampling (Vitter, "Random sampling with a reservoir", 1985). */
	at = vfm_rng_below(&t->rng, (uint64_t)x->n, (uint64_t)x->n);
	if (at < MAX_VALUES)
		x->v[at] = v;
}

static void count_word(json_t *counts, const char *word)
{
	json_int_t n = json_integer_value(json_object_get(counts, word));

	if (!n && json_object_size(counts) >= MAX_WORDS) {
		word = "(others)";
		n = json_integer_value(json_object_get(counts, word));
	}
	json_object_set_new(counts, word, json_integer(n + 1));
}

static json_t *json_seconds(double s)
{
	return vfm_json_real(round(s * 1e6) / 1e6);
}

/* Returns {TEXT:N}, or {TEXT:SECONDS}. */
static json_t *reasons_json(const struct vfm_histogram *t, bool seconds)
{
	json_t *all = json_object();

	for (int i = 0; i < VFM_REASONS && t->reasons.v[i].n; i++) {
		const struct vfm_reason *r = &t->reasons.v[i];

		json_object_set_new(all, r->text, seconds ? json_seconds(r->s) : json_integer(r->n));
	}
	return all;
}

static json_t *seconds_json(const struct vfm_histogram *t)
{
	return json_pack("{s:o,s:o,s:o,s:o}", "kept", json_seconds(t->kept_s), "dropped", json_seconds(t->dropped_s),
		"failed", json_seconds(t->failed_s), "reasons", reasons_json(t, true));
}

static void add_object(struct vfm_histogram *t, const json_t *obj, const char *prefix, bool is_dropped)
{
	struct number *x;
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)obj, key, v)
	{
		bool skip = false;

		for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
			skip |= !*prefix && !strcmp(key, ignored[i]);
		if (!skip && json_is_number(v) && (x = number_of(t, prefix, key)))
			add_histogram_value(t, is_dropped ? &x->dropped : &x->good, json_number_value(v));
	}
}

static void add_numbers(struct vfm_histogram *t, const json_t *rec, bool is_dropped)
{
	add_object(t, rec, "", is_dropped);
	add_object(t, json_object_get(rec, "score"), "score.", is_dropped);
}

void vfm_histogram_add(struct vfm_histogram *t, const json_t *rec)
{
	const char *error = vfm_rec_str(rec, "error", NULL), *drop = vfm_rec_str(rec, "drop", NULL);
	bool failed = json_object_get(rec, "error") != NULL;
	double s = vfm_rec_duration(rec);

	t->records++;
	if (vfm_rec_is_out(rec)) {
		*(failed ? &t->failed : &t->dropped) += 1;
		*(failed ? &t->failed_s : &t->dropped_s) += s;
		vfm_reasons_add(&t->reasons, error ? error : drop ? drop : "?", failed, 1, s);
		if (!failed)
			add_numbers(t, rec, true);
		return;
	}
	t->kept_s += s;
	for (int i = 0; i < N_WORDS; i++) {
		const json_t *v = vfm_rec_at(rec, word_keys[i]);
		const char *word = json_is_boolean(v) ? (json_is_true(v) ? "true" : "false") : json_string_value(v);

		if (word)
			count_word(t->words[i], word);
	}
	add_numbers(t, rec, false);
}

/* ---- results ---- */

static double quantile(struct values *x, double q)
{
	if (!x->sorted)
		vfm_sort(x->v, x->kept);
	x->sorted = true;
	return x->v[(size_t)lrint(q * (double)(x->kept - 1))];
}

/* Counts the values in bins from `min` to `max`. */
static void fill_bins(const struct values *x, double min, double max, int bins, int64_t *count)
{
	memset(count, 0, (size_t)bins * sizeof(count[0]));
	for (size_t i = 0; i < x->kept; i++) {
		int b = max > min ? (int)((x->v[i] - min) / (max - min) * bins) : 0;

		count[b < 0 ? 0 : b >= bins ? bins - 1 : b]++;
	}
}

static json_t *number_json(struct values *x, int64_t good, int bins)
{
	int64_t count[VFM_HISTOGRAM_BINS];
	json_t *o = json_object(), *list = json_array();

	fill_bins(x, x->min, x->max, bins, count);
	json_object_set_new(o, "count", json_integer(x->n));
	json_object_set_new(o, "missing", json_integer(good - x->n));
	json_object_set_new(o, "min", vfm_json_real(x->min));
	json_object_set_new(o, "p5", vfm_json_real(quantile(x, 0.05)));
	json_object_set_new(o, "p50", vfm_json_real(quantile(x, 0.5)));
	json_object_set_new(o, "mean", vfm_json_real(x->sum / (double)x->n));
	json_object_set_new(o, "p95", vfm_json_real(quantile(x, 0.95)));
	json_object_set_new(o, "max", vfm_json_real(x->max));
	for (int i = 0; i < bins; i++)
		json_array_append_new(list, json_integer(count[i]));
	json_object_set_new(o, "bins", list);
	return o;
}

json_t *vfm_histogram_object(struct vfm_histogram *t, int bins)
{
	json_t *o = json_object(), *words = json_object(), *numbers = json_object();
	int64_t good = t->records - t->dropped - t->failed;

	json_object_set_new(o, "v", json_integer(1));
	json_object_set_new(o, "records", json_integer(t->records));
	json_object_set_new(o, "dropped", json_integer(t->dropped));
	json_object_set_new(o, "failed", json_integer(t->failed));
	json_object_set_new(o, "reasons", reasons_json(t, false));
	json_object_set_new(o, "seconds", seconds_json(t));
	for (int i = 0; i < N_WORDS; i++)
		json_object_set(words, word_keys[i], t->words[i]);
	json_object_set_new(o, "words", words);
	for (int i = 0; i < t->n_numbers; i++)
		if (t->numbers[i].good.n)
			json_object_set_new(numbers, t->numbers[i].key, number_json(&t->numbers[i].good, good, bins));
	json_object_set_new(o, "numbers", numbers);
	return o;
}

const char *vfm_histogram_key(const struct vfm_histogram *t, int i)
{
	return i < t->n_numbers ? t->numbers[i].key : NULL;
}

bool vfm_histogram_values(const struct vfm_histogram *t, const char *key, bool dropped, struct vfm_histogram_values *x)
{
	const struct number *number = find_histogram_number(t, key);
	const struct values *v = number ? dropped ? &number->dropped : &number->good : NULL;

	if (!v || !v->n)
		return false;
	*x = (struct vfm_histogram_values){
		.count = v->n, .min = v->min, .max = v->max, .mean = v->sum / (double)v->n, .v = v->v, .n = v->kept};
	return true;
}

static int compare_word_counts(const void *a, const void *b)
{
	const struct vfm_word_count *x = a, *y = b;

	return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->word, y->word);
}

struct vfm_word_count *vfm_word_counts_sort(const json_t *counts, size_t *n)
{
	struct vfm_word_count *list = vfm_calloc(json_object_size(counts) + 1, sizeof(*list));
	const char *word;
	json_t *v;

	*n = 0;
	json_object_foreach((json_t *)(uintptr_t)counts, word, v)
	{
		list[(*n)++] = (struct vfm_word_count){word, json_integer_value(v)};
	}
	qsort(list, *n, sizeof(*list), compare_word_counts);
	return list;
}
