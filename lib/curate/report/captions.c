/* captions.c - counts the words of captions, and shows samples. */
#include "curate/report/captions.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "curate/report/properties.h"
#include "data/record/caption.h"
#include "data/record/record.h"
#include "media/draw/html.h"

enum {
	WORDS = 4096,    /* that a prune leaves at most */
	WORD_BYTES = 64, /* longer words are cut */
	SHOWN_WORDS = 48,
	CAPTION_BYTES = 4000, /* of a sample that is shown */
};

void report_captions_init(struct report_captions *c, int64_t samples)
{
	*c = (struct report_captions){.lengths = vfm_histogram_new(), .words = json_object()};
	reservoir_init(&c->sample, samples, 3);
}

void report_captions_release(struct report_captions *c)
{
	vfm_histogram_free(c->lengths);
	json_decref(c->words);
	reservoir_release(&c->sample);
}

static void count_frequent(struct report_captions *c, const char *word, size_t len)
{
	char text[WORD_BYTES];
	struct vfm_word_count *list;
	size_t n;

	snprintf(text, sizeof(text), "%.*s", (int)(len < WORD_BYTES ? len : WORD_BYTES - 1), word);
	json_object_set_new_nocheck(
		c->words, text, json_integer(json_integer_value(json_object_get(c->words, text)) + 1));
	if (json_object_size(c->words) < 2 * WORDS)
		return;
	list = vfm_word_counts_sort(c->words, &n);
	c->pruned += list[WORDS].n;
	for (size_t i = n; i-- > 0;)
		if (list[i].n > list[WORDS].n)
			json_object_set_new_nocheck(c->words, list[i].word, json_integer(list[i].n - list[WORDS].n));
		else
			json_object_del(c->words, list[i].word);
	free(list);
}

/* Words of 4 letters or more, in lower case; bytes of other alphabets count as letters. */
static void add_caption_words(struct report_captions *c, const char *text)
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
				count_frequent(c, word, n);
			n = 0;
		}
		if (!*s)
			break;
	}
	length = json_pack("{s:I}", "words per caption", count);
	vfm_histogram_add(c->lengths, length);
	json_decref(length);
}

void report_captions_add(struct report_captions *c, const json_t *rec)
{
	struct vfm_captions of;
	bool any = false;

	if (!json_object_get(rec, "caption") || vfm_captions_of(&of, rec, NULL) < 0)
		return;
	for (int i = 0; i < of.n; i++) {
		const char *text = of.list[i].value ? json_string_value(of.list[i].value) : NULL;

		if (!text)
			continue;
		any = true;
		add_caption_words(c, text);
	}
	c->records += any;
	if (any)
		reservoir_offer(&c->sample, rec);
}

/* ---- the page ---- */

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

static void add_caption_samples(const struct report_captions *c, struct vfm_buf *b, const struct report_links *l)
{
	struct vfm_captions of;

	for (int i = 0; i < c->sample.n; i++) {
		const json_t *rec = c->sample.rec[i];

		vfm_buf_adds(b, "\n<tr><td>");
		report_add_source(b, l, rec);
		vfm_html_addf(b, "<br><b>%s</b>", vfm_rec_str(rec, "id", "?"));
		vfm_buf_adds(b, "<td>");
		for (int k = 0; vfm_captions_of(&of, rec, NULL) >= 0 && k < of.n; k++) {
			vfm_buf_adds(b, "<p dir=auto>");
			add_caption_text(b, of.list[k].value ? json_string_value(of.list[k].value) : "");
		}
	}
}

void report_captions_page(const struct report_captions *c, struct vfm_buf *b, struct report_pictures *p)
{
	const struct report_view view = {.id = "c", .numbers = c->lengths, .pictures = p};
	const char *key = vfm_histogram_key(c->lengths, 0);

	if (!c->records)
		return;
	vfm_html_addf(b, "<h2 id=captions>Captions of %'lld records</h2>\n", (long long)c->records);
	if (key && report_bars_vary(c->lengths, key)) {
		vfm_html_addf(b, "<section class=grid id=c0><div><h4>%s</h4>\n", key);
		report_bars_add(
			b, &(struct report_bars){.view = &view, .id = "c0", .key = key, .low = NAN, .high = NAN});
		vfm_buf_adds(b, "</div></section>\n");
	}
	report_count_table(b, "most frequent words of 4 letters and more", c->words, c->pruned, SHOWN_WORDS);
	if (!c->sample.n)
		return;
	vfm_html_table(b, "record|captions");
	add_caption_samples(c, b, p->links);
	vfm_html_table_end(b);
}
