/* dedup_text.c - works on blocks of lines in parallel without parsing them to JSON values. */
#include "curate/dedup/dedup_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "curate/dedup/dedup.h"
#include "curate/dedup/record_text.h"
#include "data/record/done.h"
#include "data/record/provenance.h"
#include "data/record/sample_key.h"
#include "io/json.h"

#define BLOCK_BYTES (1 << 20) /* of the records that a thread works on, about */

struct text_block {
	struct vfm_jsonl_block lines;
	struct vfm_stage_output *output; /* [lines.n] */
	size_t cap;
	struct vfm_buf out;
	struct vfm_record_text text;
	struct vfm_buf keys;
};

struct text_lines {
	const struct vfm_stage *s;
	char *settings;
	struct vfm_stage_loop *loop;
	struct vfm_dedup_files files;
};

/* ---- files ---- */

int vfm_dedup_files_read(struct vfm_dedup_files *f, struct vfm_jsonl_block *b, struct vfm_err *err)
{
	int rc = 0;

	for (;;) {
		if (f->in.f)
			rc = vfm_jsonl_block_read(&f->in, b, BLOCK_BYTES, err);
		if (rc != 0 || f->n_opened == f->n)
			break;
		vfm_jsonl_close(&f->in);
		TRY(vfm_jsonl_open(&f->in, f->paths[f->n_opened++], err));
	}
	b->name = f->paths[f->n_opened - 1]; /* stays when the next file is opened */
	return rc;
}

void vfm_dedup_files_close(struct vfm_dedup_files *f)
{
	vfm_jsonl_close(&f->in);
}

/* ---- records ---- */

static bool is_first(const struct vfm_record_text *t, const char *key)
{
	return t->n > 1 && t->v[1].key_len == strlen(key) && !memcmp(t->text + t->v[1].key, key, t->v[1].key_len);
}

/* Returns whether the line can be worked on as text: a valid record, no header. */
static bool is_record_text(const struct vfm_record_text *t)
{
	return is_first(t, "v") && t->v[1].len == 1 && t->text[t->v[1].at] == '1' &&
		!vfm_record_text_get(t, "provenance");
}

/* Sets the hashes of a record that the stage works on.  Returns false if they cannot be told from the text, or if the
 * stage has worked on it before. */
static bool identify_text(const struct vfm_stage *s, struct vfm_record_text *t, struct vfm_stage_output *o)
{
	const struct vfm_text_value *by = vfm_record_text_get(t, "by"),
				    *clip = by ? vfm_record_text_in(t, by, "clip") : NULL;
	char hex[VFM_SHA256_HEX], id[256];
	const char *name;
	size_t n;

	name = vfm_record_text_str(t, vfm_record_text_get(t, "id"), &n);
	if (!name || n >= sizeof(id) || vfm_record_text_get(t, s->name) ||
		(by && (by->type != VFM_TEXT_OBJECT || vfm_record_text_in(t, by, s->name))) || (clip && clip->escaped))
		return false;
	memcpy(id, name, n);
	id[n] = 0;
	vfm_record_text_digest(t, "", vfm_stage_source_keys, hex);
	hex[16] = 0;
	vfm_sample_hash(id, o->hash);
	o->content = strtoull(hex, NULL, 16);
	return true;
}

/* Sets what the counts of seconds need. */
static void measure_text(const struct vfm_record_text *t, struct vfm_stage_output *o)
{
	size_t n;
	const char *kind = vfm_record_text_str(t, vfm_record_text_get(t, "kind"), &n);
	double s;

	o->is_image = kind && n == strlen("image") && !memcmp(kind, "image", n);
	o->duration_s =
		vfm_record_text_get(t, "duration_s") && vfm_record_text_num(t, "duration_s", &s) && s > 0 ? s : 0;
}

/* Writes a record with `keys` and its fingerprint: before the last bracket, or within the "by" that it has. */
static void write_marked(const struct vfm_stage *s, const char *settings, struct text_block *b)
{
	struct vfm_record_text *t = &b->text;
	const struct vfm_text_value *by = vfm_record_text_get(t, "by"),
				    *clip = by ? vfm_record_text_in(t, by, "clip") : NULL;
	size_t n = 0, at = by ? by->at + by->len - 1 : t->len - 1;
	const char *of = vfm_record_text_str(t, clip, &n);
	char hex[VFM_SHA256_HEX], *of_clip = of ? vfm_strfmt("%.*s", (int)n, of) : NULL,
				  *head = vfm_stage_fingerprint_head(s, settings, of_clip);

	vfm_record_text_digest(t, head, vfm_stage_uncovered_keys, hex);
	vfm_buf_add(&b->out, t->text, at);
	if (by)
		vfm_buf_addf(
			&b->out, "%s\"%s\":\"%.*s\"", by->len > 2 ? "," : "", s->name, VFM_FINGERPRINT_TEXT - 1, hex);
	vfm_buf_add(&b->out, t->text + at, t->len - 1 - at);
	vfm_buf_add(&b->out, b->keys.data, b->keys.len);
	if (!by)
		vfm_buf_addf(&b->out, ",\"by\":{\"%s\":\"%.*s\"}", s->name, VFM_FINGERPRINT_TEXT - 1, hex);
	vfm_buf_add(&b->out, "}\n", 2);
	free(of_clip);
	free(head);
}

