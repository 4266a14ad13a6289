/* account_page.c - the cards and tables of an account, and samples of what was lost. */
#include <stdlib.h>
#include <string.h>

#include "curate/report/account_impl.h"
#include "curate/report/text.h"
#include "data/record/record.h"
#include "media/draw/html.h"

enum { SHOWN_SOURCES = 32, PICTURED_REASONS = 16 };

/* ---- order ---- */

struct sorted_reason {
	const struct report_reason *r;
	int at;
};

static int compare_losses(const void *a, const void *b)
{
	const struct sorted_reason *p = a, *q = b;
	const struct report_amount *x = &p->r->lost, *y = &q->r->lost;

	if (x->seconds != y->seconds)
		return x->seconds > y->seconds ? -1 : 1;
	return x->records != y->records ? (x->records > y->records ? -1 : 1) : p->at - q->at;
}

void report_account_close(struct report_account *a)
{
	struct sorted_reason list[VFM_REASONS];

	for (int i = 0; i < a->n_reasons; i++)
		list[i] = (struct sorted_reason){a->reasons[i], i};
	if (a->n_reasons)
		qsort(list, (size_t)a->n_reasons, sizeof(list[0]), compare_losses);
	for (int i = 0; i < a->n_reasons; i++)
		a->order[i] = list[i].at;
}

/* ---- cards and reasons ---- */

/* The share of all seconds, or of all records if none has a duration. */
static double share_of(const struct report_account *a, const struct report_amount *x)
{
	if (a->in.seconds > 0)
		return x->seconds / a->in.seconds;
	return a->in.records ? (double)x->records / (double)a->in.records : 0;
}

static bool is_untimed(const struct report_amount *x)
{
	return x->untimed && x->untimed + x->images == x->records;
}

static void add_account_card(
	const struct report_account *a, struct vfm_buf *b, const char *name, const struct report_amount *x)
{
	char time[REPORT_TEXT];

	vfm_html_addf(b, "<div class=card><span class=dim>%s</span>", name);
	if (a->in.seconds > 0 && !is_untimed(x))
		vfm_html_addf(b, "<b>%s</b>", report_time(time, x->seconds));
	else if (a->in.seconds > 0)
		vfm_buf_adds(b, "<b>unknown time</b>");
	else
		vfm_html_addf(b, "<b>%'lld</b>", (long long)x->records);
	if (x != &a->in && !(a->in.seconds > 0 && is_untimed(x)))
		vfm_html_addf(b, "%.1f %%, ", 100 * share_of(a, x));
	report_add_records(b, x->records);
	if (x->images && x->images < a->in.records)
		vfm_html_addf(b, "<br>of which images: %'lld", (long long)x->images);
	vfm_buf_adds(b, "</div>\n");
}

void report_account_cards(const struct report_account *a, struct vfm_buf *b)
{
	vfm_buf_adds(b, "<div class='cards accounts'>\n");
	add_account_card(a, b, "in", &a->in);
	add_account_card(a, b, "kept", &a->kept);
	add_account_card(a, b, "dropped", &a->dropped);
	add_account_card(a, b, "failed", &a->failed);
	vfm_buf_adds(b, "</div>\n");
	if (a->in.untimed && a->in.seconds > 0) {
		vfm_buf_adds(b, "<p class='dim small'>The time of ");
		report_add_records(b, a->in.untimed);
		vfm_buf_adds(b, " is unknown: they are counted, but not in the sums of time.</p>\n");
	}
}

/* The text of a reason, without the file that each record has. */
static const char *reason_text(const struct report_reason *r)
{
	static const char file[] = "'...': ";

	return strncmp(r->why->text, file, strlen(file)) ? r->why->text : r->why->text + strlen(file);
}

/* Continues a row: records, images, time, share. */
static void add_amount_cells(const struct report_account *a, struct vfm_buf *b, const struct report_amount *x)
{
	char time[REPORT_TEXT];

	vfm_html_cells(b, "#%'lld", (long long)x->records);
	if (a->in.images)
		vfm_html_cells(b, "#%'lld", (long long)x->images);
	if (a->in.seconds > 0 && is_untimed(x)) {
		vfm_buf_adds(b, "<td class=num>unknown<td><td>");
		return;
	}
	if (a->in.seconds > 0)
		vfm_html_cells(b, "#%s", report_time(time, x->seconds));
	vfm_html_cells(b, "#%.1f %%|=%f", 100 * share_of(a, x), share_of(a, x));
}

