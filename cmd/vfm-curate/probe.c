/* probe - files, folders or a list of names -> a record a file. */
#include <errno.h>
#include <fts.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/par.h"
#include "curate.h"
#include "data/stage.h"
#include "media/probe.h"

struct probe {
	bool fast, all, nul;
	double timeout_s;
	int threads;
	/* operands, stdin and the walk of folders */
	char **operands;
	int n_operands, at;
	bool from_stdin;
	FTS *tree;
	char *line;
	size_t line_cap;
	int64_t left_out;
};

/* ---- names ---- */

static json_t *record_for(const char *path, struct vfm_err *err)
{
	json_t *src = json_string(path);
	char *shown;

	if (src)
		return json_pack("{s:i,s:o}", "v", 1, "src", src);
	shown = vfm_strdup(path);
	for (char *s = shown; *s; s++)
		if ((unsigned char)*s >= 0x80)
			*s = '?';
	vfm_fail(err, VFM_EINPUT, "the file name '%s' is not UTF-8", shown);
	free(shown);
	return NULL;
}

static int compare_names(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Whether a file becomes a record: each operand, and in folders the names of media.  Opening it reports a dangling
 * link, a FIFO and other files that cannot be read. */
static bool is_wanted(struct probe *p, const FTSENT *e)
{
	if (e->fts_level == FTS_ROOTLEVEL || p->all || vfm_media_name(e->fts_name))
		return true;
	p->left_out++;
	return false;
}

/* 1 = *path is set (until the next call), 0 = the tree is done. */
static int next_in_tree(struct probe *p, const char **path, struct vfm_err *err)
{
	FTSENT *e;

	while (errno = 0, (e = fts_read(p->tree))) {
		*path = e->fts_path;
		switch (e->fts_info) {
		case FTS_D:
			if (e->fts_level > FTS_ROOTLEVEL && e->fts_name[0] == '.')
				fts_set(p->tree, e, FTS_SKIP);
			break;
		case FTS_DP:
			break;
		case FTS_DC:
			return vfm_fail(err, VFM_EINPUT, "'%s' is a folder that contains itself", e->fts_path);
		case FTS_NS: /* opening the file reports the error */
			return 1;
		case FTS_DNR:
		case FTS_ERR:
			errno = e->fts_errno;
			return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", e->fts_path);
		default:
			if (is_wanted(p, e))
				return 1;
		}
	}
	if (errno) /* no memory; folders that cannot be read are entries */
		return vfm_fail_errno(err, VFM_EENV, "cannot walk the folder");
	fts_close(p->tree);
	p->tree = NULL;
	return 0;
}

static int next_line(struct probe *p, const char **path, struct vfm_err *err)
{
	char end = p->nul ? 0 : '\n';
	ssize_t n;

	while ((n = getdelim(&p->line, &p->line_cap, end, stdin)) > 0) {
		if (p->line[n - 1] == end)
			p->line[--n] = 0;
		if (n == 0)
			continue;
		*path = p->line;
		return 1;
	}
	if (!feof(stdin)) /* an error, or no memory for the line */
		return vfm_fail_errno(err, VFM_EENV, "cannot read <stdin>");
	p->from_stdin = false;
	return 0;
}

static int next_operand(struct probe *p, struct vfm_err *err)
{
	char *roots[2] = {NULL, NULL};

	if (p->at >= p->n_operands)
		return 0;
	roots[0] = p->operands[p->at++];
	if (!strcmp(roots[0], "-")) {
		p->from_stdin = true;
		return 1;
	}
	p->tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, compare_names);
	if (!p->tree)
		return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", roots[0]);
	return 1;
}

static int next_name(void *source, json_t **rec, struct vfm_err *err)
{
	struct probe *p = source;
	const char *path = NULL;
	int rc;

	for (;;) {
		if (p->from_stdin)
			rc = next_line(p, &path, err);
		else if (p->tree)
			rc = next_in_tree(p, &path, err);
		else
			rc = 0;
		if (rc == 1) {
			*rec = record_for(path, err);
			return *rec ? 1 : VFM_EINPUT;
		}
		if (rc < 0)
			return rc;
		rc = next_operand(p, err);
		if (rc == 0 && p->left_out)
			vfm_info("%lld files in folders have no name of a video or image and were left out (--all)",
				(long long)p->left_out);
		if (rc <= 0)
			return rc;
	}
}

/* ---- records ---- */

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

static int probe_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct probe *p = ctx;
	struct vfm_video_opts opts = {.threads = p->threads, .limit = vfm_limit_start(p->timeout_s)};
	char *src = vfm_strdup(vfm_rec_str(rec, "src", ""));
	char hex[VFM_SHA256_HEX];
	struct vfm_probe facts;
	int rc;

	(void)out, (void)worker;
	rc = vfm_sha256_file(src, &opts.limit, hex, err);
	if (rc == 0) {
		hex[16] = 0;
		json_object_del(rec, "src"); /* re-added below, so that the key "id" comes first */
		json_object_set_new(rec, "id", json_string(hex));
		json_object_set_new(rec, "src", json_string(src));
		rc = vfm_probe_file(&facts, src, &opts, p->fast, err);
	}
	if (rc == 0)
		curate_set_facts(rec, &facts);
	free(src);
	return rc;
}

int curate_probe(int argc, char **argv, struct vfm_err *err)
{
	struct probe p = {.timeout_s = 600};
	struct vfm_stage stage = {.name = "probe",
		.version = 1,
		.fn = probe_record,
		.ctx = &p,
		.next = next_name,
		.source = &p,
		.key = "src"};
	struct vfm_opt opts[] = {
		{VFM_OPT_FLAG, 0, "fast", NULL, "believe the container about frames and duration; do not decode",
			&p.fast},
		{VFM_OPT_FLAG, 0, "all", NULL, "in folders, look into files of every name", &p.all},
		{VFM_OPT_FLAG, '0', "null", NULL, "names on stdin end with NUL (find -print0)", &p.nul},
		{VFM_OPT_NUM, 0, "timeout", "SECONDS", "give up on a file after so long (default 600)", &p.timeout_s},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate probe",
		.synopsis = "[-0] [--fast] [--all] [--timeout SECONDS] " VFM_STAGE_SYNOPSIS " [FILE|DIR ...]",
		.summary = "find out what media files hold, a record a file",
		.opts = opts,
	};
	int rc;

	rc = vfm_opt_parse(&cmd, argc, argv, &p.n_operands, err);
	if (rc == VFM_OPT_DONE)
		return rc;
	p.operands = argv + 1;
	p.from_stdin = p.n_operands == 0;
	stage.options = p.fast ? "fast" : NULL;
	p.threads = stage.opts.jobs > 1 ? 1 : vfm_par_threads();
	if (rc == 0)
		rc = vfm_timeout_check(p.timeout_s, err);
	if (rc == 0)
		rc = vfm_stage_run(&stage, NULL, err);
	if (p.tree)
		fts_close(p.tree);
	free(p.line);
	return rc;
}
