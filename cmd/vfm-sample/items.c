/* items.c - the prompts of vfm-sample. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/caption.h"
#include "data/record/provenance.h"
#include "io/file.h"
#include "io/json.h"
#include "sample.h"

enum { NAMED_PROMPT_MAX = 220 }; /* bytes of a prompt in a file name, which has at most 255 */

/* ---- files ---- */

bool items_has_template(const char *out_file)
{
	const char *slash = strrchr(out_file, '/'), *name = slash ? slash + 1 : out_file;

	return strstr(name, "{prompt}") || strstr(name, "{n}");
}

/* Returns -o FILE of an item; the caller frees it. */
static char *fill_template(const char *out_file, const char *prompt, json_int_t n)
{
	const char *slash = strrchr(out_file, '/'), *name = slash ? slash + 1 : out_file;
	struct vfm_buf b = {0};

	vfm_buf_add(&b, out_file, (size_t)(name - out_file));
	while (*name)
		if (!strncmp(name, "{prompt}", 8)) {
			vfm_buf_adds(&b, prompt);
			name += 8;
		} else if (!strncmp(name, "{n}", 3)) {
			vfm_buf_addf(&b, "%lld", (long long)n);
			name += 3;
		} else {
			vfm_buf_add(&b, name++, 1);
		}
	return b.data;
}

/* Returns the file of the next item; the caller frees it. */
static char *file_of_item(struct sample_job *j, const char *id, const char *prompt)
{
	struct items *s = &j->items;
	json_int_t n;

	if (j->o->out_dir)
		return vfm_strfmt("%s/%s.%s", j->o->out_dir, id, j->o->format);
	if (!s->repeats)
		s->repeats = json_object();
	n = json_integer_value(json_object_get(s->repeats, prompt));
	json_object_set_new(s->repeats, prompt, json_integer(n + 1));
	return fill_template(j->o->out_file, prompt, n);
}

/* Refuses a prompt that is to be in a file name and cannot be. */
static int check_file_name(const char *out_file, const char *prompt, struct vfm_err *err)
{
	bool bad = strlen(prompt) > NAMED_PROMPT_MAX;

	if (!strstr(out_file, "{prompt}"))
		return 0;
	for (const char *c = prompt; *c && !bad; c++)
		bad = *c == '/' || (unsigned char)*c < ' ' || (*c == '%' && vfm_name_ends(out_file, ".png"));
	return bad ? vfm_fail(err, VFM_EUSAGE,
			     "-o: a prompt cannot be in a file name, where it has at most %d bytes and no '/', control "
			     "character or, in .png, '%%': '%s'",
			     NAMED_PROMPT_MAX, prompt)
		   : 0;
}

/* With -o: each item needs a file of its own. */
static int check_item_files(const struct sample_job *j, struct vfm_err *err)
{
	const struct items *s = &j->items;
	json_t *seen;
	int rc = 0;

	if (s->n > 1 && !items_has_template(j->o->out_file))
		return vfm_fail(err, VFM_EUSAGE,
			"-o FILE is for a single prompt; there are %zu: give -d DIR, or a FILE with {prompt} and {n}",
			s->n);
	seen = json_object();
	for (size_t i = 0; i < s->n; i++) {
		TRY_OUT(check_file_name(j->o->out_file, s->v[i].caption, err));
		if (json_object_get(seen, s->v[i].path))
			TRY_OUT(vfm_fail(err, VFM_EUSAGE,
				"-o: several prompts have the file '%s': give {prompt} and {n}", s->v[i].path));
		json_object_set_new(seen, s->v[i].path, json_true());
	}
out:
	json_decref(seen);
	return rc;
}

/* ---- prompts ---- */

/* Returns the record of the next item. */
static json_t *new_item_record(const struct items *s, const char *caption)
{
	char id[32];

	snprintf(id, sizeof(id), "sample-%06zu", s->n);
	return json_pack("{s:i,s:s,s:s}", "v", 1, "id", id, "caption", caption);
}

