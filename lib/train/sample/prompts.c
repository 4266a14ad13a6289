/* prompts.c - reads lines of prompts, and the keys and options that say how each is sampled. */
#include "train/sample/prompts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "data/record/caption.h"
#include "data/record/provenance.h"
#include "data/record/record.h"
#include "io/file.h"
#include "io/json.h"

enum { SIDE_MAX = 16384, FRAMES_MAX = 65536, STEPS_MAX = 100000, FILE_MAX = 64 << 20 };

/* ---- values ---- */

/* Parses A and, after `sep`, B; a missing B is b_default, 0: it is required. */
static int parse_pair(const char *text, char sep, int64_t max, int *a, int *b, int b_default, struct vfm_err *err)
{
	char buf[32], *second;
	int64_t x, y = b_default;

	snprintf(buf, sizeof(buf), "%s", text);
	second = strchr(buf, sep);
	if (second)
		*second++ = '\0';
	TRY(vfm_parse_i64(buf, 1, max, &x, err));
	if (second || b_default == 0)
		TRY(vfm_parse_i64(second ? second : "", 1, max, &y, err));
	*a = (int)x;
	*b = (int)y;
	return 0;
}

int vfm_prompt_size(const char *text, int *width, int *height, struct vfm_err *err)
{
	return parse_pair(text, 'x', SIDE_MAX, width, height, 0, err);
}

int vfm_prompt_rate(const char *text, int *num, int *den, struct vfm_err *err)
{
	return parse_pair(text, '/', 100000, num, den, 1, err);
}

static int apply_size(struct vfm_prompt *p, const json_t *line, struct vfm_err *err)
{
	const char *text = NULL;

	TRY(vfm_json_str(line, "", "size", false, &text, err));
	return text && vfm_prompt_size(text, &p->width, &p->height, err) < 0 ? vfm_err_context(err, "size") : 0;
}

static int apply_rate(struct vfm_prompt *p, const json_t *line, struct vfm_err *err)
{
	const json_t *v = json_object_get(line, "fps");
	char number[32];
	const char *text = number;

	if (!v || json_is_null(v))
		return 0;
	if (json_is_integer(v))
		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(v));
	else
		TRY(vfm_json_str(line, "", "fps", true, &text, err));
	return vfm_prompt_rate(text, &p->fps_num, &p->fps_den, err) < 0 ? vfm_err_context(err, "fps") : 0;
}

/* Refuses a key that no line of prompts has, so that a misspelt one does not go unnoticed. */
static int check_prompt_keys(const json_t *line, struct vfm_err *err)
{
	static const char *const keys[] = {"caption", "negative", "size", "frames", "fps", "seed", "steps", "cfg",
		"image", "last_image", "cond", "text2", "latent", "id", "v", NULL};
	const json_t *text2 = json_object_get(line, "text2");

	if (text2 && !json_is_null(text2) && !json_is_object(text2))
		return vfm_fail(err, VFM_EUSAGE, "text2: expected an object with the path of an array");
	return vfm_json_only_keys(line, "", keys, err);
}

int vfm_prompt_apply(struct vfm_prompt *p, const json_t *line, struct vfm_err *err)
{
	if (!line)
		return 0;
	TRY(vfm_json_str(line, "", "negative", false, &p->negative, err));
	if (json_object_get(line, "src") || json_object_get(line, "key"))
		return 0;
	TRY(check_prompt_keys(line, err));
	TRY(apply_size(p, line, err));
	TRY(vfm_json_i64(line, "", "frames", false, 1, FRAMES_MAX, &p->frames, err));
	TRY(apply_rate(p, line, err));
	TRY(vfm_json_i64(line, "", "seed", false, 0, INT64_MAX, &p->seed, err));
	TRY(vfm_json_i64(line, "", "steps", false, 1, STEPS_MAX, &p->steps, err));
	TRY(vfm_json_f64(line, "", "cfg", false, &p->cfg, err));
	if (!json_is_object(json_object_get(line, "image"))) /* else a file of image rows */
		TRY(vfm_json_str(line, "", "image", false, &p->image, err));
	return vfm_json_str(line, "", "last_image", false, &p->last_image, err);
}

/* ---- lines of text ---- */

