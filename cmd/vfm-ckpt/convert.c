/* vfm-ckpt reshard, import, export, merge - write a checkpoint with another sharding, from other files, or as other
 * files. */
#include "ckpt/convert.h"

#include <math.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/export.h"
#include "io/document.h"
#include "ckpt_cmd.h"
#include "spec/model/dtype.h"
#include "train/step/layout.h"

/* Reads the configuration of a checkpoint. */
static int config_of(const struct vfm_ckpt *c, struct vfm_config *cfg, struct vfm_err *err)
{
	return vfm_config_saved(cfg, c->config, err) < 0 ? vfm_err_context(err, "%s: configuration", c->path) : 0;
}

static int reshard_layout(struct vfm_ckpt *c, const char *text, const char *dst, struct vfm_err *err)
{
	struct vfm_ckpt_cut cut = {.own = vfm_layout_own};
	struct vfm_config cfg;
	int ranks, rc;

	if (!json_object_size(c->config))
		return vfm_fail(err, VFM_EUSAGE, "%s has no configuration, which --layout needs; use --files", c->path);
	TRY(config_of(c, &cfg, err));
	if (vfm_layout_parse(&cfg, text, &ranks, err) < 0)
		return vfm_err_context(err, "--layout");
	cut.ctx = vfm_layout_new(&cfg, ranks);
	rc = vfm_ckpt_reshard(c, dst, ranks, &cut, err);
	vfm_layout_free(cut.ctx);
	return rc;
}

int verb_reshard(int argc, char **argv, struct vfm_err *err)
{
	const char *layout = NULL;
	int64_t files = 0;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'l', "layout", "LAYOUT", "the layout to write for: tp=2,pp=2,dp=4,fsdp", &layout},
		{VFM_OPT_INT, 0, "files", "N", "N files per part, of about the same size", &files, 1,
			VFM_CKPT_FILES_MAX},
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt reshard",
		.synopsis = "-l LAYOUT | --files N CKPT DIR",
		.summary = "write a checkpoint with another sharding",
		.opts = opts};
	struct vfm_ckpt *c;
	int n, rc = verb_parse(&cmd, argc, argv, 2, 2, &n, err);

	if (rc)
		return rc;
	if (!layout == !files)
		return vfm_fail(err, VFM_EUSAGE, "one of --layout and --files is needed (%s -h)", cmd.name);
	TRY(vfm_ckpt_open(&c, argv[1], err));
	rc = layout ? reshard_layout(c, layout, argv[2], err) : vfm_ckpt_reshard(c, argv[2], (int)files, NULL, err);
	vfm_ckpt_close(c);
	return rc;
}

/* ---- import, export ---- */

