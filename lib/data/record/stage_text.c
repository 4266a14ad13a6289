#include "data/record/stage_text.h"

#include <stdlib.h>
#include <string.h>

#include "data/record/done.h"
#include "data/record/sample_key.h"
#include "data/record/sample_set.h"

const char *const vfm_stage_unmarked[] = {"v", "by", "part", NULL};
const char *const vfm_stage_source_keys[] = {"v", "by", "part", "src", "origin", NULL};

char *vfm_stage_mark_head(const struct vfm_stage *s, const char *settings, const char *clip)
{
	return vfm_strfmt("%s %d\n%s\n%s", s->name, s->version, settings, clip ? clip : "");
}

static bool is_first(const struct vfm_record_text *t, const char *key)
{
	return t->n > 1 && t->v[1].key_len == strlen(key) && !memcmp(t->text + t->v[1].key, key, t->v[1].key_len);
}

/* Whether the line can be worked on as text: a record, no header, that nothing is to be said against. */
static bool is_record_text(const struct vfm_record_text *t)
{
	return is_first(t, "v") && t->v[1].len == 1 && t->text[t->v[1].at] == '1' &&
		!vfm_record_text_get(t, "provenance");
}

/* Sets the id and the contents of a record that the stage works on.  Returns false if they cannot be told from the
 * text, or if the stage has worked on it before. */
static bool identify_text(const struct vfm_stage *s, struct vfm_record_text *t, struct vfm_stage_text *of)
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
	if (!s->unique_ids)
		return true;
	vfm_record_text_digest(t, "", vfm_stage_source_keys, hex);
	hex[16] = 0;
	vfm_sample_hash(id, of->hash);
	of->content = strtoull(hex, NULL, 16);
	return true;
}

/* Writes a record with `keys` and its mark, before the last bracket, or the mark in the "by" that it has. */
static void write_marked(const struct vfm_stage *s, const char *settings, struct vfm_stage_block *b)
{
	struct vfm_record_text *t = &b->text;
	const struct vfm_text_value *by = vfm_record_text_get(t, "by"),
				    *clip = by ? vfm_record_text_in(t, by, "clip") : NULL;
	size_t n = 0, at = by ? by->at + by->len - 1 : t->len - 1;
	const char *of = vfm_record_text_str(t, clip, &n);
	char hex[VFM_SHA256_HEX], *of_clip = of ? vfm_strfmt("%.*s", (int)n, of) : NULL,
				  *head = vfm_stage_mark_head(s, settings, of_clip);

	vfm_record_text_digest(t, head, vfm_stage_unmarked, hex);
	vfm_buf_add(&b->out, t->text, at);
	if (by)
		vfm_buf_addf(&b->out, "%s\"%s\":\"%.*s\"", by->len > 2 ? "," : "", s->name, VFM_DONE_MARK - 1, hex);
	vfm_buf_add(&b->out, t->text + at, t->len - 1 - at);
	vfm_buf_add(&b->out, b->keys.data, b->keys.len);
	if (!by)
		vfm_buf_addf(&b->out, ",\"by\":{\"%s\":\"%.*s\"}", s->name, VFM_DONE_MARK - 1, hex);
	vfm_buf_add(&b->out, "}\n", 2);
	free(of_clip);
	free(head);
}

static void work_on_line(
	const struct vfm_stage *s, const char *settings, struct vfm_stage_block *b, struct vfm_stage_text *of)
{
	struct vfm_record_text *t = &b->text;

	if (!is_record_text(t) || t->len > VFM_JSONL_LINE / 2) /* what it becomes may be too long: stage_work.c */
		return;
	of->at = b->out.len;
	of->failed = vfm_record_text_get(t, "error");
	of->dropped = vfm_record_text_get(t, "drop");
	of->is_passed = of->failed || of->dropped;
	vfm_buf_clear(&b->keys);
	if (of->is_passed) {
		vfm_buf_add(&b->out, t->text, t->len);
		vfm_buf_add(&b->out, "\n", 1);
	} else if (identify_text(s, t, of) && s->text_fn(t, &b->keys, &of->dropped, s->ctx)) {
		write_marked(s, settings, b);
	} else {
		return;
	}
	of->len = b->out.len - of->at;
	of->is_ready = true;
}

bool vfm_stage_text_suits(const char *path)
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

void vfm_stage_text_work(const struct vfm_stage *s, const char *settings, struct vfm_stage_block *b)
{
	vfm_jsonl_block_split(&b->lines);
	vfm_grow(&b->of, &b->cap, b->lines.n, sizeof(*b->of));
	vfm_buf_clear(&b->out);
	for (size_t i = 0; i < b->lines.n; i++) {
		const struct vfm_jsonl_line *line = &b->lines.lines[i];

		b->of[i] = (struct vfm_stage_text){0};
		if (!line->too_long && vfm_record_text_read(&b->text, line->text, line->len))
			work_on_line(s, settings, b, &b->of[i]);
	}
}

void vfm_stage_block_release(struct vfm_stage_block *b)
{
	vfm_jsonl_block_release(&b->lines);
	vfm_record_text_release(&b->text);
	vfm_buf_release(&b->out);
	vfm_buf_release(&b->keys);
	free(b->of);
	*b = (struct vfm_stage_block){0};
}