/* The options of prompt files of kohya's scripts and musubi-tuner. */
static const struct prompt_option {
	const char *name, *key;
	enum { OPTION_TEXT, OPTION_INTEGER, OPTION_REAL, OPTION_WIDTH, OPTION_HEIGHT } kind;
} prompt_options[] = {
	{"w", "size", OPTION_WIDTH},
	{"h", "size", OPTION_HEIGHT},
	{"f", "frames", OPTION_INTEGER},
	{"d", "seed", OPTION_INTEGER},
	{"s", "steps", OPTION_INTEGER},
	{"l", "cfg", OPTION_REAL},
	{"n", "negative", OPTION_TEXT},
	{"i", "image", OPTION_TEXT},
	{"ei", "last_image", OPTION_TEXT},
};
enum { N_PROMPT_OPTIONS = sizeof(prompt_options) / sizeof(prompt_options[0]) };

static const struct prompt_option *find_prompt_option(const char *name)
{
	for (int i = 0; i < N_PROMPT_OPTIONS; i++)
		if (!strcmp(prompt_options[i].name, name))
			return &prompt_options[i];
	return NULL;
}

/* Returns where the next option begins, the blank in " --NAME" with a short name, or the end of the text.  text begins
 * with a blank. */
static char *find_option_start(char *text)
{
	for (char *s = strstr(text, "--"); s; s = strstr(s + 2, "--")) {
		size_t n = strspn(s + 2, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");

		if (s > text && strchr(" \t", s[-1]) && n > 0 && n <= 2 && strchr(" \t\r", s[2 + n]))
			return s - 1;
	}
	return text + strlen(text);
}

static char *trim_blanks(char *s)
{
	size_t n;

	s += strspn(s, " \t\r");
	n = strlen(s);
	while (n && strchr(" \t\r", s[n - 1]))
		s[--n] = 0;
	return s;
}

/* Sets the key of an option; size [2]: width and height. */
static int set_prompt_option(json_t *line, const char *name, const char *value, int64_t size[2], struct vfm_err *err)
{
	const struct prompt_option *o = find_prompt_option(name);
	int64_t n = 0;
	double x;
	json_t *v;

	if (!o)
		return vfm_fail(err, VFM_EUSAGE,
			"--%s: not an option of a prompt (--w --h --f --d --s --l --n --i --ei)", name);
	if ((o->kind == OPTION_WIDTH && size[0]) || (o->kind == OPTION_HEIGHT && size[1]))
		return vfm_fail(err, VFM_EUSAGE, "--%s: given twice", name);
	if (o->kind == OPTION_WIDTH || o->kind == OPTION_HEIGHT) {
		if (vfm_parse_i64(value, 1, SIDE_MAX, &size[o->kind == OPTION_HEIGHT], err) < 0)
			return vfm_err_context(err, "--%s", name);
		return 0;
	}
	if (json_object_get(line, o->key))
		return vfm_fail(err, VFM_EUSAGE, "--%s: given twice", name);
	if (o->kind == OPTION_TEXT) {
		v = vfm_json_string(value, strlen(value), "the text", err);
	} else if (o->kind == OPTION_INTEGER) {
		v = vfm_parse_i64(value, 0, INT64_MAX, &n, err) < 0 ? NULL : json_integer(n);
	} else {
		v = vfm_parse_f64(value, &x, err) < 0 ? NULL : json_real(x);
	}
	if (!v)
		return vfm_err_context(err, "--%s", name);
	json_object_set_new(line, o->key, v);
	return 0;
}

static int set_prompt_size(json_t *line, const int64_t size[2], struct vfm_err *err)
{
	char text[48];

	if (!size[0] && !size[1])
		return 0;
	if (!size[0] || !size[1])
		return vfm_fail(err, VFM_EUSAGE, "--w and --h need each other");
	snprintf(text, sizeof(text), "%lldx%lld", (long long)size[0], (long long)size[1]);
	json_object_set_new(line, "size", json_string(text));
	return 0;
}

/* Parses "a fox in the snow --w 832 --h 480 --d 7" to *line, which the caller owns; NULL after a failure.  Changes
 * text. */
static int parse_text_line(char *text, json_t **line, struct vfm_err *err)
{
	char *at = find_option_start(text), *caption;
	bool more = *at;
	int64_t size[2] = {0};
	json_t *words;
	int rc = 0;

	*at = 0;
	caption = trim_blanks(text);
	words = vfm_json_string(caption, strlen(caption), "the prompt", err);
	*line = words ? json_pack("{s:o}", "caption", words) : NULL;
	if (!words)
		return VFM_EUSAGE;
	while (more && rc == 0) {
		char *name = at + 3, *blank = name + strcspn(name, " \t\r");

		at = find_option_start(blank);
		more = *at;
		*at = *blank = 0;
		rc = set_prompt_option(*line, name, blank < at ? trim_blanks(blank + 1) : "", size, err);
	}
	if (rc == 0)
		rc = set_prompt_size(*line, size, err);
	if (rc < 0) {
		json_decref(*line);
		*line = NULL;
	}
	return rc;
}

/* ---- files ---- */

struct prompt_reader {
	const char *name;
	int (*take)(void *ctx, const json_t *line, const char *caption, struct vfm_err *err);
	void *ctx;
};

/* The caption of a line: its only one, or the one of this name. */
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
		    : vfm_fail(err, VFM_EINPUT,
			      "caption: %d captions with names: choose one by --caption of vfm-sample", c.n);
}