static bool has_suffix(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

/* Sets *out to the type of an option, -1 if it is not given. */
static int float_type(const char *text, int *out, struct vfm_err *err)
{
	enum vfm_dtype dt;

	*out = -1;
	if (!text)
		return 0;
	if (vfm_dtype_parse(text, &dt, err) < 0)
		return vfm_err_context(err, "--dtype");
	if (!vfm_dtype_is_float(dt))
		return vfm_fail(err, VFM_EUSAGE, "--dtype: %s is not a floating-point type", text);
	*out = (int)dt;
	return 0;
}

/* Reads the file of -c: its document, and the model if it has that section. */
static int read_given(const char *path, json_t **json, struct vfm_config *cfg, bool *model, struct vfm_err *err)
{
	*json = NULL;
	*model = false;
	if (!path)
		return 0;
	*json = vfm_document_load(path, 1 << 20, err);
	if (!*json)
		return err->code;
	if (vfm_config_saved(cfg, *json, err) < 0)
		return vfm_err_context(err, "%s", path);
	*model = json_object_get(*json, "model") != NULL;
	return 0;
}

int verb_import(int argc, char **argv, struct vfm_err *err)
{
	const char *part = "model", *dtype = NULL, *config = NULL;
	int64_t step = 0;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 0, "part", "PART", "which part the tensors become: model (default), ema, optim", &part},
		{VFM_OPT_STR, 0, "dtype", "TYPE", "convert floating-point tensors to f32, bf16, f16, f64", &dtype},
		{VFM_OPT_STR, 'c', "config", "FILE", "configuration of the checkpoint to write", &config},
		{VFM_OPT_INT, 0, "step", "N", "step of the checkpoint to write (default 0)", &step, 0, 0x1p50},
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt import",
		.synopsis = "[--part PART] [--dtype TYPE] [-c FILE] [--step N] SRC DIR",
		.summary = "make a checkpoint of the files of other programs",
		.opts = opts};
	struct vfm_ckpt_how how = {0};
	struct vfm_config cfg;
	struct vfm_ckpt *c = NULL;
	json_t *json = NULL;
	bool model;
	int n, type, rc = verb_parse(&cmd, argc, argv, 2, 2, &n, err);

	if (rc)
		return rc;
	TRY(float_type(dtype, &type, err));
	TRY_OUT(read_given(config, &json, &cfg, &model, err));
	how.model = model ? &cfg.model : NULL;
	TRY_OUT(vfm_ckpt_open_as(&c, argv[1], &how, err));
	TRY_OUT(vfm_ckpt_want_model(c, err));
	if (json && c->config) {
		json_t *both = json_deep_copy(c->config);

		json_object_update_recursive(both, json);
		json_decref(json);
		json = both;
	}
	rc = vfm_ckpt_import(c, part, type, json, argv[2], step, err);
out:
	vfm_ckpt_close(c);
	json_decref(json);
	return rc;
}

/* Sets *cfg to the configuration of the model to export: that of -c, or of the checkpoint. */
static int exported_config(const struct vfm_ckpt *c, const char *path, struct vfm_config *cfg, struct vfm_err *err)
{
	json_t *json;
	bool model;
	int rc;

	if (!path && !json_object_get(c->config, "model"))
		return vfm_fail(
			err, VFM_EUSAGE, "%s has no configuration, which --layout needs; -c FILE gives one", c->path);
	if (!path)
		return config_of(c, cfg, err);
	rc = read_given(path, &json, cfg, &model, err);
	if (rc == 0 && !model)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no section 'model'", path);
	json_decref(json);
	return rc;
}

/* The options that merge and export have in common. */
struct export_cli {
	struct vfm_ckpt_export x;
	const char *layout, *dtype, *config;
	int64_t shard;
};
static const struct export_cli export_defaults = {.x = {.part = "model"}, .layout = "vfm", .shard = (int64_t)5 << 30};

#define EXPORT_ROWS(e, base)                                                                                           \
	{VFM_OPT_STR, 0, "dtype", "TYPE", "convert floating-point tensors to f32, bf16, f16, f64", &(e)->dtype},       \
		{VFM_OPT_SIZE, 0, "shard", "SIZE", "maximum bytes per file of a directory (default 5G)", &(e)->shard,  \
			1, HUGE_VAL},                                                                                  \
	{                                                                                                              \
		VFM_OPT_STR, 'c', "config", "FILE", "configuration of the model, if " base " has none", &(e)->config   \
	}

/* Exports weights, or adapters in the layout of another program. */
static int export_to(struct vfm_ckpt *c, struct export_cli *e, struct vfm_err *err)
{
	struct vfm_ckpt_export *x = &e->x;
	struct vfm_config cfg;

	x->shard_bytes = has_suffix(x->out, ".safetensors") ? 0 : e->shard;
	if (!strcmp(e->layout, "vfm"))
		return vfm_ckpt_export(c, x, err);
	if (vfm_ckpt_is_adapters(c)) {
		const struct vfm_adapters_export a = {
			.part = x->part, .dtype = x->dtype, .layout = e->layout, .out = x->out};

		return vfm_ckpt_export_adapters(c, &a, err);
	}
	x->layout = e->layout;
	x->model = &cfg.model;
	TRY(exported_config(c, e->config, &cfg, err));
	return vfm_ckpt_export(c, x, err);
}

