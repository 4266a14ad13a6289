/* pipeline.c - parses the JSON of a pipeline and checks each stage's options against its option table. */
#include "curate/pipeline/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/near.h"
#include "data/record/stage.h"
#include "io/json.h"
#include "io/document.h"

#define MAX_BYTES ((size_t)4 << 20)
#define MAX_WORDS 120 /* of a stage; argv has room for those that the run adds */

struct pipeline_reading {
	const json_t *obj; /* of the stage */
	const char *where; /* "stages[2] (score)" */
	struct vfm_curation_stage *s;
	bool has_done;
	const char *children; /* NULL, or the option of the children, whose number "jobs" must give */
	int rc;
	struct vfm_err *err;
};

static bool is_in_list(const char *key, const char *const *list)
{
	while (list && *list && strcmp(key, *list) != 0)
		list++;
	return list && *list;
}

/* Returns whether the run sets an option, or the option makes no sense in it. */
static bool is_reserved(const char *key)
{
	return is_in_list(key, (const char *const[]){"part", "done", "quiet", "help", "version", NULL});
}

static const struct vfm_opt *find_stage_option(const struct vfm_cmd *cmd, const char *name)
{
	const struct vfm_opt *o = cmd->opts;

	while (o->type != VFM_OPT_END && (!o->name || strcmp(o->name, name) != 0))
		o++;
	return o->type == VFM_OPT_END ? NULL : o;
}

static int add_option_word(struct pipeline_reading *r, const char *name, const char *value)
{
	if (r->s->argc >= MAX_WORDS)
		return vfm_fail(r->err, VFM_EUSAGE, "%s: more than %d options", r->where, MAX_WORDS);
	r->s->argv[r->s->argc++] = value ? vfm_strfmt("--%s=%s", name, value) : vfm_strfmt("--%s", name);
	return 0;
}

static int wrong_type(struct pipeline_reading *r, const char *name, const char *want)
{
	return vfm_fail(r->err, VFM_EUSAGE, "%s: '%s': expected %s", r->where, name, want);
}

static int add_list_option(struct pipeline_reading *r, const char *name, const json_t *v)
{
	size_t i;
	json_t *one;

	if (json_is_string(v))
		return add_option_word(r, name, json_string_value(v));
	if (!json_is_array(v))
		return wrong_type(r, name, "a list of texts");
	json_array_foreach((json_t *)(uintptr_t)v, i, one)
	{
		if (!json_is_string(one))
			return wrong_type(r, name, "a list of texts");
		TRY(add_option_word(r, name, json_string_value(one)));
	}
	return 0;
}

static int add_number_option(struct pipeline_reading *r, const char *name, const json_t *v)
{
	char text[VFM_REAL_TEXT];

	if (json_is_integer(v))
		snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(v));
	else
		vfm_real_text(text, json_real_value(v));
	return add_option_word(r, name, text);
}

static int add_option(struct pipeline_reading *r, const struct vfm_opt *o, const json_t *v)
{
	switch (o->type) {
	case VFM_OPT_FLAG:
		if (!json_is_boolean(v))
			return wrong_type(r, o->name, "true or false");
		return json_is_true(v) ? add_option_word(r, o->name, NULL) : 0;
	case VFM_OPT_INT:
		return json_is_integer(v) ? add_number_option(r, o->name, v) : wrong_type(r, o->name, "an integer");
	case VFM_OPT_NUM:
		return json_is_number(v) ? add_number_option(r, o->name, v) : wrong_type(r, o->name, "a number");
	case VFM_OPT_SIZE:
		if (json_is_integer(v))
			return add_number_option(r, o->name, v);
		return json_is_string(v) ? add_option_word(r, o->name, json_string_value(v))
					 : wrong_type(r, o->name, "a size, such as 1000 or \"256M\"");
	case VFM_OPT_STR:
	case VFM_OPT_TEXT:
	case VFM_OPT_WORD:
	case VFM_OPT_NAME:
		if (json_is_integer(v)) /* "frames": 16, where "bucket" is another value */
			return add_number_option(r, o->name, v);
		return json_is_string(v) ? add_option_word(r, o->name, json_string_value(v))
					 : wrong_type(r, o->name, "a text");
	case VFM_OPT_LIST:
		return add_list_option(r, o->name, v);
	case VFM_OPT_END:
	case VFM_OPT_GROUP:
		break;
	}
	return 0;
}

static int unknown_option(struct pipeline_reading *r, const struct vfm_cmd *cmd, const char *key)
{
	struct vfm_strlist names = {0};
	const char *near;

	if (is_reserved(key))
		return vfm_fail(r->err, VFM_EUSAGE, "%s: '%s': the run sets this option itself", r->where, key);
	for (const struct vfm_opt *o = cmd->opts; o->type != VFM_OPT_END; o++)
		if (o->name && !is_reserved(o->name))
			vfm_strlist_add(&names, o->name);
	vfm_strlist_add(&names, NULL);
	near = vfm_near(key, names.v);
	vfm_strlist_release(&names);
	if (near)
		return vfm_fail(
			r->err, VFM_EUSAGE, "%s: unknown option '%s' (did you mean '%s'?)", r->where, key, near);
	return vfm_fail(r->err, VFM_EUSAGE, "%s: unknown option '%s' (%s -h lists them)", r->where, key, cmd->name);
}

