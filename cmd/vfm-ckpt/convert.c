/* vfm-ckpt reshard, convert - write a checkpoint with another sharding or in another format. */
#include "ckpt/convert.h"

#include <string.h>

#include "base/json.h"
#include "ckpt_cmd.h"
#include "spec/dtype.h"
#include "train/layout.h"

/* Reads the configuration of a checkpoint. */
static int config_of(const struct vfm_ckpt *c, struct vfm_config *cfg, struct vfm_err *err)
{
	if (!json_object_size(c->config))
		return vfm_fail(err, VFM_EUSAGE, "%s has no configuration, which --layout needs; use --files", c->path);
	vfm_config_defaults(cfg);
	return vfm_config_saved(cfg, c->config, err) < 0 ? vfm_err_context(err, "%s: configuration", c->path) : 0;
}

static int reshard_layout(struct vfm_ckpt *c, const char *text, const char *dst, struct vfm_err *err)
{
	struct vfm_ckpt_cut cut = {.own = vfm_layout_own};
	struct vfm_config cfg;
	int ranks, rc;

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
		{VFM_OPT_INT, 'n', "files", "N", "N files per part, of about the same size", &files},
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt reshard",
		.synopsis = "-l LAYOUT | -n N CKPT DIR",
		.summary = "write a checkpoint with another sharding",
		.opts = opts};
	struct vfm_ckpt *c;
	int n, rc = verb_parse(&cmd, argc, argv, 2, 2, &n, err);

	if (rc)
		return rc;
	if (!layout == !files)
		return vfm_fail(err, VFM_EUSAGE, "one of --layout and --files is needed (%s -h)", cmd.name);
	if (files < 0 || files > VFM_CKPT_FILES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "--files: expected 1 to %d", VFM_CKPT_FILES_MAX);
	TRY(vfm_ckpt_open(&c, argv[1], err));
	rc = layout ? reshard_layout(c, layout, argv[2], err) : vfm_ckpt_reshard(c, argv[2], (int)files, NULL, err);
	vfm_ckpt_close(c);
	return rc;
}

/* ---- convert ---- */

static bool has_suffix(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

static int import(struct vfm_ckpt *c, const char *part, int dtype, const char *config, const char *dst, int64_t step,
	struct vfm_err *err)
{
	json_t *j = NULL;
	int rc;

	if (config) {
		j = vfm_json_load(config, 1 << 20, err);
		if (!j)
			return err->code;
	}
	rc = vfm_ckpt_import(c, part, dtype, j, dst, step, err);
	json_decref(j);
	return rc;
}

int verb_convert(int argc, char **argv, struct vfm_err *err)
{
	const char *part = "model", *dtype = NULL, *config = NULL;
	int64_t shard = (int64_t)5 << 30, step = 0;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'p', "part", "PART", "which part: model (default), ema, optim", &part},
		{VFM_OPT_STR, 't', "dtype", "TYPE", "convert floating-point tensors to f32, bf16, f16, f64", &dtype},
		{VFM_OPT_SIZE, 0, "shard", "SIZE", "maximum bytes per file of a directory (default 5G)", &shard},
		{VFM_OPT_STR, 'c', "config", "FILE", "configuration of the checkpoint to write", &config},
		{VFM_OPT_INT, 0, "step", "N", "step of the checkpoint to write (default 0)", &step},
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt convert",
		.synopsis = "[-p PART] [-t TYPE] [--shard SIZE] [-c FILE] [--step N] SRC DST",
		.summary = "convert to safetensors files for other programs, and back",
		.opts = opts};
	struct vfm_ckpt_export x = {.dtype = -1};
	enum vfm_dtype dt;
	struct vfm_ckpt *c;
	int n, rc = verb_parse(&cmd, argc, argv, 2, 2, &n, err);

	if (rc)
		return rc;
	if (dtype) {
		if (vfm_dtype_parse(dtype, &dt, err) < 0)
			return vfm_err_context(err, "--dtype");
		if (!vfm_dtype_is_float(dt))
			return vfm_fail(err, VFM_EUSAGE, "--dtype: %s is not a floating-point type", dtype);
		x.dtype = (int)dt;
	}
	if (shard < 1 || step < 0 || step > (int64_t)1 << 50)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: expected a number >= %d", shard < 1 ? "--shard" : "--step", shard < 1);
	TRY(vfm_ckpt_open(&c, argv[1], err));
	x.part = part;
	x.out = argv[2];
	x.shard_bytes = has_suffix(argv[2], ".safetensors") ? 0 : shard;
	if (c->plain && x.shard_bytes)
		rc = import(c, part, x.dtype, config, argv[2], step, err);
	else
		rc = vfm_ckpt_export(c, &x, err);
	vfm_ckpt_close(c);
	return rc;
}
