/* histogram.c - collects numbers, words and reasons by key, and prints them as a table or JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "base/stats.h"
#include "data/record/histogram.h"
#include "data/record/stage.h"
#include "io/json.h"

#define MAX_KEYS   256
#define MAX_VALUES 65536
#define MAX_WORDS  64
#define BAR        40
#define N_WORDS    5 /* keys whose values are words */

struct number {
	char *key;
	int64_t n;
	double min, max, sum;
	double *v;
	size_t kept, cap;
	bool sorted;
};

struct vfm_histogram {
	int64_t records, dropped, failed;
	struct number numbers[MAX_KEYS];
	int n_numbers;
	json_t *words[N_WORDS]; /* word -> integer, of each of word_keys */
	json_t *reasons;
	struct vfm_rng rng;
};

/* Keys without useful statistics: ids and bookkeeping. */
static const char *const ignored[] = {"v", "start_pts", "siblings", "rotation"};
static const char *const word_keys[N_WORDS] = {"kind", "container", "codec", "fps", "bucket.name"};

struct vfm_histogram *vfm_histogram_new(void)
{
	struct vfm_histogram *t = vfm_calloc(1, sizeof(*t));

	for (int i = 0; i < N_WORDS; i++)
		t->words[i] = json_object();
	t->reasons = json_object();
	t->rng = vfm_rng_stream(0, 0, 0, VFM_RNG_SAMPLE);
	return t;
}

void vfm_histogram_free(struct vfm_histogram *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->n_numbers; i++) {
		free(t->numbers[i].key);
		free(t->numbers[i].v);
	}
	for (int i = 0; i < N_WORDS; i++)
		json_decref(t->words[i]);
	json_decref(t->reasons);
	free(t);
}

static struct number *number_of(struct vfm_histogram *t, const char *prefix, const char *key)
{
	char name[160];

	snprintf(name, sizeof(name), "%s%s", prefix, key);
	for (int i = 0; i < t->n_numbers; i++)
		if (!strcmp(t->numbers[i].key, name))
			return &t->numbers[i];
	if (t->n_numbers == MAX_KEYS)
		return NULL;
	t->numbers[t->n_numbers] = (struct number){.key = vfm_strdup(name), .min = INFINITY, .max = -INFINITY};
	return &t->numbers[t->n_numbers++];
}

static void add_number(struct vfm_histogram *t, struct number *x, double v)
{
	uint64_t at;

	if (!x)
		return;
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

static void count_reason(struct vfm_histogram *t, const char *why)
{
	char text[256];

	vfm_reason_mask(text, sizeof(text), why, strlen(why));
	count_word(t->reasons, text);
}

static void add_object(struct vfm_histogram *t, const json_t *obj, const char *prefix)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)obj, key, v)
	{
		bool skip = false;

		for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
			skip |= !*prefix && !strcmp(key, ignored[i]);
		if (!skip && json_is_number(v))
			add_number(t, number_of(t, prefix, key), json_number_value(v));
	}
}

void vfm_histogram_add(struct vfm_histogram *t, const json_t *rec)
{
	const char *error = vfm_rec_str(rec, "error", NULL), *drop = vfm_rec_str(rec, "drop", NULL);

	t->records++;
	if (vfm_rec_is_out(rec)) {
		t->failed += json_object_get(rec, "error") != NULL;
		t->dropped += json_object_get(rec, "error") == NULL;
		count_reason(t, error ? error : drop ? drop : "?");
		return;
	}
	for (int i = 0; i < N_WORDS; i++) {
		const char *word = json_string_value(vfm_rec_at(rec, word_keys[i]));

		if (word)
			count_word(t->words[i], word);
	}
	add_object(t, rec, "");
	add_object(t, json_object_get(rec, "score"), "score.");
}

/* ---- reports ---- */

static double quantile(struct number *x, double q)
{
	if (!x->sorted)
		vfm_sort(x->v, x->kept);
	x->sorted = true;
	return x->v[(size_t)lrint(q * (double)(x->kept - 1))];
}

static void fill_bins(const struct number *x, int bins, int64_t *count)
{
	memset(count, 0, (size_t)bins * sizeof(count[0]));
	for (size_t i = 0; i < x->kept; i++) {
		int b = x->max > x->min ? (int)((x->v[i] - x->min) / (x->max - x->min) * bins) : 0;

		count[b < 0 ? 0 : b >= bins ? bins - 1 : b]++;
	}
}

static void print_counts(const char *title, const json_t *counts, FILE *out)
{
	const char *key;
	json_t *v;

	if (!json_object_size(counts))
		return;
	fprintf(out, "%s\n", title);
	json_object_foreach((json_t *)(uintptr_t)counts, key, v)
	{
		fprintf(out, "  %8lld  %s\n", (long long)json_integer_value(v), key);
	}
}

static void print_number(struct number *x, int bins, FILE *out)
{
	int64_t count[100], most = 1;

	fill_bins(x, bins, count);
	for (int i = 0; i < bins; i++)
		most = count[i] > most ? count[i] : most;
	fprintf(out, "%s  n %lld  min %.6g  p5 %.6g  median %.6g  mean %.6g  p95 %.6g  max %.6g\n", x->key,
		(long long)x->n, x->min, quantile(x, 0.05), quantile(x, 0.5), x->sum / (double)x->n, quantile(x, 0.95),
		x->max);
	if (x->max <= x->min)
		return;
	for (int i = 0; i < bins; i++) {
		int len = (int)((count[i] * BAR + most - 1) / most);

		fprintf(out, "  %12.6g  %8lld  %.*s\n", x->min + (x->max - x->min) * i / bins, (long long)count[i], len,
			"########################################");
	}
}

void vfm_histogram_print(struct vfm_histogram *t, int bins, FILE *out)
{
	fprintf(out, "%lld records, %lld dropped, %lld failed\n", (long long)t->records, (long long)t->dropped,
		(long long)t->failed);
	print_counts("reasons", t->reasons, out);
	for (int i = 0; i < N_WORDS; i++)
		print_counts(word_keys[i], t->words[i], out);
	for (int i = 0; i < t->n_numbers; i++)
		print_number(&t->numbers[i], bins, out);
}

static json_t *number_json(struct number *x, int bins)
{
	int64_t count[100];
	json_t *o = json_object(), *list = json_array();

	fill_bins(x, bins, count);
	json_object_set_new(o, "count", json_integer(x->n));
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

	json_object_set_new(o, "v", json_integer(1));
	json_object_set_new(o, "records", json_integer(t->records));
	json_object_set_new(o, "dropped", json_integer(t->dropped));
	json_object_set_new(o, "failed", json_integer(t->failed));
	json_object_set(o, "reasons", t->reasons);
	for (int i = 0; i < N_WORDS; i++)
		json_object_set(words, word_keys[i], t->words[i]);
	json_object_set_new(o, "words", words);
	for (int i = 0; i < t->n_numbers; i++)
		json_object_set_new(numbers, t->numbers[i].key, number_json(&t->numbers[i], bins));
	json_object_set_new(o, "numbers", numbers);
	return o;
}
