/* distributions.c - the histograms of the page, with dropped over kept records, and the table of constant keys. */
#include "curate/report/distributions.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "media/draw/html.h"

enum { BINS = 48, KEPT = 0, DROPPED = 1 /* colours */ };

/* The groups of vfm-scores(7). */
static const struct score_group {
	const char *title, *scores[8];
} groups[] = {
	{"Motion", {"motion", "camera_motion", "object_motion", "shake"}},
	{"Light and colour", {"luma", "contrast", "overexposed", "underexposed", "colorfulness", "oversaturated"}},
	{"Faults of the picture", {"sharpness", "blur", "blockiness", "interlace"}},
	{"Change in time", {"static_ratio", "duplicate_ratio", "flicker", "black_ratio"}},
	{"Overlays", {"bar_ratio", "text_ratio"}},
};
enum { GROUPS = sizeof(groups) / sizeof(groups[0]) };

static bool is_score(const char *key)
{
	return strncmp(key, "score.", 6) == 0;
}

/* The group of a score, GROUPS for the scores of outside models, -1 for other numbers. */
static int find_score_group(const char *key)
{
	if (!is_score(key))
		return -1;
	for (int g = 0; g < GROUPS; g++)
		for (const char *const *name = groups[g].scores; *name; name++)
			if (strcmp(key + 6, *name) == 0)
				return g;
	return GROUPS;
}

/* The values of a number, of kept and dropped records. */
struct distribution {
	const char *key;
	const json_t *kept; /* its facts; NULL: only dropped records have it */
	struct vfm_histogram_pair p;
};

/* Returns whether the number has more than one value. */
static bool read_distribution(
	struct distribution *d, const struct vfm_histogram *t, const char *key, const json_t *numbers)
{
	const json_t *bins;

	*d = (struct distribution){.key = key, .kept = json_object_get(numbers, key)};
	if (!vfm_histogram_compare(t, key, BINS, &d->p)) {
		d->p.min = json_number_value(json_object_get(d->kept, "min"));
		d->p.max = json_number_value(json_object_get(d->kept, "max"));
		bins = json_object_get(d->kept, "bins");
		for (size_t i = 0; i < BINS; i++)
			d->p.good[i] = json_integer_value(json_array_get(bins, i));
	}
	return d->p.max > d->p.min;
}

static void add_distribution(struct vfm_buf *b, const struct distribution *d)
{
	static const char *const facts[] = {"min", "p5", "p50", "mean", "p95", "max"};

	vfm_html_row(b, "%s|#%'lld", is_score(d->key) ? d->key + 6 : d->key,
		(long long)json_integer_value(json_object_get(d->kept, "count")));
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
		if (d->kept)
			vfm_html_cells(b, "#%.4g", json_number_value(json_object_get(d->kept, facts[i])));
		else
			vfm_html_cells(b, "#&ndash;");
	vfm_html_histogram(b, d->p.good, d->p.n_dropped ? d->p.dropped : NULL, BINS);
	if (d->p.n_dropped)
		vfm_html_addf(b, "<div class=ends><span>%.4g</span><span>%.4g</span></div>", d->p.min, d->p.max);
}

/* Adds the rows of a group.  Counts the numbers that have one value. */
static int add_group(struct vfm_buf *b, const struct vfm_histogram *t, const json_t *numbers, int group)
{
	const char *key, *title = group < 0 ? NULL : group < GROUPS ? groups[group].title : "Other scores";
	struct distribution d;
	int constant = 0;

	for (int i = 0; (key = vfm_histogram_key(t, i)); i++) {
		if (find_score_group(key) != group)
			continue;
		if (!read_distribution(&d, t, key, numbers)) {
			constant++;
			continue;
		}
		if (title)
			vfm_html_addf(b, "\n<tr><th colspan=9 class=group>%s", title);
		title = NULL;
		add_distribution(b, &d);
	}
	return constant;
}

static void add_constant(struct vfm_buf *b, const struct vfm_histogram *t, const char *key, const json_t *numbers)
{
	struct distribution d;

	if (read_distribution(&d, t, key, numbers))
		return;
	if (d.kept)
		vfm_html_row(b, "%s|#%'lld|%.6g", key, (long long)json_integer_value(json_object_get(d.kept, "count")),
			d.p.min);
	else
		vfm_html_row(b, "%s|#0|%.6g in %'lld dropped records", key, d.p.min, (long long)d.p.n_dropped);
}

/* Numbers and texts that are the same in all records that have them. */
static void add_constants(
	struct vfm_buf *b, const struct vfm_histogram *t, const json_t *o, const json_t *numbers, const char *of)
{
	const char *key, *word;
	json_t *counts, *n;

	vfm_buf_adds(b, "<section class=grid><div><h3>The same in all records</h3>\n");
	vfm_html_table(b, "key|#%s|value", of);
	json_object_foreach(json_object_get(o, "words"), key, counts)
	{
		if (json_object_size(counts) != 1)
			continue;
		json_object_foreach(counts, word, n)
		{
			vfm_html_row(b, "%s|#%'lld|%s", key, (long long)json_integer_value(n), word);
		}
	}
	for (int i = 0; (key = vfm_histogram_key(t, i)); i++)
		add_constant(b, t, key, numbers);
	vfm_html_table_end(b);
	vfm_buf_adds(b, "</div></section>\n");
}

void vfm_report_distributions(struct vfm_buf *b, struct vfm_histogram *t, const char *of)
{
	json_t *o = vfm_histogram_object(t, BINS), *numbers = json_object_get(o, "numbers"), *counts;
	int constant = 0;
	const char *key;

	if (json_integer_value(json_object_get(o, "dropped"))) {
		vfm_buf_adds(b, "<p class=legend>");
		vfm_html_swatch(b, 'a', KEPT);
		vfm_buf_adds(b, "<span>kept</span>");
		vfm_html_swatch(b, 'a', DROPPED);
		vfm_buf_adds(b, "<span>dropped, on top of what was kept</span></p>\n");
	}
	vfm_html_table(b, "number|#%s|#min|#5 %%|#median|#mean|#95 %%|#max|from min to max", of);
	for (int group = -1; group <= GROUPS; group++)
		constant += add_group(b, t, numbers, group);
	vfm_html_table_end(b);
	json_object_foreach(json_object_get(o, "words"), key, counts)
	{
		constant += json_object_size(counts) == 1;
	}
	if (constant)
		add_constants(b, t, o, numbers, of);
	json_decref(o);
}
