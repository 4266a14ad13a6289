/* stage_input.c - reads input lines, passes headers on, takes this process's share, and detects duplicate ids.
 *
 * The first output line is the chain of the inputs and this stage's entry (provenance.h); a later header that adds to
 * the chain makes another.  fn, --part and the counts never see one; a damaged one becomes a record with "error".
 *
 * --part I/N keeps the records whose id hashes to I and sets "part":"I/N" in them; a later stage with the same N uses
 * it instead of the hash.
 */
#include "data/record/stage_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/record/provenance.h"
#include "data/record/sample_key.h"
#include "io/hash.h"

/* ---- records ---- */

void vfm_stage_set_error(json_t *rec, const char *msg)
{
	json_object_set_new(rec, "error", vfm_json_shown(msg));
}

void vfm_stage_drop(json_t *rec, const char *stage, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	int n = snprintf(text, sizeof(text), "%s: ", stage);

	va_start(ap, fmt);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	va_end(ap);
	json_object_set_new(rec, "drop", vfm_json_shown(text)); /* it may end within a character */
}

void vfm_stage_line_text(struct vfm_buf *text, const json_t *rec)
{
	void *first = json_object_iter((json_t *)rec);
	json_t *ordered = NULL;

	if (!first || strcmp(json_object_iter_key(first), "v")) {
		ordered = json_object();
		json_object_set_new(ordered, "v", json_integer(1));
		json_object_update(ordered, (json_t *)rec);
		rec = ordered;
	}
	vfm_json_text(text, rec, 0);
	vfm_buf_add(text, "\n", 1);
	json_decref(ordered);
}

json_t *vfm_stage_own_entries(const struct vfm_stage *s, const struct vfm_done *done)
{
	json_t *own = json_array(), *entry = vfm_provenance_entry(s->name, s->version, s->options, s->models), *was;
	size_t i;

	json_array_foreach(done ? vfm_done_chain(done) : NULL, i, was)
	{
		if (json_equal(json_object_get(was, "tool"), json_object_get(entry, "tool")) &&
			json_equal(json_object_get(was, "by"), json_object_get(entry, "by")))
			vfm_provenance_append(own, was);
	}
	vfm_provenance_append(own, entry);
	json_decref(entry);
	return own;
}

/* ---- shares ---- */

/* A value of "part" "I/N" with the same N determines the share; otherwise the hash of the key does. */
static bool is_my_share(struct vfm_stage_input *in, json_t *rec)
{
	const char *part = vfm_rec_str(rec, "part", ""), *slash = strchr(part, '/'), *key;
	uint64_t h;
	char *text;

	if (in->n_shares == 1)
		return true;
	if (slash && !strcmp(slash, strchr(in->share_text, '/')))
		return !strcmp(part, in->share_text);
	key = vfm_rec_key(rec, in->s->key);
	text = key ? NULL : json_dumps(rec, JSON_COMPACT | JSON_SORT_KEYS);
	h = key ? vfm_fnv64(key, strlen(key)) : text ? vfm_fnv64(text, strlen(text)) : 0;
	free(text);
	h ^= h >> 32; /* FNV's low bits alone are weak for small N */
	if ((int64_t)(h % (uint64_t)in->n_shares) != in->share)
		return false;
	json_object_set_new(rec, "part", json_string(in->share_text));
	return true;
}

/* ---- reading ---- */

static int open_next_file(struct vfm_stage_input *in, struct vfm_err *err)
{
	const struct vfm_stage *s = in->s;

	vfm_jsonl_close(&in->lines);
	in->lines = (struct vfm_jsonl){0};
	if (in->file >= (s->n_files ? s->n_files : 1))
		return 0;
	TRY(vfm_jsonl_open(&in->lines, s->n_files ? s->files[in->file] : "-", err));
	if (in->linked) /* in the place of stdin */
		in->lines.f = in->linked;
	in->file++;
	return 1;
}

/* Records with one id would write the same files, so only the first is processed.  The others are dropped if they
 * differ in nothing but the name of their source; or else they get an error. */