void report_account_reasons(const struct report_account *a, struct vfm_buf *b)
{
	vfm_html_addf(
		b, "<h2 id=reasons>Where the %s went</h2>\n<div class=sums>", a->in.seconds > 0 ? "time" : "records");
	vfm_html_table(b, "|#records");
	if (a->in.images)
		vfm_html_heads(b, "#images");
	if (a->in.seconds > 0)
		vfm_html_heads(b, "#time");
	vfm_html_heads(b, "#share|");
	vfm_html_row(b, "<b>kept</b>");
	add_amount_cells(a, b, &a->kept);
	for (int i = 0; i < a->n_reasons; i++) {
		const struct report_reason *r = a->reasons[a->order[i]];

		vfm_html_row(b, r->sample.n ? "%s<a href='#r%d'>%s</a>" : "%s<span id=r%d>%s</span>",
			r->why->is_error ? "failed: " : "", a->order[i], reason_text(r));
		add_amount_cells(a, b, &r->lost);
	}
	vfm_html_row(b, "<b>all</b>");
	add_amount_cells(a, b, &a->in);
	vfm_html_table_end(b);
	vfm_buf_adds(b, "</div>\n");
}

/* ---- sources ---- */

static double lost_seconds(const struct report_source *s)
{
	return s->in.seconds - s->kept.seconds;
}

