/* report.c - collects records in one pass, and writes the HTML page. */
#include "curate/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/report/account.h"
#include "curate/report/captions.h"
#include "curate/report/pictures.h"
#include "curate/report/properties.h"
#include "curate/report/reservoir.h"
#include "curate/report/scores.h"
#include "data/record/histogram.h"
#include "data/record/record.h"
#include "io/file.h"
#include "io/json.h"
#include "media/draw/html.h"

enum { SAMPLE = 1024, VIDEO = 0, IMAGE = 1, KINDS = 2 };

static const char *const kind_ids[KINDS] = {"v", "i"}, *const kind_names[KINDS] = {"videos", "images"};

/* Videos and images have numbers of their own: a mean over both describes neither. */
struct report_kind {
	struct vfm_histogram *numbers;
	struct report_scores scores;
	struct reservoir kept, dropped;
};

struct vfm_report {
	struct vfm_report_opts o;
	struct report_account account;
	struct report_kind kinds[KINDS];
	struct report_captions captions;
	struct reservoir copies; /* duplicates */
	json_t **originals;      /* [copies.n] NULL: not found */
};

/* ---- collecting ---- */

struct vfm_report *vfm_report_new(const struct vfm_report_opts *o)
{
	struct vfm_report *r = vfm_calloc(1, sizeof(*r));

	r->o = *o;
	report_account_init(&r->account, 2 * (int)o->examples);
	for (int k = 0; k < KINDS; k++) {
		r->kinds[k].numbers = vfm_histogram_new();
		report_scores_init(&r->kinds[k].scores, (int)o->examples);
		reservoir_init(&r->kinds[k].kept, SAMPLE, (uint64_t)(10 + k));
		reservoir_init(&r->kinds[k].dropped, SAMPLE, (uint64_t)(20 + k));
	}
	report_captions_init(&r->captions, o->captions);
	reservoir_init(&r->copies, o->pairs, 2);
	return r;
}

void vfm_report_free(struct vfm_report *r)
{
	if (!r)
		return;
	report_account_release(&r->account);
	for (int k = 0; k < KINDS; k++) {
		vfm_histogram_free(r->kinds[k].numbers);
		report_scores_release(&r->kinds[k].scores);
		reservoir_release(&r->kinds[k].kept);
		reservoir_release(&r->kinds[k].dropped);
	}
	report_captions_release(&r->captions);
	for (int i = 0; r->originals && i < r->copies.n; i++)
		json_decref(r->originals[i]);
	free(r->originals);
	reservoir_release(&r->copies);
	free(r);
}

/* Returns the id of the record that dedup kept in the place of this one, or NULL.  A clip that an index already had is
 * a duplicate of itself. */
static const char *duplicate_of(const json_t *rec)
{
	const char *of = json_string_value(vfm_rec_at(rec, "dedup.of")), *id = vfm_rec_str(rec, "id", "");

	return of && strcmp(of, id) != 0 ? of : NULL;
}

void vfm_report_add(struct vfm_report *r, const json_t *rec)
{
	struct report_kind *k = &r->kinds[report_is_image(rec) ? IMAGE : VIDEO];

	report_account_add(&r->account, rec);
	vfm_histogram_add(k->numbers, rec);
	report_scores_add(&k->scores, rec);
	if (duplicate_of(rec))
		reservoir_offer(&r->copies, rec);
	if (!vfm_rec_is_out(rec)) {
		report_captions_add(&r->captions, rec);
		reservoir_offer(&k->kept, rec);
	} else if (!json_object_get(rec, "error")) {
		reservoir_offer(&k->dropped, rec);
	}
}

/* ---- originals of duplicates ---- */

static void match_original(struct vfm_report *r, json_t *rec)
{
	const char *id = vfm_rec_str(rec, "id", NULL);

	for (int i = 0; id && i < r->copies.n; i++)
		if (!r->originals[i] && !strcmp(duplicate_of(r->copies.rec[i]), id) && !duplicate_of(rec))
			r->originals[i] = json_incref(rec);
}