static int check_duplicate(struct vfm_stage_input *in, json_t *rec, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_sample_seen s = {.place = in->n_lines}, first;
	char hex[VFM_SHA256_HEX];
	struct vfm_err why;
	int rc;

	if (!in->s->unique_ids || !id || vfm_rec_is_out(rec))
		return 0;
	vfm_rec_digest("", rec, vfm_stage_source_keys, hex);
	hex[16] = 0;
	s.content = strtoull(hex, NULL, 16);
	vfm_sample_hash(id, s.hash);
	rc = vfm_sample_set_add(&in->ids, &s, &first, err);
	if (rc <= 0)
		return rc;
	if (first.content == s.content) {
		vfm_stage_drop(rec, in->s->name, "equal to an earlier record, but for its path");
		in->refused = true;
		return 0;
	}
	vfm_fail(&why, VFM_EINPUT,
		"input record %lld has the id '%.80s' too, but differs: give each record an id of its own; one record "
		"may hold several captions of a clip, by name",
		(long long)first.place, id);
	vfm_stage_set_error(rec, why.msg);
	in->refused = true;
	return 0;
}

/* Checks that a silent stage counts a record once: VFM_EUSAGE if it, or its source, is in an earlier file, which then
 * is of another stage of the run. */
static int check_counted_once(struct vfm_stage_input *in, const json_t *rec, struct vfm_err *err)
{
	const char *const ids[] = {vfm_rec_str(rec, "id", NULL), vfm_rec_str(rec, "parent", NULL)};
	struct vfm_sample_seen s = {.place = in->file - 1}, first;

	if (!in->s->silent || in->s->n_files < 2)
		return 0;
	for (int i = 0; i < 2; i++) {
		int rc;

		if (!ids[i])
			continue;
		vfm_sample_hash(ids[i], s.hash);
		rc = i ? vfm_sample_set_find(&in->ids, s.hash, &first, err)
		       : vfm_sample_set_add(&in->ids, &s, &first, err);
		TRY(rc);
		if (rc == 1 && first.place != s.place)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' has %s '%.80s' of '%s', which would count twice: give the files of one stage",
				in->lines.name, i ? "a part of the record" : "the record", ids[i],
				in->s->files[first.place]);
	}
	return 0;
}

/* Turns an unreadable line into a record with the error. */
static json_t *refuse_line(struct vfm_stage_input *in, struct vfm_err *err)
{
	json_t *rec = json_pack("{s:i}", "v", 1);

	vfm_stage_set_error(rec, err->msg);
	*err = (struct vfm_err){0};
	in->refused = true;
	return rec;
}

static int read_record(struct vfm_stage_input *in, json_t **rec, struct vfm_err *err)
{
	const struct vfm_jsonl_line *line = in->given;

	if (!in->is_given)
		return in->lines.f ? vfm_jsonl_next(&in->lines, rec, err) : 0;
	in->given = NULL;
	if (!line)
		return 0;
	if (line->too_long)
		return vfm_jsonl_too_long(&in->lines, line->line, line->len, err);
	return vfm_jsonl_parse(&in->lines, line->text, line->len, rec, err);
}

/* Reads a line of the inputs: 1 = *rec is set, 0 = the end of the last one, or of the line that was given. */
static int read_line(struct vfm_stage_input *in, json_t **rec, struct vfm_err *err)
{
	const struct vfm_stage *s = in->s;
	int rc = 0;

	*rec = NULL;
	while (rc == 0 && !in->at_last_end) {
		if (s->next)
			rc = s->next(s->source, rec, err);
		else
			rc = read_record(in, rec, err);
		if (rc == 1 && !json_is_object(*rec)) {
			json_decref(*rec);
			rc = vfm_fail(err, VFM_EINPUT, "%s:%lld: expected a JSON object",
				s->next ? "input" : in->lines.name, (long long)in->lines.line);
		}
		if (rc == VFM_EINPUT) {
			*rec = refuse_line(in, err);
			rc = 1;
		}
		if (rc == 0 && in->is_given)
			return 0;
		if (rc == 0) {
			int opened = s->next ? 0 : open_next_file(in, err);

			if (opened < 0)
				return opened;
			in->at_last_end = opened == 0;
		}
	}
	return rc;
}

/* Merges the chain of a header.  One that is damaged becomes a record with the error, as an unreadable line does. */
static json_t *take_header(struct vfm_stage_input *in, json_t *rec)
{
	struct vfm_err err = {0};
	int rc = vfm_provenance_read(in->chain, rec, &err);

	json_decref(rec);
	if (rc < 0) {
		vfm_err_context(&err, "%s:%lld", in->lines.name ? in->lines.name : "input", (long long)in->lines.line);
		return refuse_line(in, &err);
	}
	in->header_due |= rc == 1;
	return NULL;
}

