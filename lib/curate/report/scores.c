/* scores.c - keeps the extremes of each score, and shows them next to its histogram. */
#include "curate/report/scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "curate/report/bars.h"
#include "curate/report/text.h"
#include "data/record/record.h"
#include "media/draw/html.h"
#include "media/score/score_facts.h"

/* The kept records with the lowest or highest values, the most extreme first; of equal values, the first one. */
struct score_end {
	json_t *rec[REPORT_EXAMPLES]; /* [n] */
	double x[REPORT_EXAMPLES];
	int n;
};

struct report_score {
	char *key;                         /* "score.motion" */
	const struct vfm_score_fact *fact; /* NULL: a score of another program */
	struct score_end low, high;
	int64_t kept, beyond, undefined; /* values; those beyond a usual limit; null */
};

void report_scores_init(struct report_scores *s, int examples)
{
	*s = (struct report_scores){.examples = examples};
}

static void release_score_end(struct score_end *e)
{
	for (int i = 0; i < e->n; i++)
		json_decref(e->rec[i]);
}

void report_scores_release(struct report_scores *s)
{
	for (int i = 0; i < s->n; i++) {
		release_score_end(&s->list[i]->low);
		release_score_end(&s->list[i]->high);
		free(s->list[i]->key);
		free(s->list[i]);
	}
}

static struct report_score *get_score(struct report_scores *s, const char *name)
{
	struct report_score *score;

	for (int i = 0; i < s->n; i++)
		if (!strcmp(s->list[i]->key + strlen("score."), name))
			return s->list[i];
	if (s->n == REPORT_SCORES)
		return NULL;
	score = s->list[s->n++] = vfm_calloc(1, sizeof(*score));
	score->key = vfm_strfmt("score.%s", name);
	score->fact = vfm_score_fact_of(name);
	return score;
}

/* sign: 1 keeps the lowest values, -1 the highest. */
static void offer_example(struct score_end *e, int most, const json_t *rec, double x, double sign)
{
	int at = e->n;

	while (at > 0 && sign * x < sign * e->x[at - 1])
		at--;
	if (at >= most)
		return;
	if (e->n == most)
		json_decref(e->rec[--e->n]);
	memmove(e->rec + at + 1, e->rec + at, (size_t)(e->n - at) * sizeof(e->rec[0]));
	memmove(e->x + at + 1, e->x + at, (size_t)(e->n - at) * sizeof(e->x[0]));
	e->rec[at] = json_incref((json_t *)(uintptr_t)rec);
	e->x[at] = x;
	e->n++;
}

void report_scores_add(struct report_scores *s, const json_t *rec)
{
	bool out = vfm_rec_is_out(rec);
	const char *name;
	json_t *v;

	if (json_object_get(rec, "error"))
		return;
	json_object_foreach(json_object_get(rec, "score"), name, v)
	{
		struct report_score *score = json_is_number(v) || json_is_null(v) ? get_score(s, name) : NULL;
		double x = json_number_value(v);

		if (!score)
			continue;
		score->undefined += json_is_null(v);
		if (out || json_is_null(v))
			continue;
		score->kept++;
		if (score->fact) /* false for NAN */
			score->beyond += x < score->fact->low || x > score->fact->high;
		offer_example(&score->low, s->examples, rec, x, 1);
		offer_example(&score->high, s->examples, rec, x, -1);
	}
}

/* ---- the page ---- */

/* Examples say something if the ends differ. */
static bool has_examples(const struct report_score *s)
{
	return s->low.n && s->low.x[0] < s->high.x[0];
}

void report_scores_pictures(const struct report_scores *s, const struct report_view *v)
{
	for (int i = 0; i < s->n; i++) {
		const struct report_score *score = s->list[i];

		if (!has_examples(score))
			continue;
		for (int k = 0; k < score->low.n; k++)
			report_pictures_want(v->pictures, score->low.rec[k]);
		for (int k = 0; k < score->high.n; k++)
			report_pictures_want(v->pictures, score->high.rec[k]);
	}
}

