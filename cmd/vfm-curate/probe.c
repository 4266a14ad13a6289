/* probe - files, folders, a list of names or records -> a record a file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "inputs.h"
#include "media/av/probe.h"

struct probe {
	bool fast, records;
	double timeout_s;
	int threads;
	struct curate_inputs inputs;
};

/* Returns {"v":1,"src":path}, or NULL with VFM_EINPUT if the name is not UTF-8. */
static json_t *make_file_record(const char *path, struct vfm_err *err)
{
	json_t *shown;

	if (vfm_json_takes(path))
		return json_pack("{s:i,s:s}", "v", 1, "src", path);
	shown = vfm_json_shown(path);
	vfm_fail(err, VFM_EINPUT, "the file name '%s' is not UTF-8", json_string_value(shown));
	json_decref(shown);
	return NULL;
}

static int next_name(void *source, json_t **rec, struct vfm_err *err)
{
	struct probe *p = source;
	const char *path;
	int rc = curate_inputs_next(&p->inputs, &path, err);

	if (rc == 1) {
		*rec = make_file_record(path, err);
		return *rec ? 1 : VFM_EINPUT;
	}
	if (rc == 0 && p->inputs.left_out.n)
		vfm_info("%lld files in folders have no name of a video or image and were left out (--all): %s",
			(long long)p->inputs.left_out.n, p->inputs.left_out.names);
	return rc;
}

static void set_int(json_t *rec, const char *key, int64_t value)
{
	json_object_set_new(rec, key, value < 0 ? json_null() : json_integer(value));
}

void curate_set_facts(json_t *rec, const struct vfm_probe *p)
{
	const struct vfm_video_info *i = &p->info;
	char fps[48];

	json_object_set_new(rec, "kind", json_string(i->image ? "image" : "video"));
	json_object_set_new(rec, "container", json_string(i->container));
	json_object_set_new(rec, "codec", json_string(i->codec));
	json_object_set_new(rec, "pix_fmt", json_string(i->pix_fmt));
	set_int(rec, "width", i->width);
	set_int(rec, "height", i->height);
	if (!i->image) {
		snprintf(fps, sizeof(fps), "%d/%d", p->fps_num, p->fps_den);
		json_object_set_new(rec, "fps", json_string(fps));
	}
	set_int(rec, "frames", p->frames);
	json_object_set_new(
		rec, "duration_s", p->duration_s < 0 ? json_null() : vfm_json_real(round(p->duration_s * 1e6) / 1e6));
	set_int(rec, "rotation", i->rotation);
	if (i->mirrored)
		json_object_set_new(rec, "mirrored", json_true());
	if (i->sar_num != i->sar_den) {
		snprintf(fps, sizeof(fps), "%d:%d", i->sar_num, i->sar_den);
		json_object_set_new(rec, "sar", json_string(fps));
	}
	json_object_set_new(rec, "has_audio", json_boolean(i->has_audio));
	if (p->vfr)
		json_object_set_new(rec, "vfr", json_true());
	if (p->bad_times)
		json_object_set_new(rec, "bad_times", json_true());
	if (p->interlaced)
		json_object_set_new(rec, "interlaced", json_true());
	if (i->color_transfer[0])
		json_object_set_new(rec, "color_transfer", json_string(i->color_transfer));
	if (i->color_primaries[0])
		json_object_set_new(rec, "color_primaries", json_string(i->color_primaries));
	if (p->resized)
		json_object_set_new(rec, "resized", json_true());
	if (i->frames >= 0 && i->frames != p->frames)
		set_int(rec, "frames_claimed", i->frames);
	set_int(rec, "decode_errors", p->decode_errors);
}

/* Sets the id, the first 16 digits of the SHA-256 of the content.  Another one, of records that were read, is kept. */
static void set_id(json_t *rec, char hex[VFM_SHA256_HEX])
{
	json_t *was = json_incref(json_object_get(rec, "id")), *src = json_incref(json_object_get(rec, "src"));

	hex[16] = 0;
	json_object_del(rec, "src"); /* re-added, so that the key "id" comes first */
	json_object_set_new(rec, "id", json_string(hex));
	json_object_set_new(rec, "src", src);
	if (was && (!json_is_string(was) || strcmp(json_string_value(was), hex) != 0))
		json_object_set(rec, "source_id", was);
	json_decref(was);
}

static int probe_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct probe *p = ctx;
	struct vfm_video_opts opts = {.threads = p->threads, .limit = vfm_limit_start(p->timeout_s)};
	char *src, hex[VFM_SHA256_HEX];
	struct vfm_probe facts;
	int rc;

	(void)out, (void)worker;
	if (!vfm_rec_str(rec, "src", NULL))
		return vfm_fail(err, VFM_EINPUT, "the record has no src");
	if (json_object_get(rec, "start_frame"))
		return vfm_fail(err, VFM_EINPUT, "the record is that of a clip within its file, not of a file");
	src = vfm_strdup(vfm_rec_str(rec, "src", ""));
	rc = vfm_sha256_input(src, &opts.limit, hex, err);
	if (rc == 0) {
		set_id(rec, hex);
		rc = vfm_probe_file(&facts, src, &opts, p->fast, err);
	}
	if (rc == 0)
		curate_set_facts(rec, &facts);
	free(src);
	return rc;
}

int curate_probe(int argc, char **argv, struct vfm_err *err)
{
	struct probe p = {.timeout_s = 600, .inputs.is_wanted = vfm_media_name};
	struct vfm_stage stage = {.name = "probe",
		.version = 3, /* 1: fewer faults of MPEG-TS counted; 2: pictures in a row were one image */
		.fn = probe_record,
		.ctx = &p,
		.source = &p,
		.key = "src"};
	struct vfm_opt opts[] = {
		{VFM_OPT_FLAG, 0, "fast", NULL, "believe the container about frames and duration; do not decode",
			&p.fast},
		{VFM_OPT_FLAG, 0, "all", NULL, "in folders, look into files of every name", &p.inputs.all},
		{VFM_OPT_FLAG, '0', "null", NULL, "names on stdin end with NUL (find -print0)", &p.inputs.nul},
		{VFM_OPT_FLAG, 0, "records", NULL, "read records and probe the files and tar members of their src",
			&p.records},
		VFM_TIMEOUT_OPT("give up on a file after so long (default 600)", &p.timeout_s),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate probe",
		.synopsis = "[OPTION ...] [FILE|DIR ...]",
		.summary = "read the size, rate and length of video and image files",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	p.inputs.operands = stage.files;
	p.inputs.n_operands = stage.n_files;
	stage.next = p.records ? NULL : next_name;
	if (p.records && (p.inputs.nul || p.inputs.all))
		return vfm_fail(err, VFM_EUSAGE, "--records: not with -0 or --all, which are about names");
	stage.options = p.fast ? "fast" : NULL;
	p.threads = stage.opts.jobs > 1 ? 1 : vfm_par_threads();
	rc = vfm_stage_run(&stage, NULL, err);
	curate_inputs_release(&p.inputs);
	return rc;
}