/* Turns the keys of a stage into its command line. */
static void read_stage_options(const struct vfm_cmd *cmd, void *ctx)
{
	static const struct vfm_stage_traits none = {0};
	const struct vfm_stage_traits *traits = cmd->stage ? cmd->stage : &none;
	struct pipeline_reading *r = ctx;
	const struct vfm_opt *o;
	const char *key;
	json_t *v;

	r->s->has_resume = traits->has_resume;
	r->s->reads_all = traits->reads_all;
	r->has_done = find_stage_option(cmd, "done");
	o = find_stage_option(cmd, "dir");
	r->s->needs_dir = o && o->required && !json_object_get(r->obj, "dir");
	json_object_foreach((json_t *)(uintptr_t)r->obj, key, v)
	{
		if (!strcmp(key, "stage") || r->rc < 0)
			continue;
		o = find_stage_option(cmd, key);
		if (!o || is_reserved(key)) {
			r->rc = unknown_option(r, cmd, key);
			continue;
		}
		r->s->has_jobs |= !strcmp(key, "jobs");
		r->s->has_model |= is_in_list(key, traits->models);
		if (is_in_list(key, traits->children))
			r->children = traits->children[0];
		r->rc = add_option(r, o, v);
	}
}

static const struct vfm_verb *find_stage(const struct vfm_verb *verbs, const char *name)
{
	while (verbs->name && strcmp(verbs->name, name) != 0)
		verbs++;
	return verbs->name ? verbs : NULL;
}

static int unknown_stage(const char *where, const char *name, const struct vfm_verb *verbs, struct vfm_err *err)
{
	struct vfm_strlist names = {0};
	const char *near;

	for (const struct vfm_verb *v = verbs; v->name; v++)
		vfm_strlist_add(&names, v->name);
	vfm_strlist_add(&names, NULL);
	near = vfm_near(name, names.v);
	vfm_strlist_release(&names);
	if (near)
		return vfm_fail(err, VFM_EUSAGE, "%s: unknown stage '%s' (did you mean '%s'?)", where, name, near);
	return vfm_fail(err, VFM_EUSAGE, "%s: unknown stage '%s'", where, name);
}

