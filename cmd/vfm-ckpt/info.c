/* vfm-ckpt info - prints step, model and size from the manifest. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"
#include "ckpt_cmd.h"
#include "data/record/encoder_id.h"

/* Appends "dit 12 layers, hidden 384, 6 heads"; omits keys that the config lacks. */
static void model_text(const struct vfm_ckpt *c, struct vfm_buf *b)
{
	static const char *const words[] = {"preset", "name", "arch", "kind"};
	static const char *const ints[][2] = {{"layers", "layers "}, {"hidden", "hidden "}, {"heads", "heads "}};
	const json_t *m = json_object_get(c->config, "model");

	vfm_buf_adds(b, json_is_string(m) ? json_string_value(m) : "");
	for (int i = 0; i < 4 && !b->len; i++)
		if (json_is_string(json_object_get(m, words[i])))
			vfm_buf_adds(b, json_string_value(json_object_get(m, words[i])));
	for (int i = 0; i < 3; i++) {
		const json_t *x = json_object_get(m, ints[i][0]);

		if (json_is_integer(x))
			vfm_buf_addf(b, "%s%s%lld", b->len ? ", " : "", ints[i][1], (long long)json_integer_value(x));
	}
}

/* The encoders of the training data, and "vfm-pack: tokenizer of data/b; …" for the accepted differences. */
static int encoder_ids_text(const struct vfm_ckpt *c, struct vfm_table *t, struct vfm_err *err)
{
	const json_t *forced = json_object_get(c->state, "forced"), *entry;
	char label[VFM_ENCODER_ID_LABEL];
	struct vfm_buf b = {0};
	struct vfm_encoder_ids m;
	size_t i;

	if (vfm_encoder_ids_from_json(&m, json_object_get(c->state, "encoders"), "state.encoders", err) < 0)
		return vfm_err_context(err, "%s", c->path);
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++) {
		const struct vfm_encoder_id *encoder_id = &m.of[e];

		vfm_encoder_id_label(encoder_id, label);
		vfm_table_str(t, vfm_encoder_kinds[e].key, encoder_id->name[0] ? label : NULL);
	}
	json_array_foreach(forced, i, entry)
	{
		const char *tool = json_string_value(json_object_get(entry, "tool")),
			   *encoder = json_string_value(json_object_get(entry, "encoder")),
			   *file = json_string_value(json_object_get(entry, "file"));

		vfm_buf_addf(&b, "%s%s: %s of %s", b.len ? "; " : "", tool ? tool : "?", encoder ? encoder : "?",
			file ? file : "?");
	}
	vfm_table_str(t, "forced", b.len ? b.data : NULL);
	vfm_buf_release(&b);
	return 0;
}

static int info_row(struct vfm_table *t, const struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_buf model = {0}, parts = {0};
	int64_t params = 0, all = 0;
	char size[32];

	for (int i = 0; i < c->n; i++) {
		const char *slash = c->plain ? NULL : strchr(c->t[i].name, '/');
		size_t len = slash ? (size_t)(slash - c->t[i].name) : 0;

		all += c->t[i].numel;
		if (len == 5 && !strncmp(c->t[i].name, "model", 5))
			params += c->t[i].numel;
		if (len && (i == 0 || strncmp(c->t[i].name, c->t[i - 1].name, len + 1) != 0))
			vfm_buf_addf(&parts, "%s%.*s", parts.len ? "," : "", (int)len, c->t[i].name);
	}
	model_text(c, &model);
	bytes_text(c->bytes, size, sizeof(size));
	vfm_table_row(t);
	vfm_table_str(t, "path", c->path);
	if (!c->plain)
		vfm_table_i64(t, "step", c->step);
	vfm_table_str(t, "model", model.len ? model.data : NULL);
	vfm_table_i64(t, "params", c->plain ? all : params);
	vfm_table_i64(t, "tensors", c->n);
	vfm_table_str(t, "parts", parts.len ? parts.data : NULL);
	vfm_table_i64(t, "files", c->n_files);
	vfm_table_i64(t, "world", c->world);
	vfm_table_i64(t, "bytes", c->bytes);
	vfm_table_str(t, "size", size);
	if (c->nonfinite >= 0)
		vfm_table_i64(t, "nonfinite", c->nonfinite);
	vfm_buf_release(&model);
	vfm_buf_release(&parts);
	return encoder_ids_text(c, t, err);
}

int verb_info(int argc, char **argv, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"path", "checkpoint", 0}, {"step", "step", 0},
		{"model", "model", 0}, {"params", "parameters", 0}, {"tensors", "tensors", 0, VFM_COLUMN_DETAIL},
		{"parts", "parts", 0, VFM_COLUMN_DETAIL}, {"files", "files", 0, VFM_COLUMN_DETAIL},
		{"world", "ranks", 0, VFM_COLUMN_DETAIL}, {"bytes", "bytes", 0, VFM_COLUMN_DETAIL}, {"size", "size", 0},
		{"nonfinite", "not finite", 0}, {"tokenizer", "tokenizer", 0}, {"text", "text encoder", 0},
		{"image", "image encoder", 0}, {"text2", "second text encoder", 0}, {"forced", "forced", 0}, {0}};
	struct vfm_table_opts table = {0};
	struct vfm_opt opts[] = {VFM_TABLE_OPTS(&table), {0}};
	struct vfm_cmd cmd = {.name = "vfm-ckpt info",
		.synopsis = "[--format FORMAT] CKPT ...",
		.summary = "step, model, size of checkpoints",
		.opts = opts};
	struct vfm_table *t;
	int n, rc = verb_parse(&cmd, argc, argv, 1, -1, &n, err);

	if (rc)
		return rc;
	t = vfm_table_new(columns);
	for (int i = 1; i <= n && !rc; i++) {
		struct vfm_ckpt *c;

		rc = vfm_ckpt_open(&c, argv[i], err);
		if (rc)
			break;
		rc = info_row(t, c, err);
		vfm_ckpt_close(c);
	}
	return verb_print(t, &table, rc, err);
}