static int take_prompt_line(const struct prompt_reader *r, const json_t *line, struct vfm_err *err)
{
	struct vfm_prompt checked = {0};
	const char *caption;

	if (vfm_provenance_is_header(line))
		return 0;
	TRY(choose_caption(r->name, line, &caption, err));
	TRY(vfm_prompt_apply(&checked, line, err));
	return r->take(r->ctx, line, caption, err);
}

static int take_prompt_array(const struct prompt_reader *r, const char *path, struct vfm_err *err)
{
	json_t *all = vfm_json_load(path, FILE_MAX, err), *line;
	int rc = all ? 0 : err->code;
	size_t i;

	if (all && !json_is_array(all))
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': expected an array of prompts (or .jsonl: a line each)", path);
	json_array_foreach(all, i, line)
	{
		rc = json_is_object(line) ? take_prompt_line(r, line, err)
					  : vfm_fail(err, VFM_EUSAGE, "expected an object");
		if (rc < 0) {
			vfm_err_context(err, "'%s': prompt %zu", path, i);
			break;
		}
	}
	json_decref(all);
	return rc;
}

static int parse_prompt_line(
	const struct vfm_jsonl *in, const char *text, size_t len, bool is_text, json_t **line, struct vfm_err *err)
{
	char *copy;
	int rc;

	*line = NULL;
	if (!is_text)
		return vfm_jsonl_parse(in, text, len, line, err);
	if (strlen(text) != len)
		return vfm_fail(err, VFM_EUSAGE, "%s:%lld: the line has a zero byte", in->name, (long long)in->line);
	copy = vfm_strfmt(" %s", text);
	rc = parse_text_line(copy, line, err);
	free(copy);
	return rc < 0 ? vfm_err_context(err, "%s:%lld", in->name, (long long)in->line) : 1;
}

static int take_prompt_lines(const struct prompt_reader *r, struct vfm_jsonl *in, const char *path, struct vfm_err *err)
{
	bool known = vfm_name_ends(path, ".txt") || vfm_name_ends(path, ".jsonl"),
	     is_text = vfm_name_ends(path, ".txt");
	const char *text;
	json_t *line;
	size_t len;
	int rc;

	while ((rc = vfm_jsonl_text(in, &text, &len, err)) == 1) {
		is_text = known ? is_text : *text != '{';
		known = true;
		if (is_text && *text == '#')
			continue;
		TRY(parse_prompt_line(in, text, len, is_text, &line, err));
		rc = take_prompt_line(r, line, err);
		json_decref(line);
		if (rc < 0)
			return vfm_err_context(err, "%s:%lld", in->name, (long long)in->line);
	}
	return rc;
}

int vfm_prompts_each(const char *path, const char *name,
	int (*take)(void *ctx, const json_t *line, const char *caption, struct vfm_err *err), void *ctx,
	struct vfm_err *err)
{
	const struct prompt_reader r = {name, take, ctx};
	struct vfm_jsonl in = {0};
	int rc;

	if (vfm_name_ends(path, ".toml") || vfm_name_ends(path, ".yaml") || vfm_name_ends(path, ".csv"))
		return vfm_fail(err, VFM_EUSAGE, "'%s': prompts are .txt, .json or .jsonl (vfm-prompts(5))", path);
	if (vfm_name_ends(path, ".json")) {
		rc = take_prompt_array(&r, path, err);
	} else {
		TRY(vfm_jsonl_open(&in, path, err));
		rc = take_prompt_lines(&r, &in, path, err);
		vfm_jsonl_close(&in);
	}
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}
