/* account.c - sums records and seconds by reason and source. */
#include "curate/report/account.h"

#include <stdlib.h>
#include <string.h>

#include "curate/report/account_impl.h"
#include "curate/report/text.h"
#include "data/record/record.h"
#include "io/input.h"

enum { MAX_SOURCES = 4096, STREAM = 100 /* random numbers of the first reason */ };
#define MAX_SECONDS 1e9 /* a longer duration is unknown */

/* ---- sources ---- */

static int count_levels(const char *path)
{
	int n = 0;

	for (const char *s = path; *s; s++)
		n += *s != '/' && (s == path || s[-1] == '/');
	return n;
}

/* Returns the bytes of a path's first `depth` levels, with the slash after them if there are more. */
static size_t cut_path(const char *path, int depth)
{
	const char *s = path;

	for (int n = 0; *s; s++) {
		n += *s != '/' && (s == path || s[-1] == '/');
		if (n > depth)
			break;
	}
	return (size_t)(s - path);
}

/* Finds a source, or adds it.  is_path: the name is a path, and may be shortened later.  Returns NULL if there are too
 * many. */
static struct report_source *get_source(struct report_account *a, const char *name, size_t len, bool is_path)
{
	char *key = vfm_strfmt("%d%.*s", is_path, (int)len, name);
	const json_t *place = json_object_get(a->source_places, key);
	struct report_source *s = place ? a->sources + json_integer_value(place) : NULL;

	if (!place && a->n_sources <= MAX_SOURCES) {
		json_object_set_new_nocheck(a->source_places, key, json_integer((json_int_t)a->n_sources));
		vfm_grow(&a->sources, &a->cap, a->n_sources + 1, sizeof(a->sources[0]));
		s = &a->sources[a->n_sources++];
		*s = (struct report_source){.name = vfm_strfmt("%.*s", (int)len, name), .is_path = is_path};
	}
	free(key);
	return s;
}

void report_amount_sum(struct report_amount *sum, const struct report_amount *x)
{
	sum->records += x->records;
	sum->images += x->images;
	sum->untimed += x->untimed;
	sum->seconds += x->seconds;
}

void report_source_merge(struct report_source *to, const struct report_source *from)
{
	report_amount_sum(&to->in, &from->in);
	report_amount_sum(&to->kept, &from->kept);
	for (int i = 0; i < VFM_REASONS; i++) {
		to->lost_s[i] += from->lost_s[i];
		to->lost[i] += from->lost[i];
	}
}

int report_sources_depth(const struct report_account *a)
{
	int deepest = 0;

	for (size_t i = 0; a->sources && i < a->n_sources; i++) {
		int levels = a->sources[i].is_path ? count_levels(a->sources[i].name) : 0;

		deepest = levels > deepest ? levels : deepest;
	}
	return deepest < a->depth ? deepest : a->depth;
}

size_t report_sources_count(const struct report_account *a, int depth)
{
	json_t *names = json_object();
	size_t n;

	for (size_t i = 0; i < a->n_sources; i++) {
		const struct report_source *s = &a->sources[i];
		size_t len = s->is_path ? cut_path(s->name, depth) : strlen(s->name);
		char *name = vfm_strfmt("%d%.*s", s->is_path, (int)len, s->name);

		if (s->in.records)
			json_object_set_new_nocheck(names, name, json_null());
		free(name);
	}
	n = json_object_size(names);
	json_decref(names);
	return n;
}

void report_sources_shorten(struct report_account *a, int depth)
{
	struct report_source *old = a->sources;
	size_t n = a->n_sources;

	a->depth = depth;
	a->sources = NULL;
	a->n_sources = a->cap = 0;
	json_object_clear(a->source_places);
	for (size_t i = 0; i < n; i++) {
		size_t len = old[i].is_path ? cut_path(old[i].name, depth) : strlen(old[i].name);

		struct report_source *to = get_source(a, old[i].name, len, old[i].is_path);

		if (to) /* always: there are no more sources than before */
			report_source_merge(to, &old[i]);
		free(old[i].name);
	}
	free(old);
}

/* Returns the source of a record: its key "source", or its file, or the tar that contains it. */
static struct report_source *find_source(struct report_account *a, const json_t *rec)
{
	const char *name = vfm_rec_str(rec, "source", NULL), *file = name ? NULL : report_source_of(rec);
	struct vfm_member_name member;
	struct report_source *s;
	size_t len;
	int depth;

	if (!name && !file)
		return &a->sources[0];
	name = name ? name : file;
	for (;;) {
		len = file && vfm_member_parse(&member, file) ? member.tar_len : strlen(name);
		len = file && cut_path(name, a->depth) < len ? cut_path(name, a->depth) : len;
		s = get_source(a, name, len, file != NULL);
		if (s)
			return s;
		depth = report_sources_depth(a);
		if (depth <= 1)
			return &a->sources[0];
		report_sources_shorten(a, depth - 1);
	}
}

/* ---- reasons ---- */

/* Returns the index of the reason of a record that is out. */
static int find_reason(struct report_account *a, const json_t *rec)
{
	const char *error = vfm_rec_str(rec, "error", NULL), *why = error ? error : vfm_rec_str(rec, "drop", "?");
	int i = vfm_reasons_add(&a->why, why, json_object_get(rec, "error") != NULL, 1, 0);

	if (i < a->n_reasons)
		return i;
	a->reasons[i] = vfm_calloc(1, sizeof(*a->reasons[i]));
	a->reasons[i]->why = &a->why.v[i];
	reservoir_init(&a->reasons[i]->sample, a->samples, (uint64_t)(STREAM + i));
	a->n_reasons = i + 1;
	return i;
}

/* ---- records ---- */

void report_account_init(struct report_account *a, int samples)
{
	*a = (struct report_account){.samples = samples, .depth = 1 << 20, .source_places = json_object()};
	get_source(a, "", 0, false);
}

void report_account_release(struct report_account *a)
{
	for (int i = 0; i < a->n_reasons; i++) {
		reservoir_release(&a->reasons[i]->sample);
		free(a->reasons[i]);
	}
	for (size_t i = 0; i < a->n_sources; i++)
		free(a->sources[i].name);
	free(a->sources);
	json_decref(a->source_places);
}

void report_account_add(struct report_account *a, const json_t *rec)
{
	struct report_amount one = {.records = 1, .images = report_is_image(rec)};
	struct report_source *source = find_source(a, rec);
	int reason;

	if (!vfm_rec_num(rec, "duration_s", &one.seconds) || one.seconds < 0 || one.seconds > MAX_SECONDS) {
		one.seconds = 0;
		one.untimed = !one.images;
	}
	report_amount_sum(&a->in, &one);
	report_amount_sum(&source->in, &one);
	if (!vfm_rec_is_out(rec)) {
		report_amount_sum(&a->kept, &one);
		report_amount_sum(&source->kept, &one);
		return;
	}
	reason = find_reason(a, rec);
	report_amount_sum(json_object_get(rec, "error") ? &a->failed : &a->dropped, &one);
	report_amount_sum(&a->reasons[reason]->lost, &one);
	source->lost[reason]++;
	source->lost_s[reason] += one.seconds;
	reservoir_offer(&a->reasons[reason]->sample, rec);
}