/* Heading, meaning and usual limit. */
static void add_score_facts(struct vfm_buf *b, const struct report_score *s)
{
	const struct vfm_score_fact *f = s->fact;
	char limit[REPORT_TEXT];

	vfm_html_addf(b, "<h4>%s", s->key + strlen("score."));
	if (f && *f->unit)
		vfm_html_addf(b, " <span class=dim>in %s</span>", f->unit);
	vfm_html_addf(b, "</h4>\n<p class=small>%s", f ? f->meaning : "A score of another program.");
	if (f && !isnan(f->low))
		vfm_html_addf(b, " Usual limit: at least %s.", report_value(limit, f->low));
	if (f && !isnan(f->high))
		vfm_html_addf(b, " Usual limit: at most %s.", report_value(limit, f->high));
	if (f && s->kept && (!isnan(f->low) || !isnan(f->high)))
		vfm_html_addf(b,
			s->beyond ? " <b>%'lld</b> of %'lld kept records (%.1f %%) are beyond it."
				  : " No kept record is beyond it.",
			(long long)s->beyond, (long long)s->kept, 100 * (double)s->beyond / (double)s->kept);
	vfm_buf_adds(b, "</p>\n");
}

static void add_score_end(struct vfm_buf *b, const struct score_end *e, const char *name, struct report_pictures *p)
{
	char value[REPORT_TEXT], *note;

	for (int i = 0; i < e->n; i++) {
		note = vfm_strfmt("%s: %s", name, report_value(value, e->x[i]));
		report_figure(p, b, e->rec[i], NULL, note);
		report_figure_end(b);
		free(note);
	}
}

static void add_score_block(
	const struct report_score *s, struct vfm_buf *b, const struct report_view *v, const char *id)
{
	struct report_bars bars = {.view = v, .id = id, .key = s->key, .undefined = s->undefined};
	const json_t *examples[2 * REPORT_EXAMPLES];

	bars.low = s->fact ? s->fact->low : NAN;
	bars.high = s->fact ? s->fact->high : NAN;
	bars.first = examples;
	for (int i = 0; i < s->low.n; i++)
		examples[bars.n_first++] = s->low.rec[i];
	for (int i = 0; i < s->high.n; i++)
		examples[bars.n_first++] = s->high.rec[i];
	vfm_html_addf(b, "<section class=number id='%s'><div>", id);
	add_score_facts(b, s);
	report_bars_add(b, &bars);
	vfm_buf_adds(b, "</div>\n");
	if (has_examples(s)) {
		vfm_buf_adds(b, "<div class=shots>\n");
		add_score_end(b, &s->low, "lowest", v->pictures);
		add_score_end(b, &s->high, "highest", v->pictures);
		vfm_buf_adds(b, "</div>\n");
	}
	vfm_buf_adds(b, "</section>\n");
}

/* Scores in the order of vfm-scores(7), then those of other programs. */
static int compare_report_scores(const void *a, const void *b)
{
	const struct report_score *x = *(struct report_score *const *)a, *y = *(struct report_score *const *)b;

	if (x->fact != y->fact)
		return !x->fact ? 1 : !y->fact ? -1 : x->fact < y->fact ? -1 : 1;
	return strcmp(x->key, y->key);
}

void report_scores_page(const struct report_scores *s, struct vfm_buf *b, const struct report_view *v)
{
	struct report_score *list[REPORT_SCORES];
	const char *group = "", *next;
	char id[32];

	memcpy(list, s->list, sizeof(list));
	if (s->n)
		qsort(list, (size_t)s->n, sizeof(list[0]), compare_report_scores);
	for (int i = 0; i < s->n; i++) {
		if (!report_bars_vary(v->numbers, list[i]->key))
			continue;
		next = list[i]->fact ? list[i]->fact->group : "Other scores";
		if (strcmp(group, next) != 0)
			vfm_html_addf(b, "<h3>%s</h3>\n", next);
		group = next;
		snprintf(id, sizeof(id), "%ss%d", v->id, i);
		add_score_block(list[i], b, v, id);
	}
}
