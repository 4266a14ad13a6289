/* report.c - samples records in one pass (reservoirs, histograms) and writes the HTML page. */
#include "curate/report/report.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "curate/report/distributions.h"
#include "data/record/caption.h"
#include "data/record/histogram.h"
#include "data/record/record.h"
#include "data/record/clip_reader.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "media/draw/html.h"

enum {
	BINS = 48,
	SAMPLE = 2048,   /* records that the pictures are chosen from */
	WORDS = 4096,    /* that a prune leaves at most */
	WORD_BYTES = 64, /* longer words are cut */
	SHOWN_WORDS = 48,
	SHOWN_SOURCES = 32,
	CAPTION_BYTES = 4000, /* of a sample that is shown */
	PICTURE_W = 240,
	PICTURE_H = 180,
};

/* Counts of words.  A prune subtracts the same from all of them, and removes those that become 0. */
struct word_counts {
	json_t *left; /* {word: count less `pruned`}, at most 2 WORDS */
	int64_t pruned;
};

/* A uniform sample of the records that were offered. */
struct reservoir {
	json_t **rec; /* [n] */
	int n, most;
	int64_t offered;
	struct vfm_rng rng;
};

struct vfm_report {
	struct vfm_report_opts o;
	struct vfm_histogram *numbers, *lengths;
	struct word_counts words, sources;
	struct reservoir good, copies, captions;
	int64_t captioned;
	json_t **originals; /* [copies.n] NULL: not found */
};

/* ---- collecting ---- */

static void init_reservoir(struct reservoir *s, int64_t most, uint64_t id)
{
	s->most = (int)most;
	s->rec = vfm_calloc((size_t)most + 1, sizeof(s->rec[0]));
	s->rng = vfm_rng_stream(0, 0, id, VFM_RNG_SAMPLE);
}

static void release_reservoir(struct reservoir *s)
{
	for (int i = 0; i < s->n; i++)
		json_decref(s->rec[i]);
	free(s->rec);
}

static void offer_record(struct reservoir *s, const json_t *rec)
{
	uint64_t at = (uint64_t)s->n;

	s->offered++;
	if (s->n == s->most)
		at = s->most ? vfm_rng_below(&s->rng, (uint64_t)s->offered, (uint64_t)s->offered) : 0;
	else
		s->n++;
	if (at >= (uint64_t)s->most)
		return;
	json_decref(s->rec[at]);
	s->rec[at] = json_incref((json_t *)(uintptr_t)rec);
}

struct vfm_report *vfm_report_new(const struct vfm_report_opts *o)
{
	struct vfm_report *r = vfm_calloc(1, sizeof(*r));

	r->o = *o;
	r->numbers = vfm_histogram_new();
	r->lengths = vfm_histogram_new();
	r->words.left = json_object();
	r->sources.left = json_object();
	init_reservoir(&r->good, o->pictures ? SAMPLE : 0, 1);
	init_reservoir(&r->copies, o->pairs, 2);
	init_reservoir(&r->captions, o->captions, 3);
	return r;
}

void vfm_report_free(struct vfm_report *r)
{
	if (!r)
		return;
	vfm_histogram_free(r->numbers);
	vfm_histogram_free(r->lengths);
	json_decref(r->words.left);
	json_decref(r->sources.left);
	for (int i = 0; r->originals && i < r->copies.n; i++)
		json_decref(r->originals[i]);
	free(r->originals);
	release_reservoir(&r->good);
	release_reservoir(&r->copies);
	release_reservoir(&r->captions);
	free(r);
}

static void count_frequent(struct word_counts *w, const char *word, size_t len)
{
	char text[WORD_BYTES];
	struct vfm_word_count *list;
	size_t n;

	snprintf(text, sizeof(text), "%.*s", (int)(len < WORD_BYTES ? len : WORD_BYTES - 1), word);
	json_object_set_new_nocheck(
		w->left, text, json_integer(json_integer_value(json_object_get(w->left, text)) + 1));
	if (json_object_size(w->left) < 2 * WORDS)
		return;
	list = vfm_word_counts_sort(w->left, &n);
	w->pruned += list[WORDS].n;
	for (size_t i = n; i-- > 0;)
		if (list[i].n > list[WORDS].n)
			json_object_set_new_nocheck(w->left, list[i].word, json_integer(list[i].n - list[WORDS].n));
		else
			json_object_del(w->left, list[i].word);
	free(list);
}

