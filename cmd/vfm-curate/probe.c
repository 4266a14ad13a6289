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
#include "ahead.h"
#include "curate.h"
#include "curate/table/caption_files.h"
#include "inputs.h"
#include "media/av/probe.h"

struct probe {
	bool fast, records;
	double timeout_s;
	int threads;
	struct curate_inputs inputs;
	struct vfm_caption_files *captions; /* NULL: --captions none */
	bool at_rest;                       /* all media files have been read */
	struct curate_ahead ahead;
};

/* The key of a record whose caption is at fault, from next_name to probe_record. */
static const char caption_error[] = "caption_error";

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

/* Sets the caption of a file before the loop computes the fingerprint, which thus covers it. */
static int set_caption(struct probe *p, json_t *rec, const char *path, struct vfm_err *err)
{
	struct vfm_err why = {0};
	json_t *caption;
	int rc;

	if (!p->captions || p->at_rest)
		return 0;
	rc = vfm_caption_files_find(p->captions, path, &caption, &why);
	if (rc == VFM_EINPUT)
		json_object_set_new(rec, caption_error, vfm_json_shown(why.msg));
	else if (rc < 0 && err)
		*err = why;
	else if (caption)
		json_object_set_new(rec, "caption", caption);
	return rc == VFM_EINPUT ? 0 : rc;
}

static bool keep_caption_file(void *captions, const char *path)
{
	return captions && vfm_caption_files_keep(captions, path, false);
}

/* Reports what the inputs had besides media. */
static void report_inputs(struct probe *p)
{
	struct vfm_buf lines = {0};

	if (p->captions)
		vfm_caption_files_report(p->captions, &lines, &p->inputs.left_out);
	if (p->inputs.left_out.n)
		vfm_info("%lld files in folders have no name of a video or image and were left out (--all): %s",
			(long long)p->inputs.left_out.n, p->inputs.left_out.names);
	for (char *line = lines.data, *end; line && *line; line = end + 1) {
		end = strchr(line, '\n');
		*end = 0;
		vfm_info("%s", line);
	}
	vfm_buf_release(&lines);
}

/* Yields the next file; those with names of captions come last, unless they are captions. */
static int next_path(struct probe *p, const char **path, struct vfm_err *err)
{
	int rc;

	do
		rc = curate_inputs_next(&p->inputs, path, err);
	while (rc == 1 && p->captions && vfm_caption_files_keep(p->captions, *path, true));
	p->at_rest = rc == 0;
	if (rc != 0 || !p->captions)
		return rc;
	*path = vfm_caption_files_rest(p->captions);
	return *path ? 1 : 0;
}

