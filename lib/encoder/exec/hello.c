/* hello.c - parses and checks the JSON of a hello. */
#include "encoder/exec/hello.h"

#include <string.h>

#include "io/json.h"

#define MAX_BATCH 4096

static const struct {
	const char *name;
	unsigned op;
} ops[] = {
	{"caption", VFM_EXEC_CAPTION},
	{"score", VFM_EXEC_SCORE},
	{"embed", VFM_EXEC_EMBED},
	{"text-encode", VFM_EXEC_TEXT_ENCODE},
	{"encode", VFM_EXEC_ENCODE},
	{"decode", VFM_EXEC_DECODE},
	{"encode-given", VFM_EXEC_ENCODE_GIVEN},
	{"image-encode", VFM_EXEC_IMAGE_ENCODE},
	{"encode-given-last", VFM_EXEC_ENCODE_GIVEN_LAST},
	{"embed-text", VFM_EXEC_EMBED_TEXT},
	{"shots", VFM_EXEC_SHOTS},
};
enum { N_OPS = sizeof(ops) / sizeof(ops[0]) };

unsigned vfm_exec_op_of(const char *name)
{
	for (int i = 0; i < N_OPS; i++)
		if (!strcmp(ops[i].name, name))
			return ops[i].op;
	return 0;
}

const char *vfm_exec_op_name(unsigned op)
{
	for (int i = 0; i < N_OPS; i++)
		if (ops[i].op == op)
			return ops[i].name;
	return "?";
}

static int copy_name(const json_t *o, const char *key, char *dst, size_t size, struct vfm_err *err)
{
	const char *s = NULL;

	TRY(vfm_json_str(o, "hello", key, true, &s, err));
	if (!vfm_is_plain_name(s, size))
		return vfm_fail(err, VFM_EUSAGE, "hello.%s: expected 1 to %zu characters of A-Z a-z 0-9 . _ : / + -",
			key, size - 1);
	strcpy(dst, s);
	return 0;
}

static int parse_sha256(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	const char *s = NULL;

	TRY(vfm_json_str(o, "hello", "sha256", true, &s, err));
	if (strlen(s) != VFM_SHA256_HEX - 1 || strspn(s, "0123456789abcdef") != VFM_SHA256_HEX - 1)
		return vfm_fail(err, VFM_EUSAGE, "hello.sha256: expected 64 hexadecimal digits in lower case");
	memcpy(h->sha256, s, VFM_SHA256_HEX);
	return 0;
}

static int parse_capabilities(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	const json_t *list = json_object_get(o, "capabilities"), *v;
	size_t i;

	if (!json_is_array(list) || json_array_size(list) == 0)
		return vfm_fail(err, VFM_EUSAGE, "hello.capabilities: expected a list of names");
	json_array_foreach(list, i, v)
	{
		/* a capability of a newer protocol is no fault */
		h->ops |= json_is_string(v) ? vfm_exec_op_of(json_string_value(v)) : 0;
	}
	if (!h->ops)
		return vfm_fail(err, VFM_EUSAGE,
			"hello.capabilities: expected some of caption, score, embed, embed-text, text-encode, "
			"image-encode, encode, decode and shots");
	return 0;
}

/* Gets an object, NULL if it is absent. */
static int get_object(const json_t *o, const char *key, bool required, const json_t **out, struct vfm_err *err)
{
	*out = json_object_get(o, key);
	if (json_is_null(*out))
		*out = NULL;
	if (*out && !json_is_object(*out))
		return vfm_fail(err, VFM_EUSAGE, "hello.%s: expected an object", key);
	return *out || !required ? 0 : vfm_fail(err, VFM_EUSAGE, "hello.%s is missing", key);
}

const char *const vfm_exec_fit_names[] = {
	[VFM_EXEC_COVER] = "cover", [VFM_EXEC_CONTAIN] = "contain", [VFM_EXEC_STRETCH] = "stretch", NULL};

static int parse_fit(struct vfm_exec_input *in, const json_t *o, struct vfm_err *err)
{
	const char *fit = vfm_exec_fit_names[VFM_EXEC_COVER];

	TRY(vfm_json_str(o, "hello.input", "fit", false, &fit, err));
	for (int i = 0; vfm_exec_fit_names[i]; i++) {
		if (strcmp(fit, vfm_exec_fit_names[i]) != 0)
			continue;
		in->fit = (enum vfm_exec_fit)i;
		return 0;
	}
	return vfm_fail(err, VFM_EUSAGE, "hello.input.fit: expected cover, contain or stretch, got '%s'", fit);
}

static int parse_input(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	struct vfm_exec_input *in = &h->input;
	static const char *const keys[] = {"kind", "frames", "fps", "max_frames", "width", "height", "fit", NULL};
	const char *kind = "clip", *where = "hello.input";

	TRY(vfm_json_only_keys(o, where, keys, err)); /* a misspelt key would change what the child is shown */
	TRY(vfm_json_str(o, where, "kind", true, &kind, err));
	if (strcmp(kind, "clip") != 0 && strcmp(kind, "frames") != 0)
		return vfm_fail(err, VFM_EUSAGE, "hello.input.kind: expected clip or frames, got '%s'", kind);
	in->clip = !strcmp(kind, "clip");
	TRY(vfm_json_i64(o, where, "frames", false, 1, 65536, &in->frames, err));
	TRY(vfm_json_i64(o, where, "max_frames", false, 1, 65536, &in->max_frames, err));
	TRY(vfm_json_f64(o, where, "fps", false, &in->fps, err));
	TRY(vfm_json_i32(o, where, "width", false, 1, 16384, &in->width, err));
	TRY(vfm_json_i32(o, where, "height", false, 1, 16384, &in->height, err));
	if (!(in->fps >= 0 && in->fps <= 1000))
		return vfm_fail(err, VFM_EUSAGE, "hello.input.fps: expected a rate up to 1000");
	if (in->frames && in->fps > 0)
		return vfm_fail(err, VFM_EUSAGE, "hello.input: expected one of frames and fps");
	if (!in->width != !in->height)
		return vfm_fail(err, VFM_EUSAGE, "hello.input: expected both width and height, or none");
	return parse_fit(in, o, err);
}

