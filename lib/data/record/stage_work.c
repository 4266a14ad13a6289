/* stage_work.c - runs the stage's function on a record, or takes the result of an earlier run with the same
 * fingerprint.
 *
 * An output record gets the fingerprint by.STAGE, a hash of
 *   - the stage, its version, options and models
 *   - the input record without "v", "part", "ahead" and "by"; by.clip, the contents of the clip's file, is included
 * A record of the --done FILE with the same id and fingerprint, without "error", is copied; its "part" becomes that of
 * this run.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "data/record/ahead.h"
#include "data/record/stage_impl.h"
#include "io/hash.h"

struct vfm_stage_out {
	json_t **rec;
	size_t n, cap;
};

/* ---- records ---- */

void vfm_stage_emit(struct vfm_stage_out *out, json_t *rec)
{
	vfm_grow(&out->rec, &out->cap, out->n + 1, sizeof(out->rec[0]));
	out->rec[out->n++] = rec;
}

static void out_clear(struct vfm_stage_out *out)
{
	for (size_t i = 0; i < out->n; i++)
		json_decref(out->rec[i]);
	free(out->rec);
	*out = (struct vfm_stage_out){0};
}

/* Makes a record an error, with the keys that identify it. */
static void refuse_long_record(json_t *rec, size_t bytes)
{
	static const char *const keys[] = {"v", "id", "src", "key", "part", "by"};
	json_t *brief = json_object();
	char *why = vfm_strfmt("the record has %zu bytes, at most %zu are allowed", bytes, VFM_JSONL_LINE);

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		json_object_set(brief, keys[i], json_object_get(rec, keys[i]));
	vfm_stage_set_error(brief, why);
	json_object_clear(rec);
	json_object_update(rec, brief);
	json_decref(brief);
	free(why);
}

/* Appends the line of a record.  The readers of records would refuse one that is too long. */
static void add_line(const struct vfm_stage_work *w, struct vfm_stage_record *r, json_t *rec)
{
	size_t start = r->text.len;

	if (w->is_last || vfm_rec_is_out(rec)) /* no stage takes the results */
		json_object_del(rec, VFM_AHEAD_KEY);
	vfm_stage_line_text(&r->text, rec);
	if (r->text.len - start > VFM_JSONL_LINE) {
		refuse_long_record(rec, r->text.len - start);
		r->text.len = start;
		vfm_stage_line_text(&r->text, rec);
	}
	r->counts.written++;
}

/* ---- fingerprints ---- */

/* The stage fingerprint of the outputs for an input record; see stage.h. */
static void compute_fingerprint(
	const struct vfm_stage_work *w, const json_t *rec, char fingerprint[VFM_FINGERPRINT_TEXT])
{
	const struct vfm_stage *s = w->stage;
	const char *clip = vfm_done_fingerprint(rec, "clip"); /* the record does not tell the quality of its file */
	char hex[VFM_SHA256_HEX], *head;
	json_t *read = NULL;

	if (s->reads) {
		read = json_object();
		for (const char *const *key = s->reads; *key; key++)
			json_object_set(read, *key, json_object_get(rec, *key));
	}
	head = vfm_stage_fingerprint_head(s, w->settings, clip);
	vfm_rec_digest(head, read ? read : rec, vfm_stage_uncovered_keys, hex);
	snprintf(fingerprint, VFM_FINGERPRINT_TEXT, "%.*s", VFM_FINGERPRINT_TEXT - 1, hex);
	json_decref(read);
	free(head);
}

static void set_fingerprint(json_t *rec, const char *stage, const char *fingerprint)
{
	json_t *by = json_object_get(rec, "by");

	if (!json_is_object(by)) {
		by = json_object();
		json_object_set_new(rec, "by", by);
	}
	json_object_set_new(by, stage, json_string(fingerprint));
}

/* ---- counts ---- */

static void count_record(struct vfm_stage_counts *c, const json_t *rec)
{
	if (json_object_get(rec, "error"))
		c->failed++;
	else if (json_object_get(rec, "drop"))
		c->dropped++;
	else
		c->out++;
}

const char *vfm_stage_reason(const struct vfm_stage *s, const char *drop)
{
	size_t n = strlen(s->name);

	return !strncmp(drop, s->name, n) && !strncmp(drop + n, ": ", 2) ? drop + n + 2 : drop;
}

/* Counts the seconds of an output of this stage, and its reason. */
static void count_output(const struct vfm_stage_work *w, struct vfm_stage_record *r, const json_t *rec)
{
	const char *error = vfm_rec_str(rec, "error", NULL), *drop = vfm_rec_str(rec, "drop", "?");
	double s = vfm_rec_duration(rec);

	if (!vfm_rec_is_out(rec)) {
		r->counts.kept++;
		r->counts.kept_s += s;
		r->counts.untimed += s <= 0 && strcmp(vfm_rec_str(rec, "kind", ""), "image") != 0;
		return;
	}
	if (!json_object_get(rec, "error"))
		r->counts.dropped_s += s;
	if (!r->reasons)
		r->reasons = vfm_calloc(1, sizeof(*r->reasons));
	vfm_reasons_add(r->reasons, error ? error : vfm_stage_reason(w->stage, drop),
		json_object_get(rec, "error") != NULL, 1, s);
}