/* Opens the checkpoint of a run that trained adapters; NULL for other adapters. */
static struct vfm_ckpt *open_trained(const char *adapters)
{
	const struct vfm_ckpt_how raw = {.raw = true};
	struct vfm_ckpt *c = NULL;
	struct vfm_err ignored = {0};

	if (vfm_ckpt_open_as(&c, adapters, &raw, &ignored) < 0)
		return NULL; /* a directory of peft, for example; merging reports faults */
	return c;
}

/* Returns the part of their base model that a run trained its adapters with; "model" of other adapters. */
static const char *trained_part(const struct vfm_ckpt *c)
{
	const json_t *init = c ? json_object_get(c->state, "init") : NULL;
	const char *part = json_string_value(json_object_get(init, "part"));

	return part && !strcmp(part, "ema") ? "ema" : "model";
}

int verb_merge(int argc, char **argv, struct vfm_err *err)
{
	const char *part = "model", *base = NULL;
	struct export_cli e = export_defaults;
	struct vfm_attach a = {.scale = 1};
	struct vfm_opt opts[] = {
		{VFM_OPT_NUM, 0, "scale", "SCALE", "factor of the adapters (default 1)", &a.scale},
		{VFM_OPT_FLAG, 0, "skip-missing", NULL, "leave out adapters of layers that BASE lacks",
			&a.skip_missing},
		{VFM_OPT_STR, 'l', "layout", "LAYOUT", "names of the tensors: vfm (default), diffusers, original",
			&e.layout},
		{VFM_OPT_STR, 0, "part", "PART", "adapters of a checkpoint: model (default), ema", &part},
		{VFM_OPT_WORD, 0, "base-part", "model|ema",
			"weights of a checkpoint BASE (default: those that the adapters were trained with)", &base},
		EXPORT_ROWS(&e, "BASE"),
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt merge",
		.synopsis = "[OPTION ...] BASE ADAPTERS DST",
		.summary = "add low-rank adapters to the weights of their base model",
		.opts = opts};
	struct vfm_ckpt *c = NULL, *adapters;
	int n, rc = verb_parse(&cmd, argc, argv, 3, 3, &n, err);

	if (rc)
		return rc;
	TRY(float_type(e.dtype, &e.x.dtype, err));
	TRY(vfm_ckpt_open(&c, argv[1], err));
	e.x.adapters = adapters = open_trained(argv[2]);
	e.x.part = base ? base : trained_part(adapters);
	e.x.out = argv[3];
	TRY_OUT(vfm_ckpt_want_model(c, err));
	a.path = argv[2];
	a.part = part;
	TRY_OUT(vfm_ckpt_attach(c, &a, err));
	rc = export_to(c, &e, err);
out:
	vfm_ckpt_close(adapters);
	vfm_ckpt_close(c);
	return rc;
}

int verb_export(int argc, char **argv, struct vfm_err *err)
{
	struct export_cli e = export_defaults;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'l', "layout", "LAYOUT",
			"names: vfm (default), diffusers, original; of adapters also peft, comfyui, kohya", &e.layout},
		{VFM_OPT_STR, 0, "part", "PART", "which part: model (default), ema, optim", &e.x.part},
		EXPORT_ROWS(&e, "CKPT"),
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt export",
		.synopsis = "[OPTION ...] CKPT DST",
		.summary = "write safetensors files for other programs",
		.opts = opts};
	struct vfm_ckpt *c = NULL;
	int n, rc = verb_parse(&cmd, argc, argv, 2, 2, &n, err);

	if (rc)
		return rc;
	TRY(float_type(e.dtype, &e.x.dtype, err));
	TRY(vfm_ckpt_open(&c, argv[1], err));
	e.x.out = argv[2];
	rc = vfm_ckpt_want_model(c, err);
	if (!rc)
		rc = export_to(c, &e, err);
	vfm_ckpt_close(c);
	return rc;
}