/* Makes the record the header of the chain so far, unless the stage is silent. */
static int make_header(struct vfm_stage_input *in, struct vfm_stage_record *r, struct vfm_err *err)
{
	json_t *chain = json_copy(in->chain), *entry, *header;
	size_t i;
	int rc = 0;

	json_array_foreach(in->own, i, entry) vfm_provenance_append(chain, entry);
	if (in->s->on_chain)
		rc = in->s->on_chain(chain, in->s->ctx, err);
	r->is_header = rc == 0 && !in->s->silent;
	if (r->is_header) {
		header = vfm_provenance_header(chain);
		vfm_stage_line_text(&r->text, header);
		json_decref(header);
	}
	json_decref(chain);
	in->header_due = false;
	return rc;
}

/* Reads a record of this share, past headers. */
static int read_share(struct vfm_stage_input *in, json_t **rec, struct vfm_err *err)
{
	int rc;

	for (;;) {
		in->refused = false;
		rc = read_line(in, rec, err);
		if (rc <= 0)
			return rc;
		if (vfm_provenance_is_header(*rec)) {
			*rec = take_header(in, *rec);
			if (!*rec)
				continue;
		}
		in->n_lines++;
		if (is_my_share(in, *rec)) {
			rc = check_duplicate(in, *rec, err);
			if (rc == 0)
				rc = check_counted_once(in, *rec, err);
			if (rc < 0) {
				json_decref(*rec);
				*rec = NULL;
				return rc;
			}
			return 1;
		}
		in->other_shares++;
		json_decref(*rec);
		*rec = NULL;
	}
}

/* Fills a record: 1 = with a record, or with the header that must precede it; 0 = end. */
static int fill_line(struct vfm_stage_input *in, struct vfm_stage_record *r, struct vfm_err *err)
{
	int rc = 1;

	r->rec = in->held;
	in->held = NULL;
	if (!r->rec)
		rc = read_share(in, &r->rec, err);
	r->is_refused = in->refused;
	if (rc < 0 || !in->header_due || (rc == 0 && !in->at_last_end)) /* another header may follow */
		return rc;
	in->held = r->rec;
	r->rec = NULL;
	r->is_refused = false;
	TRY(make_header(in, r, err));
	return r->is_header ? 1 : fill_line(in, r, err); /* silent: the record that is held */
}

int vfm_stage_input_next(struct vfm_stage_input *in, struct vfm_stage_record *r, struct vfm_err *err)
{
	int rc;

	for (;;) {
		*r = (struct vfm_stage_record){0};
		rc = fill_line(in, r, err);
		if (rc == 0 && in->link)
			return vfm_stage_link_end(in->link, err);
		if (rc <= 0 || !in->link)
			return rc;
		rc = vfm_stage_link_read(in->link, r->rec, in->lines.line, err);
		r->place = in->link->n_read;
		r->hash = in->link->hash;
		if (rc == 1)
			return 1;
		json_decref(r->rec);
		vfm_buf_release(&r->text);
		if (rc < 0)
			return rc;
	}
}

/* ---- lines of the caller ---- */

void vfm_stage_input_give(struct vfm_stage_input *in, const struct vfm_jsonl_block *b, size_t i)
{
	in->given = b ? &b->lines[i] : NULL;
	in->at_last_end = !b;
	if (b)
		in->lines = (struct vfm_jsonl){.name = b->name, .line = b->lines[i].line, .max_line = b->max_line};
}

bool vfm_stage_input_accept(struct vfm_stage_input *in, const struct vfm_stage_output *o)
{
	struct vfm_sample_seen s = {{o->hash[0], o->hash[1]}, in->n_lines + 1, o->content}, first;

	if (in->header_due)
		return false;
	/* a failure occurs again where it can be reported */
	if (in->s->unique_ids && !o->is_passed && vfm_sample_set_add(&in->ids, &s, &first, NULL) != 0)
		return false;
	in->n_lines++;
	return true;
}

/* ---- open and close ---- */

int vfm_stage_input_open(struct vfm_stage_input *in, struct vfm_err *err)
{
	in->chain = json_array();
	in->header_due = true;
	return in->s->next || in->is_given ? 0 : open_next_file(in, err);
}

void vfm_stage_input_close(struct vfm_stage_input *in)
{
	vfm_jsonl_close(&in->lines);
	if (in->linked)
		fclose(in->linked);
	json_decref(in->chain);
	json_decref(in->own);
	json_decref(in->held);
	vfm_sample_set_release(&in->ids);
}