/* Counts the outputs of an input.  An input with several counts by its best output. */
static void count_outputs(const struct vfm_stage_work *w, struct vfm_stage_record *r, json_t *const *recs, size_t n)
{
	const json_t *best = recs[0];
	double missing = r->counts.in_s;

	for (size_t i = 0; i < n; i++) {
		count_output(w, r, recs[i]);
		missing -= vfm_rec_duration(recs[i]);
		if (vfm_rec_is_out(best))
			best = recs[i];
	}
	count_record(&r->counts, best);
	r->counts.dropped_here += json_object_get(best, "drop") && !json_object_get(best, "error");
	if (w->stage->one_to_many && missing > 0)
		r->counts.missing_s += missing;
}

/* ---- finished records ---- */

/* Copies what the stage set in a finished record into the record, and writes that. */
static void add_finished(
	const struct vfm_stage_work *w, struct vfm_stage_record *r, const char *line, const char *fingerprint)
{
	const struct vfm_stage *s = w->stage;
	json_t *was = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL); /* vfm_done_copy has parsed it before */

	for (const char *const *key = s->sets; *key; key++) {
		json_object_del(r->rec, *key);
		json_object_set(r->rec, *key, json_object_get(was, *key));
	}
	if (json_object_get(was, "drop"))
		json_object_set(r->rec, "drop", json_object_get(was, "drop"));
	set_fingerprint(r->rec, s->name, fingerprint);
	json_decref(vfm_ahead_take(r->rec, s->name)); /* unused */
	add_line(w, r, r->rec);
	json_decref(was);
}

/* Adds finished lines as they are, but for their share: they may come from a run with another number of shares. */
static void add_finished_lines(
	const struct vfm_stage_work *w, struct vfm_stage_record *r, const char *lines, size_t bytes)
{
	const char *end = lines + bytes, *next;
	struct vfm_stage_out out = {0};
	json_t *rec;

	for (; lines < end; lines = next) {
		next = memchr(lines, '\n', (size_t)(end - lines));
		next = next ? next + 1 : end;
		rec = json_loadb(lines, (size_t)(next - lines), 0, NULL); /* vfm_done_open has parsed it before */
		if (!rec ||
			(!json_object_get(rec, VFM_AHEAD_KEY) &&
				(!w->share || !strcmp(vfm_rec_str(rec, "part", ""), w->share)))) {
			vfm_buf_add(&r->text, lines, (size_t)(next - lines));
		} else {
			json_object_del(rec, VFM_AHEAD_KEY); /* of a run before */
			if (w->share)
				json_object_set_new(rec, "part", json_string(w->share));
			vfm_stage_line_text(&r->text, rec);
		}
		r->counts.written++;
		if (rec)
			vfm_stage_emit(&out, rec);
	}
	if (out.n)
		count_outputs(w, r, out.rec, out.n);
	out_clear(&out);
}

static int copy_finished(const struct vfm_stage_work *w, struct vfm_stage_record *r, const char *fingerprint,
	bool *copied, struct vfm_err *err)
{
	const char *key = vfm_rec_key(r->rec, w->stage->key);
	struct vfm_done_found found;
	struct vfm_buf text = {0};

	*copied = false;
	if (!w->done || !key)
		return 0;
	TRY(vfm_done_copy(w->done, key, fingerprint, &text, &found, err));
	r->counts.stale += found.stale;
	if (!found.lines)
		return 0;
	*copied = true;
	r->counts.copied++;
	if (w->stage->sets) {
		add_finished(w, r, text.data, fingerprint);
		count_outputs(w, r, &r->rec, 1);
	} else {
		add_finished_lines(w, r, text.data, text.len);
	}
	vfm_buf_release(&text);
	return 0;
}

/* ---- a record ---- */

/* Passes on a record with "error" or "drop". */
static void pass_on(const struct vfm_stage_work *w, struct vfm_stage_record *r, int worker)
{
	const struct vfm_stage *s = w->stage;
	struct vfm_stage_out out = {0};

	if (r->is_refused && s->on_refused)
		s->on_refused(r->rec, s->ctx);
	if (r->is_refused)
		count_outputs(w, r, &r->rec, 1);
	else
		count_record(&r->counts, r->rec);
	r->counts.failed_here += r->is_refused && json_object_get(r->rec, "error");
	if (s->sees_all)
		r->rc = s->fn(r->rec, &out, s->ctx, worker, &r->err);
	if (r->rc == VFM_EINPUT)
		r->rc = 0;
	if (!s->silent)
		add_line(w, r, r->rec);
}