/* Words of 4 letters or more, in lower case; bytes of other alphabets count as letters. */
static void add_caption_words(struct vfm_report *r, const char *text)
{
	char word[64];
	size_t n = 0;
	json_int_t count = 0;
	json_t *length;
	bool in_word = false;

	for (const char *s = text;; s++) {
		bool letter = isalpha((unsigned char)*s) || (unsigned char)*s >= 0x80;

		count += letter && !in_word;
		in_word = letter;
		if (letter && n < sizeof(word))
			word[n++] = (char)tolower((unsigned char)*s);
		if (!letter) {
			if (n >= 4)
				count_frequent(&r->words, word, n);
			n = 0;
		}
		if (!*s)
			break;
	}
	length = json_pack("{s:I}", "words per caption", count);
	vfm_histogram_add(r->lengths, length);
	json_decref(length);
}

static void add_captions(struct vfm_report *r, const json_t *rec)
{
	struct vfm_captions c;
	bool any = false;

	if (!json_object_get(rec, "caption") || vfm_captions_of(&c, rec, NULL) < 0)
		return;
	for (int i = 0; i < c.n; i++) {
		const char *text = c.list[i].value ? json_string_value(c.list[i].value) : NULL;

		if (!text)
			continue;
		any = true;
		add_caption_words(r, text);
	}
	r->captioned += any;
	if (any)
		offer_record(&r->captions, rec);
}

/* Counts the source of a record: its key "source", or the folder of its original file or of the tar that contains it.
 */