/* Appends the output of a line to the block.  Returns false if the loop has to do it. */
static bool write_line_text(const struct text_lines *l, struct text_block *b, struct vfm_stage_output *o)
{
	struct vfm_record_text *t = &b->text;

	if (!is_record_text(t) || t->len > VFM_JSONL_LINE / 2) /* what it becomes may be too long: stage_work.c */
		return false;
	o->failed = vfm_record_text_get(t, "error");
	o->dropped = vfm_record_text_get(t, "drop");
	o->is_passed = o->failed || o->dropped;
	if (o->is_passed) {
		vfm_buf_add(&b->out, t->text, t->len);
		vfm_buf_add(&b->out, "\n", 1);
		return true;
	}
	vfm_buf_clear(&b->keys);
	if (!identify_text(l->s, t, o) || !vfm_dedup_mark_text(l->s->ctx, t, &b->keys, &o->reason))
		return false;
	o->dropped = o->reason != NULL;
	measure_text(t, o);
	write_marked(l->s, l->settings, b);
	return true;
}

bool vfm_dedup_suits_text(const char *path)
{
	struct vfm_record_text t = {0};
	struct vfm_jsonl in = {0};
	struct vfm_err err;
	bool suits = false;
	const char *text;
	size_t len;

	if (vfm_jsonl_open(&in, path, &err) < 0)
		return false;
	do
		suits = vfm_jsonl_text(&in, &text, &len, &err) == 1 && vfm_record_text_read(&t, text, len);
	while (suits && vfm_record_text_get(&t, "provenance"));
	vfm_record_text_release(&t);
	vfm_jsonl_close(&in);
	return suits;
}

static int read_text_block(void *ctx, void *item, struct vfm_err *err)
{
	return vfm_dedup_files_read(&((struct text_lines *)ctx)->files, &((struct text_block *)item)->lines, err);
}

static void work_on_text_block(void *ctx, void *item)
{
	const struct text_lines *l = ctx;
	struct text_block *b = item;

	vfm_jsonl_block_split(&b->lines);
	vfm_grow(&b->output, &b->cap, b->lines.n, sizeof(*b->output));
	vfm_buf_clear(&b->out);
	for (size_t i = 0; i < b->lines.n; i++) {
		const struct vfm_jsonl_line *line = &b->lines.lines[i];
		struct vfm_stage_output *o = &b->output[i];
		size_t at = b->out.len;

		*o = (struct vfm_stage_output){0};
		if (!line->too_long && vfm_record_text_read(&b->text, line->text, line->len) &&
			write_line_text(l, b, o))
			o->len = b->out.len - at;
	}
}

static int take_text_block(void *ctx, void *item, struct vfm_err *err)
{
	const struct text_block *b = item;

	return vfm_stage_take(((struct text_lines *)ctx)->loop, &b->lines, b->output, b->out.data, err);
}

int vfm_dedup_mark_lines(struct vfm_stage_loop *loop, const struct vfm_stage *s, struct vfm_err *err)
{
	const int threads = vfm_par_threads();
	struct text_block *items = vfm_calloc((size_t)threads, sizeof(*items));
	struct text_lines l = {.s = s,
		.settings = vfm_provenance_settings(s->options, s->models),
		.loop = loop,
		.files = {.paths = s->files, .n = s->n_files}};
	const struct vfm_ordered o = {read_text_block, work_on_text_block, take_text_block, &l, items, sizeof(*items)};
	int rc = vfm_par_ordered(&o, err);

	for (int i = 0; i < threads; i++) {
		vfm_jsonl_block_release(&items[i].lines);
		vfm_record_text_release(&items[i].text);
		vfm_buf_release(&items[i].out);
		vfm_buf_release(&items[i].keys);
		free(items[i].output);
	}
	free(items);
	free(l.settings);
	vfm_dedup_files_close(&l.files);
	return rc;
}