/* The range of latents; a record with others fails. */
static int parse_range(struct vfm_hello *h, const json_t *range, struct vfm_err *err)
{
	if (!range || json_is_null(range))
		return 0;
	if (!json_is_array(range) || json_array_size(range) != 2 || !json_is_number(json_array_get(range, 0)) ||
		!json_is_number(json_array_get(range, 1)))
		return vfm_fail(err, VFM_EUSAGE, "hello.tokenizer.range: expected two numbers");
	h->min = json_number_value(json_array_get(range, 0));
	h->max = json_number_value(json_array_get(range, 1));
	return h->min < h->max ? 0 : vfm_fail(err, VFM_EUSAGE, "hello.tokenizer.range: expected [smaller, larger]");
}

static int parse_tokenizer(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {
		"stride", "channels", "frames", "max_frames", "pad", "scaling", "range", NULL};

	TRY(vfm_json_only_keys(o, "hello.tokenizer", keys, err));
	TRY(vfm_geometry_from_json(&h->geometry, o, "hello.tokenizer", err));
	return parse_range(h, json_object_get(o, "range"), err);
}

static int parse_text(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"dim", "rows", "max_rows", NULL};

	TRY(vfm_json_only_keys(o, "hello.text", keys, err));
	h->text_max_rows = 512;
	TRY(vfm_json_i64(o, "hello.text", "dim", true, 1, 1 << 20, &h->text_dim, err));
	TRY(vfm_json_i64(o, "hello.text", "rows", false, 1, 65535, &h->text_rows, err));
	return vfm_json_i64(o, "hello.text", "max_rows", false, 1, 65535, &h->text_max_rows, err);
}

static int parse_image(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"dim", "rows", NULL};

	TRY(vfm_json_only_keys(o, "hello.image", keys, err));
	TRY(vfm_json_i64(o, "hello.image", "dim", true, 1, 65535, &h->image_dim, err));
	return vfm_json_i64(o, "hello.image", "rows", true, 1, 65535, &h->image_rows, err);
}

static int parse_shots(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"width", "height", "frames", "margin", NULL};
	struct vfm_exec_windows *w = &h->shots;

	TRY(vfm_json_only_keys(o, "hello.shots", keys, err));
	TRY(vfm_json_i64(o, "hello.shots", "width", true, 1, 1024, &w->width, err));
	TRY(vfm_json_i64(o, "hello.shots", "height", true, 1, 1024, &w->height, err));
	TRY(vfm_json_i64(o, "hello.shots", "frames", true, 1, 4096, &w->frames, err));
	TRY(vfm_json_i64(o, "hello.shots", "margin", false, 0, 2047, &w->margin, err));
	if (2 * w->margin >= w->frames)
		return vfm_fail(err, VFM_EUSAGE, "hello.shots: expected a margin below half of frames");
	return 0;
}

int vfm_hello_parse(struct vfm_hello *h, const json_t *o, struct vfm_err *err)
{
	static const struct {
		const char *key;
		unsigned needed_by; /* ops */
		int (*parse)(struct vfm_hello *h, const json_t *o, struct vfm_err *err);
	} parts[] = {
		{"input", 0, parse_input},
		{"tokenizer", VFM_EXEC_ENCODE | VFM_EXEC_DECODE, parse_tokenizer},
		{"text", VFM_EXEC_TEXT_ENCODE, parse_text},
		{"image", VFM_EXEC_IMAGE_ENCODE, parse_image},
		{"shots", VFM_EXEC_SHOTS, parse_shots},
	};
	const json_t *part;
	int64_t protocol = 0;

	*h = (struct vfm_hello){.input.clip = true, .batch = 1};
	if (!json_is_object(o) || !json_object_get(o, "vfm_exec"))
		return vfm_fail(err, VFM_EUSAGE, "hello: expected an object with the key \"vfm_exec\"");
	TRY(vfm_json_i64(o, "hello", "vfm_exec", true, 0, INT32_MAX, &protocol, err));
	if (protocol != VFM_EXEC_PROTOCOL)
		return vfm_fail(err, VFM_EUSAGE, "hello: protocol version %lld; this program speaks version %d",
			(long long)protocol, VFM_EXEC_PROTOCOL);
	TRY(copy_name(o, "name", h->name, sizeof(h->name), err));
	TRY(copy_name(o, "version", h->version, sizeof(h->version), err));
	TRY(parse_sha256(h, o, err));
	TRY(parse_capabilities(h, o, err));
	TRY(vfm_json_i32(o, "hello", "batch", false, 1, MAX_BATCH, &h->batch, err));
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		TRY(get_object(o, parts[i].key, h->ops & parts[i].needed_by, &part, err));
		if (part)
			TRY(parts[i].parse(h, part, err));
	}
	return 0;
}