static int compare_sources(const void *a, const void *b)
{
	const struct report_source *x = a, *y = b;
	int64_t lost_x = x->in.records - x->kept.records, lost_y = y->in.records - y->kept.records;

	if (lost_seconds(x) != lost_seconds(y))
		return lost_seconds(x) > lost_seconds(y) ? -1 : 1;
	if (lost_x != lost_y)
		return lost_x > lost_y ? -1 : 1;
	if (x->in.seconds != y->in.seconds)
		return x->in.seconds > y->in.seconds ? -1 : 1;
	if (x->in.records != y->in.records)
		return x->in.records > y->in.records ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Shows folders instead of files while there are too many to show, unless a single folder would remain. */
static void shorten_shown_sources(struct report_account *a)
{
	int depth;

	while (a->n_sources > SHOWN_SOURCES && (depth = report_sources_depth(a)) > 1 &&
		report_sources_count(a, depth - 1) > 1)
		report_sources_shorten(a, depth - 1);
}

/* The reason for which a source lost the most. */
static const struct report_reason *main_reason(const struct report_account *a, const struct report_source *s)
{
	int most = 0;

	for (int i = 1; i < a->n_reasons; i++)
		if (s->lost_s[i] > s->lost_s[most] || (s->lost_s[i] == s->lost_s[most] && s->lost[i] > s->lost[most]))
			most = i;
	return a->n_reasons && s->lost[most] ? a->reasons[most] : NULL;
}

/* Continues a row. */
static void add_source_cells(const struct report_account *a, struct vfm_buf *b, const struct report_source *s)
{
	const struct report_reason *r = main_reason(a, s);
	char in[REPORT_TEXT], kept[REPORT_TEXT], lost[REPORT_TEXT];
	bool timed = a->in.seconds > 0;

	vfm_html_cells(b, "#%'lld|#%'lld", (long long)s->in.records, (long long)s->kept.records);
	if (timed && s->in.seconds > 0)
		vfm_html_cells(b, "#%s|#%s|#%s", report_time(in, s->in.seconds), report_time(kept, s->kept.seconds),
			report_time(lost, lost_seconds(s)));
	else if (timed)
		vfm_buf_adds(b, "<td><td><td>");
	if (timed && s->in.seconds > 0)
		vfm_html_cells(b, "=%f", s->kept.seconds / s->in.seconds);
	else
		vfm_html_cells(b, "=%f", s->in.records ? (double)s->kept.records / (double)s->in.records : 0);
	vfm_html_cells(b, "%s%s", r && r->why->is_error ? "failed: " : "", r ? reason_text(r) : "");
}

void report_account_sources(struct report_account *a, struct vfm_buf *b, const struct report_links *l)
{
	struct report_source rest = {.name = NULL};
	size_t shown = 0, more = 0;

	shorten_shown_sources(a);
	qsort(a->sources, a->n_sources, sizeof(a->sources[0]), compare_sources);
	vfm_buf_adds(b,
		"<h2 id=sources>Sources</h2>\n<p class=dim>The largest loss first. Shares are those of the time, or of "
		"the records of a source without time.</p>\n<div class=sums>");
	vfm_html_table(b,
		a->in.seconds > 0 ? "source|#records|#kept|#time|#kept|#lost|share kept|main reason of the loss"
				  : "source|#records|#kept|share kept|main reason of the loss");
	for (size_t i = 0; i < a->n_sources; i++) {
		const struct report_source *s = &a->sources[i];

		if (!s->in.records)
			continue;
		if (shown == SHOWN_SOURCES) {
			report_source_merge(&rest, s);
			more++;
			continue;
		}
		shown++;
		vfm_buf_adds(b, "\n<tr><td>");
		if (s->is_path)
			report_add_link(b, l, s->name);
		else
			vfm_html_addf(b, "%s", *s->name ? s->name : "(unknown)");
		add_source_cells(a, b, s);
	}
	if (more) {
		vfm_html_row(b, "%'lld more", (long long)more);
		add_source_cells(a, b, &rest);
	}
	vfm_html_table_end(b);
	vfm_buf_adds(b, "</div>\n");
}

/* ---- samples ---- */

/* Returns whether the records of a reason, by its place in the order, are shown with pictures. */
static bool is_pictured(const struct report_reason *r, int place)
{
	return !r->why->is_error && place < PICTURED_REASONS;
}

void report_account_pictures(const struct report_account *a, struct report_pictures *p)
{
	for (int i = 0; i < a->n_reasons; i++) {
		const struct report_reason *r = a->reasons[a->order[i]];

		for (int k = 0; is_pictured(r, i) && k < r->sample.n; k++)
			report_pictures_want(p, r->sample.rec[k]);
	}
}

static void add_sample_figures(struct vfm_buf *b, const struct report_reason *r, struct report_pictures *p)
{
	vfm_buf_adds(b, "<div class=shots>\n");
	for (int k = 0; k < r->sample.n; k++) {
		const char *why = vfm_rec_str(r->sample.rec[k], "drop", "");

		report_figure(p, b, r->sample.rec[k], NULL, strcmp(why, reason_text(r)) ? why : "");
		report_figure_end(b);
	}
	vfm_buf_adds(b, "</div>\n");
}

static void add_sample_list(struct vfm_buf *b, const struct report_reason *r, struct report_pictures *p)
{
	vfm_buf_adds(b, "<ul class=small>\n");
	for (int k = 0; k < r->sample.n; k++) {
		const json_t *rec = r->sample.rec[k];

		vfm_buf_adds(b, "<li>");
		report_add_source(b, p->links, rec);
		vfm_html_addf(b, " <b>%s</b> %s\n", vfm_rec_str(rec, "id", ""),
			vfm_rec_str(rec, "error", vfm_rec_str(rec, "drop", "")));
	}
	vfm_buf_adds(b, "</ul>\n");
}

void report_account_samples(const struct report_account *a, struct vfm_buf *b, struct report_pictures *p)
{
	bool any = false;

	for (int i = 0; i < a->n_reasons; i++) {
		const struct report_reason *r = a->reasons[a->order[i]];
		char time[REPORT_TEXT];

		if (!r->sample.n)
			continue;
		vfm_buf_adds(b, any ? "" : "<h2 id=lost>Dropped and failed, by reason</h2>\n");
		any = true;
		vfm_html_addf(b, "<section id=r%d><h3>%s%s <span class=dim>", a->order[i],
			r->why->is_error ? "failed: " : "", reason_text(r));
		report_add_records(b, r->lost.records);
		if (r->lost.seconds > 0)
			vfm_html_addf(b, ", %s", report_time(time, r->lost.seconds));
		if (r->sample.n < r->lost.records)
			vfm_html_addf(b, "; %d at random:", r->sample.n);
		vfm_buf_adds(b, "</span></h3>\n");
		if (is_pictured(r, i))
			add_sample_figures(b, r, p);
		else
			add_sample_list(b, r, p);
		vfm_buf_adds(b, "</section>\n");
	}
}