static int find_originals(struct vfm_report *r, int n_files, char **files, struct vfm_err *err)
{
	r->originals = vfm_calloc((size_t)r->copies.n + 1, sizeof(json_t *));
	for (int i = 0; r->copies.n && i < n_files; i++) {
		struct vfm_jsonl in = {0};
		json_t *rec;
		int rc;

		if (!strcmp(files[i], "-"))
			continue;
		TRY(vfm_jsonl_open(&in, files[i], err));
		while ((rc = vfm_jsonl_next(&in, &rec, err)) != 0) {
			if (rc == VFM_EINPUT) /* the first reading has counted it */
				continue;
			if (rc < 0)
				break;
			match_original(r, rec);
			json_decref(rec);
		}
		vfm_jsonl_close(&in);
		TRY(rc);
	}
	return 0;
}

/* ---- pictures of kept records ---- */

void vfm_record_facts_html(struct vfm_buf *b, const json_t *rec)
{
	double width, height, s;

	vfm_html_addf(b, "<b>%s</b>", vfm_rec_str(rec, "id", vfm_rec_str(rec, "src", "?")));
	if (vfm_rec_num(rec, "width", &width) && vfm_rec_num(rec, "height", &height))
		vfm_html_addf(b, " &middot; <span>%.0f&times;%.0f</span>", width, height);
	if (vfm_rec_num(rec, "duration_s", &s) && s > 0) /* images last 0 s */
		vfm_html_addf(b, " &middot; <span>%.4g s</span>", s);
}

struct ranked_record {
	const json_t *rec;
	double x;
	int at;
};

struct ranking {
	const char *by;
	struct ranked_record *list; /* [n] the smallest number first */
	int n, shown;
};

static int compare_ranked(const void *a, const void *b)
{
	const struct ranked_record *p = a, *q = b;

	return p->x != q->x ? (p->x < q->x ? -1 : 1) : p->at - q->at;
}

/* The number that chooses the pictures of a kind: the first score, or else the duration of videos, or the width. */
static const char *choose_key(const struct vfm_report *r, int kind)
{
	const char *key;

	if (r->o.by)
		return r->o.by;
	for (int i = 0; (key = vfm_histogram_key(r->kinds[kind].numbers, i)); i++)
		if (!strncmp(key, "score.", 6) && report_bars_vary(r->kinds[kind].numbers, key))
			return key;
	return kind == VIDEO ? "duration_s" : "width";
}

static void rank_records(const struct vfm_report *r, int kind, struct ranking *k)
{
	const struct reservoir *kept = &r->kinds[kind].kept;

	*k = (struct ranking){.by = choose_key(r, kind), .list = vfm_calloc((size_t)kept->n + 1, sizeof(k->list[0]))};
	for (int i = 0; i < kept->n; i++) {
		k->list[k->n] = (struct ranked_record){.rec = kept->rec[i], .at = i};
		k->n += vfm_rec_num(kept->rec[i], k->by, &k->list[k->n].x);
	}
	qsort(k->list, (size_t)k->n, sizeof(k->list[0]), compare_ranked);
	k->shown = k->n < r->o.pictures ? k->n : (int)r->o.pictures;
}

/* The record at picture i, at equal steps of the number of records. */
static const struct ranked_record *find_ranked(const struct ranking *k, int i, double *share)
{
	*share = k->shown > 1 ? (double)i / (k->shown - 1) : 0.5;
	return &k->list[lrint(*share * (k->n - 1))];
}

static void add_ranking(struct vfm_buf *b, const struct ranking *k, int kind, struct report_pictures *p)
{
	char value[REPORT_TEXT], *note;
	double share;

	if (!k->shown)
		return;
	vfm_html_addf(b,
		"<h2 id=%skept>Kept %s by %s</h2>\n<p class=dim>From the lowest value (0 %%) to the highest (100 %%), "
		"at equal "
		"steps of the number of records.</p>\n<div class=shots>\n",
		kind_ids[kind], kind_names[kind], k->by);
	for (int i = 0; i < k->shown; i++) {
		const struct ranked_record *at = find_ranked(k, i, &share);

		note = vfm_strfmt("%.0f %% %s %s", 100 * share, k->by, report_value(value, at->x));
		report_figure(p, b, at->rec, NULL, note);
		report_figure_end(b);
		free(note);
	}
	vfm_buf_adds(b, "</div>\n");
}

