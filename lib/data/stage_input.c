#include "data/stage_input.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "data/index.h"
#include "data/provenance.h"

/* ---- records ---- */

void vfm_stage_set_error(json_t *rec, const char *msg)
{
	json_t *text = json_string(msg);
	char *shown;

	if (!text) { /* the message quotes bytes that are no UTF-8 */
		shown = vfm_strdup(msg);
		for (char *s = shown; *s; s++)
			if ((unsigned char)*s >= 0x80)
				*s = '?';
		text = json_string(shown);
		free(shown);
	}
	json_object_set_new(rec, "error", text);
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

const char *vfm_stage_key(const struct vfm_stage *s, const json_t *rec)
{
	const char *key = s->key ? vfm_rec_str(rec, s->key, NULL) : NULL;

	if (!key)
		key = vfm_rec_str(rec, "id", NULL);
	return key ? key : vfm_rec_str(rec, "src", NULL);
}

/* ---- parts ---- */

/* A mark "I/N" with the same N determines the part; otherwise the hash of the key does. */
static bool is_my_part(struct vfm_stage_input *in, json_t *rec)
{
	const char *mark = vfm_rec_str(rec, "part", ""), *slash = strchr(mark, '/'), *key;
	uint64_t h;
	char *text;

	if (in->n_parts == 1)
		return true;
	if (slash && !strcmp(slash, strchr(in->mark, '/')))
		return !strcmp(mark, in->mark);
	key = vfm_stage_key(in->s, rec);
	text = key ? NULL : json_dumps(rec, JSON_COMPACT | JSON_SORT_KEYS);
	h = key ? vfm_fnv64(key, strlen(key)) : text ? vfm_fnv64(text, strlen(text)) : 0;
	free(text);
	h ^= h >> 32; /* FNV's low bits alone are weak for small N */
	if ((int64_t)(h % (uint64_t)in->n_parts) != in->part)
		return false;
	json_object_set_new(rec, "part", json_string(in->mark));
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

/* The keys in which records of one id may differ. */
static const char *const source_keys[] = {"v", "by", "part", "src", "origin", NULL};

static const struct vfm_sample_seen *add_id(struct vfm_stage_input *in, const char *id, char *hex)
{
	hex[16] = 0;
	return vfm_sample_set_add(
		&in->ids, (struct vfm_sample_seen){vfm_sample_id(id), in->n_lines, strtoull(hex, NULL, 16)});
}

/* Of the records with one id, which would write the same files, the first goes on.  The others are dropped if they
 * differ in nothing but the name of their source; or else they get an error. */
static void check_duplicate(struct vfm_stage_input *in, json_t *rec)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	const struct vfm_sample_seen *first;
	char hex[VFM_SHA256_HEX];
	struct vfm_err err;

	if (!in->s->unique_ids || !id || vfm_rec_is_out(rec))
		return;
	vfm_rec_digest("", rec, source_keys, hex);
	first = add_id(in, id, hex);
	if (!first)
		return;
	if (first->content == strtoull(hex, NULL, 16)) {
		vfm_stage_drop(rec, in->s->name, "the same as input record %lld", (long long)first->place);
		return;
	}
	vfm_fail(&err, VFM_EINPUT,
		"input record %lld has the id '%.80s' too, but differs: give each record an id of its own; several "
		"captions of a clip stand in one record, by name",
		(long long)first->place, id);
	vfm_stage_set_error(rec, err.msg);
	in->n_refused++;
}

/* Turns an unreadable line into a record with the error. */
static json_t *refuse_line(struct vfm_stage_input *in, struct vfm_err *err)
{
	json_t *rec = json_pack("{s:i}", "v", 1);

	vfm_stage_set_error(rec, err->msg);
	*err = (struct vfm_err){0};
	in->n_refused++;
	return rec;
}

static bool is_first(const struct vfm_record_text *t, const char *key)
{
	return t->n > 1 && t->v[1].key_len == strlen(key) && !memcmp(t->text + t->v[1].key, key, t->v[1].key_len);
}

/* Whether the line can be worked on as text: a record, no header, that nothing is to be said against. */
static bool take_record_text(struct vfm_stage_input *in, const char *text, size_t len)
{
	struct vfm_record_text *t = &in->text;
	const struct vfm_text_value *by, *clip;
	const struct vfm_sample_seen *first;
	char hex[VFM_SHA256_HEX], id[256];
	const char *s;
	size_t n;

	if (!in->s->text_fn || in->link || in->n_parts > 1 || in->header_due || !vfm_record_text_read(t, text, len) ||
		!is_first(t, "v") || t->v[1].len != 1 || text[t->v[1].at] != '1' ||
		vfm_record_text_get(t, "provenance"))
		return false;
	if (vfm_record_text_get(t, "error") || vfm_record_text_get(t, "drop"))
		return true;
	by = vfm_record_text_get(t, "by");
	clip = by ? vfm_record_text_in(t, by, "clip") : NULL;
	s = vfm_record_text_str(t, vfm_record_text_get(t, "id"), &n);
	if (!s || n >= sizeof(id) || vfm_record_text_get(t, in->s->name) ||
		(by && (by->type != VFM_TEXT_OBJECT || vfm_record_text_in(t, by, in->s->name))) ||
		(clip && clip->escaped))
		return false;
	memcpy(id, s, n);
	id[n] = 0;
	if (!in->s->unique_ids)
		return true;
	in->n_lines++; /* the place of this record */
	vfm_record_text_digest(t, "", source_keys, hex);
	first = add_id(in, id, hex);
	in->n_lines--;
	return !first;
}

/* Reads a line: *rec or *text is set. */
static int read_record(
	struct vfm_stage_input *in, json_t **rec, struct vfm_record_text **record_text, struct vfm_err *err)
{
	const char *text;
	size_t len;
	int rc;

	if (!in->lines.f)
		return 0;
	rc = vfm_jsonl_text(&in->lines, &text, &len, err);
	if (rc != 1)
		return rc;
	if (take_record_text(in, text, len)) {
		*record_text = &in->text;
		return 1;
	}
	return vfm_jsonl_parse(&in->lines, text, len, rec, err);
}

/* Reads a line of the inputs: 1 = *rec or *text is set, 0 = the end of the last one. */
static int read_line(struct vfm_stage_input *in, json_t **rec, struct vfm_record_text **text, struct vfm_err *err)
{
	const struct vfm_stage *s = in->s;
	int rc = 0;

	*rec = NULL;
	*text = NULL;
	while (rc == 0 && !in->at_last_end) {
		if (s->next)
			rc = s->next(s->source, rec, err);
		else
			rc = read_record(in, rec, text, err);
		if (rc == 1 && !*text && !json_is_object(*rec)) {
			json_decref(*rec);
			rc = vfm_fail(err, VFM_EINPUT, "%s:%lld: expected a JSON object",
				s->next ? "input" : in->lines.name, (long long)in->lines.line);
		}
		if (rc == VFM_EINPUT) {
			*rec = refuse_line(in, err);
			rc = 1;
		}
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

/* Makes the line the header of the chain so far, unless the stage is silent. */
static int make_header(struct vfm_stage_input *in, struct vfm_stage_line *line, struct vfm_err *err)
{
	json_t *chain = json_copy(in->chain), *entry, *header;
	size_t i;
	int rc = 0;

	json_array_foreach(in->own, i, entry) vfm_provenance_append(chain, entry);
	if (in->s->on_chain)
		rc = in->s->on_chain(chain, in->s->ctx, err);
	line->is_header = rc == 0 && !in->s->silent;
	if (line->is_header) {
		header = vfm_provenance_header(chain);
		vfm_stage_line_text(&line->text, header);
		json_decref(header);
	}
	json_decref(chain);
	in->header_due = false;
	return rc;
}

/* Reads a record of this part, past headers. */
static int read_part(struct vfm_stage_input *in, json_t **rec, struct vfm_record_text **text, struct vfm_err *err)
{
	int rc;

	for (;;) {
		rc = read_line(in, rec, text, err);
		if (rc <= 0)
			return rc;
		if (*text) {
			in->n_lines++;
			return 1;
		}
		if (vfm_provenance_is_header(*rec)) {
			*rec = take_header(in, *rec);
			if (!*rec)
				continue;
		}
		in->n_lines++;
		if (is_my_part(in, *rec)) {
			check_duplicate(in, *rec);
			return 1;
		}
		in->other_parts++;
		json_decref(*rec);
		*rec = NULL;
	}
}

/* Fills a line: 1 = with a record, or with the header that must precede it; 0 = end. */
static int fill_line(struct vfm_stage_input *in, struct vfm_stage_line *line, struct vfm_err *err)
{
	int rc = 1;

	line->rec = in->held;
	in->held = NULL;
	if (!line->rec)
		rc = read_part(in, &line->rec, &line->text_rec, err);
	if (rc < 0 || !in->header_due) /* always without text_rec if one is due */
		return rc;
	in->held = line->rec;
	line->rec = NULL;
	TRY(make_header(in, line, err));
	return line->is_header ? 1 : fill_line(in, line, err); /* silent: the record that is held */
}

int vfm_stage_input_next(struct vfm_stage_input *in, struct vfm_stage_line *line, struct vfm_err *err)
{
	int rc;

	for (;;) {
		*line = (struct vfm_stage_line){0};
		rc = fill_line(in, line, err);
		if (rc == 0 && in->link)
			return vfm_stage_link_end(in->link, err);
		if (rc <= 0 || !in->link)
			return rc;
		rc = vfm_stage_link_read(in->link, line->rec, in->lines.line, err);
		line->place = in->link->n_read;
		line->hash = in->link->hash;
		if (rc == 1)
			return 1;
		json_decref(line->rec);
		vfm_buf_release(&line->text);
		if (rc < 0)
			return rc;
	}
}

/* ---- open and close ---- */

int vfm_stage_input_open(struct vfm_stage_input *in, struct vfm_err *err)
{
	in->chain = json_array();
	in->header_due = true;
	return in->s->next ? 0 : open_next_file(in, err);
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
	vfm_record_text_release(&in->text);
}