static void add_source(struct vfm_report *r, const json_t *rec)
{
	const char *source = vfm_rec_str(rec, "source", NULL), *src;
	struct vfm_member_name member;
	char *dir, *file;

	if (source) {
		count_frequent(&r->sources, source, strlen(source));
		return;
	}
	src = vfm_rec_str(json_object_get(rec, "origin"), "src", vfm_rec_str(rec, "src", NULL));
	if (!src)
		return;
	file = vfm_member_parse(&member, src) ? vfm_strfmt("%.*s", (int)member.tar_len, src) : vfm_strdup(src);
	dir = vfm_dir_of(file);
	count_frequent(&r->sources, dir, strlen(dir));
	free(dir);
	free(file);
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
	vfm_histogram_add(r->numbers, rec);
	add_source(r, rec);
	if (duplicate_of(rec))
		offer_record(&r->copies, rec);
	if (vfm_rec_is_out(rec))
		return;
	add_captions(r, rec);
	offer_record(&r->good, rec);
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

/* ---- pictures ---- */

void vfm_record_facts_html(struct vfm_buf *b, const json_t *rec)
{
	double width, height, s;

	vfm_html_addf(b, "<b>%s</b>", vfm_rec_str(rec, "id", vfm_rec_str(rec, "src", "?")));
	if (vfm_rec_num(rec, "width", &width) && vfm_rec_num(rec, "height", &height))
		vfm_html_addf(b, " &middot; <span>%.0f&times;%.0f</span>", width, height);
	if (vfm_rec_num(rec, "duration_s", &s) && s > 0) /* images last 0 s */
		vfm_html_addf(b, " &middot; <span>%.4g s</span>", s);
}

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

/* note: in front of the caption; rec: NULL if only the id is known. */
static int add_figure(const struct vfm_report *r, struct vfm_buf *b, const json_t *rec, const char *note,
	const char *id, struct vfm_err *err)
{
	struct vfm_err why = {.msg = "not in these files"};
	struct vfm_thumbnails t = {0};
	int rc = rec ? vfm_thumbnails(&t, rec, 1, PICTURE_W, PICTURE_H, r->o.timeout_s, &why) : VFM_EINPUT;

	vfm_buf_adds(b, "<figure class=box>");
	if (rc == 0) {
		rc = vfm_html_picture(b, t.rgb, t.width, t.height, "", err);
	} else {
		vfm_html_addf(b, "<p class='none failed'>%s</p>", why.msg);
		rc = rc == VFM_EINPUT || rc == VFM_EUSAGE ? 0 : vfm_fail(err, rc, "%s", why.msg);
	}
	free(t.rgb);
	vfm_html_addf(b, "<figcaption>%s<br>", note);
	if (rec) {
		vfm_record_facts_html(b, rec);
		add_difference(b, rec);
	} else {
		vfm_html_addf(b, "<b>%s</b>", id);
	}
	vfm_buf_adds(b, "</figcaption></figure>\n");
	return rc;
}

struct ranked_record {
	const json_t *rec;
	double x;
	int at;
};

static int compare_ranked(const void *a, const void *b)
{
	const struct ranked_record *p = a, *q = b;

	return p->x != q->x ? (p->x < q->x ? -1 : 1) : p->at - q->at;
}

/* The number that chooses the pictures. */
static const char *choose_key(const struct vfm_report *r, const json_t *numbers)
{
	const char *key;
	json_t *v;

	if (r->o.by)
		return r->o.by;
	json_object_foreach((json_t *)(uintptr_t)numbers, key, v)
	{
		if (!strncmp(key, "score.", 6))
			return key;
	}
	return "duration_s";
}

static int add_pictures(const struct vfm_report *r, struct vfm_buf *b, const json_t *numbers, struct vfm_err *err)
{
	const char *by = choose_key(r, numbers);
	struct ranked_record *list = vfm_calloc((size_t)r->good.n + 1, sizeof(*list));
	int n = 0, shown, rc = 0;

	for (int i = 0; i < r->good.n; i++) {
		list[n] = (struct ranked_record){.rec = r->good.rec[i], .at = i};
		n += vfm_rec_num(list[n].rec, by, &list[n].x);
	}
	qsort(list, (size_t)n, sizeof(*list), compare_ranked);
	shown = n < r->o.pictures ? n : (int)r->o.pictures;
	vfm_html_addf(b,
		"<h2>Pictures by %s</h2>\n<p class=dim>The middle frame of %d records that were kept, from the "
		"lowest value (0 %%) to the highest (100 %%), at equal steps of the number of records.</p>\n"
		"<div class=shots>\n",
		by, shown);
	for (int k = 0; k < shown && rc >= 0; k++) {
		double q = shown > 1 ? (double)k / (shown - 1) : 0.5;
		const struct ranked_record *at = &list[lrint(q * (n - 1))];
		char *note = vfm_strfmt("%.0f %% %s %.4g", 100 * q, by, at->x);

		rc = add_figure(r, b, at->rec, note, NULL, err);
		free(note);
	}
	vfm_buf_adds(b, "</div>\n");
	free(list);
	return rc;
}

static int add_pairs(const struct vfm_report *r, struct vfm_buf *b, struct vfm_err *err)
{
	if (!r->copies.n)
		return 0;
	vfm_html_addf(b,
		"<h2>Duplicates</h2>\n<p class=dim>%'lld records were dropped as duplicates; %d of them are shown, "
		"each next to the record that was kept.</p>\n<div class=grid>\n",
		(long long)r->copies.offered, r->copies.n);
	for (int i = 0; i < r->copies.n; i++) {
		vfm_buf_adds(b, "<div class=pair>");
		TRY(add_figure(r, b, r->originals[i], "kept", duplicate_of(r->copies.rec[i]), err));
		TRY(add_figure(r, b, r->copies.rec[i], "duplicate", NULL, err));
		vfm_buf_adds(b, "</div>\n");
	}
	vfm_buf_adds(b, "</div>\n");
	return 0;
}

/* ---- distributions ---- */

/* A table of {name: count}, each count raised by `more`: the `most` largest. */
static void add_count_table(struct vfm_buf *b, const char *title, const json_t *counts, int64_t more, size_t most)
{
	size_t n;
	struct vfm_word_count *list = vfm_word_counts_sort(counts, &n);

	vfm_buf_adds(b, "<div>");
	vfm_html_table(b, "%s|#records|", title);
	for (size_t i = 0; i < n && i < most; i++)
		vfm_html_row(b, "%s|#%'lld|=%f", list[i].word, (long long)(list[i].n + more),
			(double)(list[i].n + more) / (double)(list[0].n + more));
	vfm_html_table_end(b);
	vfm_buf_adds(b, "</div>\n");
	free(list);
}

static void add_distributions(const struct vfm_report *r, struct vfm_buf *b, const json_t *o)
{
	const char *key;
	json_t *v;

	vfm_buf_adds(b, "<h2>Dropped and failed</h2>\n");
	add_count_table(b, "reasons", json_object_get(o, "reasons"), 0, SIZE_MAX);
	vfm_buf_adds(b, "<h2>Distributions</h2>\n");
	vfm_report_distributions(b, r->numbers, "records");
	vfm_buf_adds(b, "<div class=grid>\n");
	json_object_foreach(json_object_get(o, "words"), key, v)
	{
		if (json_object_size(v) > 1)
			add_count_table(b, key, v, 0, SIZE_MAX);
	}
	vfm_buf_adds(b, "</div>\n");
}

/* ---- captions ---- */

/* Adds the beginning of a caption, which ends with a whole character. */
static void add_caption_text(struct vfm_buf *b, const char *text)
{
	size_t n = strnlen(text, CAPTION_BYTES);

	while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
		n--;
	vfm_html_addf(b, "%.*s", (int)n, text);
	if (text[n])
		vfm_html_addf(b, "&hellip; <span class=dim>(%zu bytes)</span>", strlen(text));
}

static void add_caption_samples(const struct vfm_report *r, struct vfm_buf *b)
{
	struct vfm_captions c;

	for (int i = 0; i < r->captions.n; i++) {
		const json_t *rec = r->captions.rec[i];

		vfm_html_row(b, "%s|", vfm_rec_str(rec, "id", "?"));
		for (int k = 0; vfm_captions_of(&c, rec, NULL) >= 0 && k < c.n; k++) {
			vfm_buf_adds(b, "<p dir=auto>");
			add_caption_text(b, c.list[k].value ? json_string_value(c.list[k].value) : "");
		}
	}
}

static void add_caption_section(const struct vfm_report *r, struct vfm_buf *b)
{
	if (!r->captioned)
		return;
	vfm_html_addf(b, "<h2>Captions of %'lld records</h2>\n", (long long)r->captioned);
	vfm_report_distributions(b, r->lengths, "captions");
	add_count_table(b, "most frequent words of 4 letters and more", r->words.left, r->words.pruned, SHOWN_WORDS);
	vfm_html_table(b, "record|captions");
	add_caption_samples(r, b);
	vfm_html_table_end(b);
}

/* ---- the page ---- */

static int build_page(struct vfm_report *r, struct vfm_buf *b, const json_t *o, struct vfm_err *err)
{
	long long records = json_integer_value(json_object_get(o, "records")),
		  dropped = json_integer_value(json_object_get(o, "dropped")),
		  failed = json_integer_value(json_object_get(o, "failed"));

	vfm_html_begin(b, r->o.title ? r->o.title : "Dataset", 0);
	vfm_buf_adds(b, "<div class=cards>\n");
	vfm_html_card(b, "records", "%'lld", records);
	vfm_html_card(b, "kept", "%'lld", records - dropped - failed);
	vfm_html_card(b, "dropped", "%'lld", dropped);
	vfm_html_card(b, "failed", "%'lld", failed);
	vfm_buf_adds(b, "</div>\n");
	TRY(add_pictures(r, b, json_object_get(o, "numbers"), err));
	add_distributions(r, b, o);
	TRY(add_pairs(r, b, err));
	add_caption_section(r, b);
	vfm_buf_adds(b, "<h2>Sources</h2>\n");
	add_count_table(b, "records by source", r->sources.left, r->sources.pruned, SHOWN_SOURCES);
	vfm_html_end(b);
	return 0;
}

int vfm_report_write(struct vfm_report *r, int n_files, char **files, const char *path, struct vfm_err *err)
{
	json_t *o = vfm_histogram_object(r->numbers, BINS);
	struct vfm_buf b = {0};
	int rc = find_originals(r, n_files, files, err);

	if (rc >= 0)
		rc = build_page(r, &b, o, err);
	if (rc >= 0)
		rc = vfm_write_file(path, b.data, b.len, err);
	vfm_buf_release(&b);
	json_decref(o);
	return rc;
}