/* ---- duplicates ---- */

/* How a duplicate differs from its original. */
static void add_difference(struct vfm_buf *b, const json_t *rec)
{
	double x;

	if (!vfm_rec_num(rec, "dedup.distance", &x))
		return;
	vfm_html_addf(b, "<br>distance %.3g", x);
	if (vfm_rec_num(rec, "dedup.offset_s", &x) && x != 0)
		vfm_html_addf(b, " &middot; <span>begins %.4g s %s</span>", fabs(x), x > 0 ? "later" : "earlier");
	if (json_is_true(vfm_rec_at(rec, "dedup.mirrored")))
		vfm_buf_adds(b, " &middot; <span>mirrored</span>");
}

static void add_pairs(const struct vfm_report *r, struct vfm_buf *b, struct report_pictures *p)
{
	if (!r->copies.n)
		return;
	vfm_html_addf(b,
		"<h2 id=duplicates>Duplicates</h2>\n<p class=dim>%'lld records were dropped as duplicates; %d of them "
		"are shown, each next to the record that was kept.</p>\n<div class=grid>\n",
		(long long)r->copies.offered, r->copies.n);
	for (int i = 0; i < r->copies.n; i++) {
		vfm_buf_adds(b, "<div class=pair>");
		report_figure(p, b, r->originals[i], duplicate_of(r->copies.rec[i]), "kept");
		report_figure_end(b);
		report_figure(p, b, r->copies.rec[i], NULL, "duplicate");
		add_difference(b, r->copies.rec[i]);
		report_figure_end(b);
		vfm_buf_adds(b, "</div>\n");
	}
	vfm_buf_adds(b, "</div>\n");
}

/* ---- the page ---- */

/* What the page shows besides the collected records. */
struct report_page {
	struct report_links links;
	struct report_pictures pictures;
	struct ranking rankings[KINDS];
	struct report_view views[KINDS];
	const json_t **samples[KINDS]; /* [kept.n + dropped.n] of each kind */
};

static void prepare_kind(const struct vfm_report *r, struct report_page *page, int k)
{
	const struct report_kind *kind = &r->kinds[k];
	int n = 0;

	page->samples[k] = vfm_calloc((size_t)(kind->kept.n + kind->dropped.n) + 1, sizeof(json_t *));
	for (int i = 0; i < kind->kept.n; i++)
		page->samples[k][n++] = kind->kept.rec[i];
	for (int i = 0; i < kind->dropped.n; i++)
		page->samples[k][n++] = kind->dropped.rec[i];
	page->views[k] = (struct report_view){.id = kind_ids[k],
		.numbers = kind->numbers,
		.samples = page->samples[k],
		.n_samples = n,
		.pictures = &page->pictures};
	rank_records(r, k, &page->rankings[k]);
}

/* Chooses and decodes the pictures. */
static int prepare_page(struct vfm_report *r, struct report_page *page, const char *path, struct vfm_err *err)
{
	double share;

	report_links_init(&page->links, path);
	page->pictures.links = &page->links;
	report_account_close(&r->account);
	report_account_pictures(&r->account, &page->pictures);
	for (int k = 0; k < KINDS; k++) {
		prepare_kind(r, page, k);
		report_scores_pictures(&r->kinds[k].scores, &page->views[k]);
		for (int i = 0; i < page->rankings[k].shown; i++)
			report_pictures_want(&page->pictures, find_ranked(&page->rankings[k], i, &share)->rec);
	}
	for (int i = 0; i < r->copies.n; i++) {
		report_pictures_want(&page->pictures, r->copies.rec[i]);
		if (r->originals[i])
			report_pictures_want(&page->pictures, r->originals[i]);
	}
	return report_pictures_decode(&page->pictures, r->o.timeout_s, err);
}