static int next_name(void *source, json_t **rec, struct vfm_err *err)
{
	struct probe *p = source;
	const char *path;
	int rc = next_path(p, &path, err);

	if (rc == 0)
		report_inputs(p);
	if (rc != 1)
		return rc;
	*rec = make_file_record(path, err);
	if (!*rec)
		return VFM_EINPUT;
	rc = set_caption(p, *rec, path, err);
	if (rc < 0) {
		json_decref(*rec);
		*rec = NULL;
	}
	return rc < 0 ? rc : 1;
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

/* Reads the facts of a file, and what later stages want, in one decode. */
static int decode_src(
	struct probe *p, json_t *rec, const char *src, const struct vfm_video_opts *video, struct vfm_err *err)
{
	struct vfm_pass_opts o = {.video = *video, .facts = true};
	struct vfm_pass pass;

	curate_ahead_pass_opts(&p->ahead, vfm_rec_str(rec, "id", NULL), &o);
	TRY(vfm_pass_file(&pass, src, &o, err));
	curate_set_facts(rec, &pass.probe);
	if (pass.shots.n)
		vfm_ahead_put(rec, "split", curate_ahead_spans(&pass, o.shots.min_s));
	else
		curate_ahead_put_image(rec, &pass);
	vfm_pass_release(&pass);
	return 0;
}

static int probe_src(struct probe *p, json_t *rec, const char *fault, struct vfm_err *err)
{
	struct vfm_video_opts opts = {.threads = p->threads, .limit = vfm_limit_start(p->timeout_s)};
	char *src, hex[VFM_SHA256_HEX];
	struct vfm_probe facts;
	int rc;

	if (!vfm_rec_str(rec, "src", NULL))
		return vfm_fail(err, VFM_EINPUT, "the record has no src");
	if (json_object_get(rec, "start_frame"))
		return vfm_fail(err, VFM_EINPUT, "the record is that of a clip within its file, not of a file");
	src = vfm_strdup(vfm_rec_str(rec, "src", ""));
	rc = vfm_sha256_input(src, &opts.limit, hex, err);
	if (rc == 0)
		set_id(rec, hex);
	if (rc == 0 && fault)
		rc = vfm_fail(err, VFM_EINPUT, "%s", fault);
	if (rc == 0 && !p->fast && curate_ahead_is_wanted(&p->ahead)) {
		rc = decode_src(p, rec, src, &opts, err);
	} else if (rc == 0) {
		rc = vfm_probe_file(&facts, src, &opts, p->fast, err);
		if (rc == 0)
			curate_set_facts(rec, &facts);
	}
	free(src);
	return rc;
}

static json_t *take_out(json_t *rec, const char *key)
{
	json_t *value = json_incref(json_object_get(rec, key));

	json_object_del(rec, key);
	return value;
}

static int probe_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct probe *p = ctx;
	json_t *caption = p->records ? NULL : take_out(rec, "caption"); /* its place is after the id */
	json_t *fault = p->records ? NULL : take_out(rec, caption_error);
	int rc = probe_src(p, rec, json_string_value(fault), err);

	(void)out, (void)worker;
	if (caption)
		json_object_set(rec, "caption", caption);
	json_decref(caption);
	json_decref(fault);
	return rc;
}

/* Opens the captions that --captions chooses. */
static int open_captions(struct probe *p, const char *from, bool by_line, struct vfm_err *err)
{
	bool none = from && !strcmp(from, "none");

	if (p->records && (from || by_line))
		return vfm_fail(
			err, VFM_EUSAGE, "--records: not with --captions or --caption-lines: records have captions");
	if (none && by_line)
		return vfm_fail(err, VFM_EUSAGE, "--caption-lines: not with --captions none");
	if (p->records || none)
		return 0;
	TRY(vfm_caption_files_open(&p->captions, from, by_line, err));
	p->inputs.is_kept = keep_caption_file;
	p->inputs.ctx = p->captions;
	return 0;
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
	const char *captions = NULL;
	bool by_line = false;
	struct vfm_opt opts[] = {
		{VFM_OPT_FLAG, 0, "fast", NULL, "believe the container about frames and duration; do not decode",
			&p.fast},
		{VFM_OPT_FLAG, 0, "all", NULL, "in folders, look into files of every name", &p.inputs.all},
		{VFM_OPT_FLAG, '0', "null", NULL, "names on stdin end with NUL (find -print0)", &p.inputs.nul},
		{VFM_OPT_FLAG, 0, "records", NULL, "read records and probe the files and tar members of their src",
			&p.records},
		VFM_TIMEOUT_OPT("give up on a file after so long (default 600)", &p.timeout_s),
		{VFM_OPT_GROUP, 0, NULL, NULL, "Captions of the files:", NULL},
		{VFM_OPT_STR, 0, "captions", "FROM",
			"none, a suffix (.txt), or a table (default: what lies next to files)", &captions},
		{VFM_OPT_FLAG, 0, "caption-lines", NULL, "each line of a text file is a caption of its own", &by_line},
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
	TRY(open_captions(&p, captions, by_line, err));
	stage.options = p.fast ? "fast" : NULL;
	p.threads = stage.opts.jobs > 1 ? 1 : vfm_par_threads();
	p.ahead = (struct curate_ahead)CURATE_AHEAD("probe", stage.opts.jobs);
	rc = vfm_stage_run(&stage, NULL, err);
	curate_ahead_release(&p.ahead);
	curate_inputs_release(&p.inputs);
	vfm_caption_files_close(p.captions);
	return rc;
}