/* Takes the reference to rec. */
static void add_item(struct sample_job *j, json_t *rec)
{
	struct items *s = &j->items;
	const char *id = json_string_value(json_object_get(rec, "id"));
	struct item *it;

	vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
	it = &s->v[s->n];
	if (!json_object_get(rec, "negative") && *j->o->negative)
		json_object_set_new(rec, "negative", json_string(j->o->negative));
	*it = (struct item){.rec = rec,
		.caption = json_string_value(json_object_get(rec, "caption")),
		.negative = json_string_value(json_object_get(rec, "negative"))};
	it->negative = it->negative ? it->negative : "";
	it->path = file_of_item(j, id, it->caption);
	s->n++;
}

/* The caption of a line: its only one, or the one that --caption names. */
static int choose_caption(const char *name, const json_t *line, const char **caption, struct vfm_err *err)
{
	struct vfm_captions c;

	if (!json_object_get(line, "caption"))
		return vfm_fail(err, VFM_EINPUT, "caption: missing (expected a string)");
	TRY(vfm_captions_of(&c, line, err));
	for (int i = 0; i < c.n; i++)
		if (!*c.list[i].name || (name && !strcmp(c.list[i].name, name))) {
			*caption = c.list[i].value ? json_string_value(c.list[i].value) : "";
			return 0;
		}
	return name ? vfm_fail(err, VFM_EINPUT, "caption: no caption has the name '%s'", name)
		    : vfm_fail(err, VFM_EINPUT, "caption: %d captions with names: choose one by --caption", c.n);
}

/* The line stays in the record as a whole: its keys describe another file than the video of the record. */
static int add_prompt_line(void *ctx, const json_t *line, struct vfm_err *err)
{
	struct sample_job *j = ctx;
	const char *caption, *negative;
	json_t *rec;

	if (vfm_provenance_is_header(line))
		return 0;
	TRY(choose_caption(j->o->caption, line, &caption, err));
	TRY(vfm_json_str(line, "", "negative", false, &negative, err));
	rec = new_item_record(&j->items, caption);
	json_object_set(rec, "prompt", (json_t *)(uintptr_t)line);
	if (json_object_get(line, "negative"))
		json_object_set(rec, "negative", json_object_get(line, "negative"));
	add_item(j, rec);
	return 0;
}

static int read_prompts(struct sample_job *j, struct vfm_err *err)
{
	int rc = vfm_jsonl_each(j->o->prompt_file, add_prompt_line, j, err);

	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

static int check_utf8(const char *opt, const char *text, struct vfm_err *err)
{
	return vfm_json_takes(text) ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: not UTF-8", opt);
}

int items_collect(struct sample_job *j, struct vfm_err *err)
{
	const struct vfm_strlist *prompts = &j->o->prompts;

	TRY(check_utf8("--negative", j->o->negative, err));
	for (int i = 0; i < prompts->n; i++) {
		TRY(check_utf8("--prompt", prompts->v[i], err));
		add_item(j, new_item_record(&j->items, prompts->v[i]));
	}
	if (j->o->prompt_file)
		TRY(read_prompts(j, err));
	if (j->items.n == 0)
		return vfm_fail(err, VFM_EUSAGE, "no prompt: give -p TEXT or --prompts FILE");
	return j->o->out_file ? check_item_files(j, err) : 0;
}

int items_share(struct sample_job *j, struct vfm_err *err)
{
	const struct items *s = &j->items;
	struct vfm_job *job = &j->x->job;
	json_t *all = json_array(), *rec;
	char *text = NULL;
	size_t i;
	int rc;

	for (i = 0; i < s->n; i++)
		json_array_append(all, s->v[i].rec);
	if (job->world->rank == 0)
		text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	rc = vfm_job_broadcast(job, &text, err);
	if (rc == 0 && job->world->rank != 0) {
		all = json_loads(text ? text : "", 0, NULL);
		json_array_foreach(all, i, rec) add_item(j, json_incref(rec));
		json_decref(all);
	}
	free(text);
	return rc;
}

void items_release(struct items *s)
{
	for (size_t i = 0; i < s->n; i++) {
		json_decref(s->v[i].rec);
		free(s->v[i].path);
		free(s->v[i].why);
	}
	free(s->v);
	json_decref(s->repeats);
	*s = (struct items){0};
}