/* Writes what became of a record: itself, or what the stage emitted for it. */
static void add_outputs(const struct vfm_stage_work *w, struct vfm_stage_record *r, const struct vfm_stage_out *out,
	const char *fingerprint)
{
	json_t **recs = out->n ? out->rec : &r->rec;
	size_t n = out->n ? out->n : 1;
	bool had_error = false, has_error = false;

	for (size_t i = 0; i < n && !w->stage->silent; i++) {
		had_error |= json_object_get(recs[i], "error") != NULL;
		if (!json_object_get(recs[i], "error"))
			set_fingerprint(recs[i], w->stage->name, fingerprint);
		add_line(w, r, recs[i]);
		has_error |= json_object_get(recs[i], "error") != NULL;
	}
	count_outputs(w, r, recs, n);
	if (!had_error && has_error && r->counts.failed) /* too long */
		r->counts.failed_here++;
}

/* Ends the work on a record that the stage, or what precedes it, left with `rc` and `err`. */
static void end_work(const struct vfm_stage_work *w, struct vfm_stage_record *r, struct vfm_stage_out *out, int rc,
	const struct vfm_err *err)
{
	if (rc < VFM_EINPUT) {
		r->rc = rc;
		r->err = *err;
		out_clear(out);
		return;
	}
	if (rc == VFM_EINPUT) {
		vfm_stage_set_error(r->rec, err->msg[0] ? err->msg : "failed");
		r->counts.failed_here++;
		out_clear(out);
	}
	add_outputs(w, r, out, r->fingerprint);
	out_clear(out);
}

/* Does all that needs no call of the stage; otherwise sets is_due. */
static void begin_work(const struct vfm_stage_work *w, struct vfm_stage_record *r, int worker)
{
	struct vfm_err err = {0};
	bool copied = false;
	int rc;

	r->counts.in++;
	r->is_passed = vfm_rec_is_out(r->rec) && !r->is_refused;
	r->counts.in_s = r->is_passed ? 0 : vfm_rec_duration(r->rec);
	if (w->link && w->link->index == 0)
		r->counts.in_bytes = vfm_stage_link_bytes(r->rec);
	if (vfm_rec_is_out(r->rec)) {
		pass_on(w, r, worker);
		return;
	}
	if (!w->stage->silent)
		compute_fingerprint(w, r->rec, r->fingerprint);
	rc = vfm_rec_check_version(r->rec, &err);
	if (rc == 0)
		rc = copy_finished(w, r, r->fingerprint, &copied, &err);
	r->is_due = rc == 0 && !copied;
	if (rc < 0)
		end_work(w, r, &(struct vfm_stage_out){0}, rc, &err);
}

static void work_on_record(const struct vfm_stage_work *w, struct vfm_stage_record *r, int worker)
{
	struct vfm_stage_out out = {0};
	struct vfm_err err = {0};
	int rc;

	begin_work(w, r, worker);
	if (!r->is_due)
		return;
	rc = w->stage->fn(r->rec, &out, w->stage->ctx, worker, &err);
	end_work(w, r, &out, rc, &err);
}

static void work_on_batch(const struct vfm_stage_work *w, struct vfm_stage_record *const *r, int n, int worker)
{
	struct vfm_stage_item *items = vfm_calloc((size_t)n, sizeof(*items));
	int n_due = 0;

	for (int i = 0; i < n; i++) {
		if (!r[i]->is_header)
			begin_work(w, r[i], worker);
		if (r[i]->is_due)
			items[n_due++].rec = r[i]->rec;
	}
	if (n_due)
		w->stage->batch(items, n_due, w->stage->ctx, worker);
	for (int i = 0, k = 0; i < n; i++) {
		if (!r[i]->is_due)
			continue;
		end_work(w, r[i], &(struct vfm_stage_out){0}, items[k].rc, &items[k].err);
		k++;
	}
	free(items);
}

void vfm_stage_work_on(const struct vfm_stage_work *w, struct vfm_stage_record *const *r, int n, int worker)
{
	double start_s;
	int64_t bytes = 0;

	if (!w->stage->batch && r[0]->is_header)
		return;
	if (w->link)
		vfm_stage_link_work(w->link);
	start_s = vfm_now();
	if (w->stage->batch)
		work_on_batch(w, r, n, worker);
	else
		work_on_record(w, r[0], worker);
	r[0]->counts.work_s = vfm_now() - start_s;
	for (int i = 0; i < n; i++)
		bytes += r[i]->counts.in_bytes;
	if (w->link)
		vfm_stage_link_rest(w->link, n, bytes, r[0]->counts.work_s);
}
