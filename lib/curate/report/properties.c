/* properties.c - histograms of numbers, tables of words, and the line of constant keys. */
#include "curate/report/properties.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "curate/report/text.h"
#include "media/draw/html.h"

enum { SHOWN_WORDS = 12 };

/* Positions of a clip in its file, which say nothing about the clip. */
static bool is_position(const char *key)
{
	static const char *const keys[] = {"start_frame", "end_frame", "start_s", "end_s"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!strcmp(key, keys[i]))
			return true;
	return false;
}

static bool is_score(const char *key)
{
	return !strncmp(key, "score.", strlen("score."));
}

static void add_property_histograms(struct vfm_buf *b, const struct report_view *v)
{
	const char *key;
	char id[32];

	vfm_buf_adds(b, "<div class=grid>\n");
	for (int i = 0; (key = vfm_histogram_key(v->numbers, i)); i++) {
		if (is_score(key) || is_position(key) || !report_bars_vary(v->numbers, key))
			continue;
		snprintf(id, sizeof(id), "%sn%d", v->id, i);
		vfm_html_addf(b, "<section id='%s'><h4>%s</h4>\n", id, key);
		report_bars_add(b, &(struct report_bars){.view = v, .id = id, .key = key, .low = NAN, .high = NAN});
		vfm_buf_adds(b, "</section>\n");
	}
	vfm_buf_adds(b, "</div>\n");
}

void report_count_table(struct vfm_buf *b, const char *title, const json_t *counts, int64_t more, size_t most)
{
	int64_t rest = 0;
	size_t n;
	struct vfm_word_count *list = vfm_word_counts_sort(counts, &n);

	vfm_buf_adds(b, "<div>");
	vfm_html_table(b, "%s|#records|", title);
	for (size_t i = 0; i < n; i++)
		if (i < most)
			vfm_html_row(b, "%s|#%'lld|=%f", list[i].word, (long long)(list[i].n + more),
				(double)(list[i].n + more) / (double)(list[0].n + more));
		else
			rest += list[i].n + more;
	if (rest && !more) /* counts that were pruned have no known sum */
		vfm_html_row(b, "%zu more|#%'lld|", n - most, (long long)rest);
	vfm_html_table_end(b);
	vfm_buf_adds(b, "</div>\n");
	free(list);
}

/* Returns the counts of rates as decimals, "29.97" for "30000/1001".  The caller owns them. */
static json_t *decimal_rates(const json_t *counts)
{
	json_t *all = json_object(), *n;
	const char *rate;

	json_object_foreach((json_t *)(uintptr_t)counts, rate, n)
	{
		char text[REPORT_TEXT], *end;
		double num = strtod(rate, &end), den = *end == '/' ? strtod(end + 1, &end) : 1;

		if (*end || !(num / den < 1e6))
			snprintf(text, sizeof(text), "%s", rate); /* "(others)" */
		else
			snprintf(text, sizeof(text), "%.5g", num / den);
		json_object_set_new_nocheck(all, text,
			json_integer(json_integer_value(json_object_get(all, text)) + json_integer_value(n)));
	}
	return all;
}

/* The words of all keys, with rates as decimals.  The caller owns them. */
static json_t *get_words(struct vfm_histogram *numbers)
{
	json_t *o = vfm_histogram_object(numbers, 1), *words = json_incref(json_object_get(o, "words"));
	const json_t *rates = json_object_get(words, "fps");

	if (rates)
		json_object_set_new(words, "fps", decimal_rates(rates));
	json_decref(o);
	return words;
}

/* A line of the keys that have one value in the kept records.  A number that differs in dropped records has a
 * histogram instead. */
static void add_constants(struct vfm_buf *b, const struct report_view *v, const json_t *words)
{
	struct vfm_histogram_values x;
	const char *key, *before = "<p>The same in all kept records that have it: ";
	char value[REPORT_TEXT];
	json_t *counts;

	json_object_foreach((json_t *)(uintptr_t)words, key, counts)
	{
		if (json_object_size(counts) != 1)
			continue;
		vfm_buf_adds(b, before);
		vfm_html_addf(b, "%s <b>%s</b>", key, json_object_iter_key(json_object_iter(counts)));
		before = ", ";
	}
	for (int i = 0; (key = vfm_histogram_key(v->numbers, i)); i++) {
		if (is_position(key) || report_bars_vary(v->numbers, key))
			continue;
		if (!vfm_histogram_values(v->numbers, key, false, &x))
			continue;
		vfm_buf_adds(b, before);
		vfm_html_addf(b, "%s <b>%s</b>", key, report_value(value, x.min));
		before = ", ";
	}
	vfm_buf_adds(b, *before == ',' ? ".</p>\n" : "");
}

void report_properties(struct vfm_buf *b, const struct report_view *v, struct vfm_histogram *numbers)
{
	json_t *words = get_words(numbers), *counts;
	const char *key;

	add_constants(b, v, words);
	add_property_histograms(b, v);
	vfm_buf_adds(b, "<div class=grid>\n");
	json_object_foreach(words, key, counts)
	{
		if (json_object_size(counts) > 1)
			report_count_table(b, key, counts, 0, SHOWN_WORDS);
	}
	vfm_buf_adds(b, "</div>\n");
	json_decref(words);
}
