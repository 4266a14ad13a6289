/* items.c - the prompts of vfm-sample and the names of their files. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
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
	json_int_t n;

	if (j->o->out_dir)
		return vfm_strfmt("%s/%s.%s", j->o->out_dir, id, j->o->format);
	if (!j->repeats)
		j->repeats = json_object();
	n = json_integer_value(json_object_get(j->repeats, prompt));
	json_object_set_new(j->repeats, prompt, json_integer(n + 1));
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
	const struct vfm_sampling *s = &j->s;
	json_t *seen;
	int rc = 0;

	if (s->n > 1 && !items_has_template(j->o->out_file))
		return vfm_fail(err, VFM_EUSAGE,
			"-o FILE is for a single prompt; there are %zu: give -d DIR, or a FILE with {prompt} and {n}",
			s->n);
	seen = json_object();
	for (size_t i = 0; i < s->n; i++) {
		TRY_OUT(check_file_name(j->o->out_file, s->v[i].p.caption, err));
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

static int add_item_prompt(void *ctx, const json_t *line, const char *caption, struct vfm_err *err)
{
	struct sample_job *j = ctx;
	struct vfm_sample_item *it = vfm_sampling_add(&j->s, caption, line);

	(void)err;
	it->path = file_of_item(j, json_string_value(json_object_get(it->rec, "id")), caption);
	return 0;
}

static int check_utf8(const char *opt, const char *text, struct vfm_err *err)
{
	return vfm_json_takes(text) ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: not UTF-8", opt);
}

int items_collect(struct sample_job *j, struct vfm_err *err)
{
	const struct vfm_strlist *prompts = &j->o->prompts;

	TRY(check_utf8("--negative", j->o->sampling.prompt.negative, err));
	for (int i = 0; i < prompts->n; i++) {
		TRY(check_utf8("--prompt", prompts->v[i], err));
		TRY(add_item_prompt(j, NULL, prompts->v[i], err));
	}
	if (j->o->prompt_file)
		TRY(vfm_prompts_each(j->o->prompt_file, j->o->caption, add_item_prompt, j, err));
	if (j->s.n == 0)
		return vfm_fail(err, VFM_EUSAGE, "no prompt: give -p TEXT or --prompts FILE");
	return j->o->out_file ? check_item_files(j, err) : 0;
}