/* The options in a fixed order: that of the keys in the file does not matter. */
static int compare_words(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void compute_identity(struct vfm_curation_stage *s)
{
	struct vfm_sha256 *h = vfm_sha256_new();
	char *words[MAX_WORDS];
	int n = s->argc;

	memcpy(words, s->argv, (size_t)n * sizeof(words[0]));
	qsort(words + 1, (size_t)(n - 1), sizeof(words[0]), compare_words);
	for (int i = 0; i < n; i++)
		if (strncmp(words[i], "--jobs=", 7) != 0)
			vfm_sha256_add(h, words[i], strlen(words[i]) + 1);
	vfm_sha256_end(h, s->identity);
}

static int read_stage_object(
	struct vfm_curation *p, const json_t *obj, const struct vfm_verb *verbs, struct vfm_err *err)
{
	struct vfm_curation_stage *s = &p->stage[p->n++];
	struct pipeline_reading r = {.obj = obj, .s = s, .err = err};
	char where[160];
	const char *name;

	snprintf(where, sizeof(where), "stages[%d]", p->n - 1);
	if (!json_is_object(obj))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object with the key 'stage'", where);
	TRY(vfm_json_str(obj, where, "stage", true, &name, err));
	s->verb = find_stage(verbs, name);
	if (!s->verb)
		return unknown_stage(where, name, verbs, err);
	snprintf(where, sizeof(where), "stages[%d] (%s)", p->n - 1, name);
	r.where = where;
	s->argv[s->argc++] = vfm_strdup(name);
	vfm_verb_describe(s->verb, read_stage_options, &r);
	TRY(r.rc);
	if (!r.has_done && !s->reads_all)
		return vfm_fail(err, VFM_EUSAGE, "%s: '%s' is no stage that reads and writes records", where, name);
	if (r.children && !s->has_jobs)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: 'jobs' is missing: the number of children of '%s'", where, r.children);
	compute_identity(s);
	return 0;
}

static int read_inputs(struct vfm_curation *p, const json_t *list, struct vfm_err *err)
{
	size_t i;
	json_t *one;

	if (!list)
		return 0;
	if (!json_is_array(list))
		return vfm_fail(err, VFM_EUSAGE, "inputs: expected a list of files and folders");
	p->inputs = vfm_calloc(json_array_size(list) + 1, sizeof(p->inputs[0]));
	json_array_foreach((json_t *)(uintptr_t)list, i, one)
	{
		if (!json_is_string(one) || !*json_string_value(one))
			return vfm_fail(err, VFM_EUSAGE, "inputs[%zu]: expected the name of a file or folder", i);
		p->inputs[p->n_inputs++] = vfm_strdup(json_string_value(one));
	}
	return 0;
}

static int read_pipeline(struct vfm_curation *p, const json_t *doc, const struct vfm_verb *verbs, struct vfm_err *err)
{
	static const char *const keys[] = {"inputs", "stages", NULL};
	const json_t *stages = json_object_get(doc, "stages");

	if (!json_is_object(doc))
		return vfm_fail(err, VFM_EUSAGE, "expected an object with the key 'stages'");
	TRY(vfm_json_only_keys(doc, "", keys, err));
	if (!json_is_array(stages) || !json_array_size(stages) || json_array_size(stages) > VFM_PROGRESS_STAGES)
		return vfm_fail(err, VFM_EUSAGE, "stages: expected a list of 1 to %d stages", VFM_PROGRESS_STAGES);
	TRY(read_inputs(p, json_object_get(doc, "inputs"), err));
	for (size_t i = 0; i < json_array_size(stages); i++)
		TRY(read_stage_object(p, json_array_get(stages, i), verbs, err));
	return 0;
}

/* Takes the reference of doc, which is NULL if err says why. */
static int take_document(
	struct vfm_curation *p, json_t *doc, const char *what, const struct vfm_verb *verbs, struct vfm_err *err)
{
	int rc;

	memset(p, 0, sizeof(*p));
	if (!doc)
		return err->code;
	p->doc = doc;
	rc = read_pipeline(p, doc, verbs, err);
	return rc < 0 ? vfm_err_context(err, "%s", what) : 0;
}

int vfm_curation_parse(struct vfm_curation *p, const char *text, size_t len, const char *what,
	const struct vfm_verb *verbs, struct vfm_err *err)
{
	return take_document(p, vfm_json_parse(text, len, what, err), what, verbs, err);
}

int vfm_curation_read(struct vfm_curation *p, const char *path, const struct vfm_verb *verbs, struct vfm_err *err)
{
	return take_document(p, vfm_document_load(path, MAX_BYTES, err), path, verbs, err);
}

/* Clips that are black, blank or full of text are of no use to any model, and neither are videos without any motion.
 * Clips are cut last: their scores are those of the source (`interlace` is 0 after deinterlacing), and what is dropped
 * needs no file. */
int vfm_curation_default(struct vfm_curation *p, const struct vfm_verb *verbs, struct vfm_err *err)
{
	static const char text[] = "{\"stages\": ["
				   "{\"stage\": \"probe\"}, {\"stage\": \"split\"}, {\"stage\": \"score\"},"
				   "{\"stage\": \"filter\", \"min\": [\"contrast=0.02\"],"
				   " \"max\": [\"black_ratio=0.5\", \"text_ratio=0.1\"]},"
				   "{\"stage\": \"filter\", \"kind\": \"video\", \"min\": [\"motion=0.01\"]},"
				   "{\"stage\": \"hash\"}, {\"stage\": \"dedup\"}, {\"stage\": \"clip\"}]}";

	return vfm_curation_parse(p, text, sizeof(text) - 1, "the default pipeline", verbs, err);
}

static void free_inputs(struct vfm_curation *p)
{
	for (int i = 0; i < p->n_inputs; i++)
		free(p->inputs[i]);
	free(p->inputs);
	p->inputs = NULL;
	p->n_inputs = 0;
}

int vfm_curation_set_inputs(struct vfm_curation *p, int n, char *const *inputs, struct vfm_err *err)
{
	json_t *list = json_array();
	int rc = 0;

	for (int i = 0; i < n && rc == 0; i++)
		if (json_array_append_new(list, json_string(inputs[i])) != 0)
			rc = vfm_fail(err, VFM_EUSAGE, "the name of input %d is not UTF-8", i + 1);
	if (rc == 0) {
		json_object_set(p->doc, "inputs", list);
		free_inputs(p);
		rc = read_inputs(p, list, err);
	}
	json_decref(list);
	return rc;
}

void vfm_curation_text(struct vfm_buf *b, const struct vfm_curation *p)
{
	const json_t *inputs = json_object_get(p->doc, "inputs"), *stages = json_object_get(p->doc, "stages");

	vfm_buf_adds(b, "{\n");
	if (inputs) {
		vfm_buf_adds(b, "  \"inputs\": ");
		vfm_json_text(b, inputs, 0);
		vfm_buf_adds(b, ",\n");
	}
	vfm_buf_adds(b, "  \"stages\": [\n");
	for (size_t i = 0; i < json_array_size(stages); i++) {
		vfm_buf_adds(b, "    ");
		vfm_json_text(b, json_array_get(stages, i), 0);
		vfm_buf_adds(b, i + 1 < json_array_size(stages) ? ",\n" : "\n");
	}
	vfm_buf_adds(b, "  ]\n}\n");
}

void vfm_curation_release(struct vfm_curation *p)
{
	for (int i = 0; i < p->n; i++)
		for (int k = 0; k < p->stage[i].argc; k++)
			free(p->stage[i].argv[k]);
	free_inputs(p);
	json_decref(p->doc);
}