static void release_page(struct report_page *page)
{
	report_links_release(&page->links);
	report_pictures_release(&page->pictures);
	for (int k = 0; k < KINDS; k++) {
		free(page->rankings[k].list);
		free(page->samples[k]);
	}
}

static void add_legend(const struct vfm_report *r, struct vfm_buf *b)
{
	vfm_buf_adds(b, "<p class=legend>");
	if (r->account.dropped.records) {
		vfm_html_swatch(b, 'a', 0);
		vfm_buf_adds(b, "<span>kept</span>");
		vfm_html_swatch(b, 'a', 1);
		vfm_buf_adds(b, "<span>dropped, on top of what was kept</span>");
	}
	vfm_buf_adds(b,
		"<span>A click on a bar shows some of its records.</span>"
		"<span>The numbers describe the kept records.</span></p>\n");
}

/* The scores and other numbers of a kind. */
static void add_kind_section(const struct vfm_report *r, struct vfm_buf *b, struct report_page *page, int k)
{
	const struct report_kind *kind = &r->kinds[k];

	if (!vfm_histogram_key(kind->numbers, 0))
		return;
	if (kind->scores.n) {
		vfm_html_addf(b, "<h2 id=%sscores>Scores of %s</h2>\n", kind_ids[k], kind_names[k]);
		add_legend(r, b);
		report_scores_page(&kind->scores, b, &page->views[k]);
	}
	vfm_html_addf(b, "<h2 id=%snumbers>Sizes, rates and other keys of %s</h2>\n", kind_ids[k], kind_names[k]);
	report_properties(b, &page->views[k], kind->numbers);
}

static void add_section_link(struct vfm_buf *b, bool exists, const char *id, const char *name)
{
	if (exists)
		vfm_html_addf(b, "<a href='#%s'>%s</a> ", id, name);
}

static void add_section_links(const struct vfm_report *r, struct vfm_buf *b, const struct report_page *page)
{
	vfm_buf_adds(b, "<nav>");
	add_section_link(b, true, "reasons", "Losses");
	add_section_link(b, true, "sources", "Sources");
	add_section_link(b, r->account.n_reasons && r->o.examples, "lost", "What was lost");
	add_section_link(b, page->rankings[VIDEO].shown, "vkept", "Kept videos");
	add_section_link(b, page->rankings[IMAGE].shown, "ikept", "Kept images");
	add_section_link(b, r->kinds[VIDEO].scores.n, "vscores", "Scores of videos");
	add_section_link(b, r->kinds[IMAGE].scores.n, "iscores", "Scores of images");
	add_section_link(b, r->copies.n, "duplicates", "Duplicates");
	add_section_link(b, r->captions.records, "captions", "Captions");
	vfm_buf_adds(b, "</nav>\n");
}

static void build_page(struct vfm_report *r, struct vfm_buf *b, struct report_page *page)
{
	vfm_html_begin(b, r->o.title ? r->o.title : "Dataset", 0);
	report_account_cards(&r->account, b);
	add_section_links(r, b, page);
	report_account_reasons(&r->account, b);
	report_account_sources(&r->account, b, &page->links);
	report_account_samples(&r->account, b, &page->pictures);
	add_ranking(b, &page->rankings[VIDEO], VIDEO, &page->pictures);
	add_ranking(b, &page->rankings[IMAGE], IMAGE, &page->pictures);
	for (int k = 0; k < KINDS; k++)
		add_kind_section(r, b, page, k);
	add_pairs(r, b, &page->pictures);
	report_captions_page(&r->captions, b, &page->pictures);
	vfm_html_end(b);
}

int vfm_report_write(struct vfm_report *r, int n_files, char **files, const char *path, struct vfm_err *err)
{
	struct report_page page = {0};
	struct vfm_buf b = {0};
	int rc;

	TRY_OUT(find_originals(r, n_files, files, err));
	TRY_OUT(prepare_page(r, &page, path, err));
	build_page(r, &b, &page);
	rc = vfm_write_file(path, b.data, b.len, err);
out:
	release_page(&page);
	vfm_buf_release(&b);
	return rc;
}
