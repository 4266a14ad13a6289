/* index - the samples of WebDataset tars of other programs -> a record a video or image; or an index of their latents.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/hash.h"
#include "io/opt.h"
#include "io/tar.h"
#include "curate.h"
#include "curate/table/tar_samples.h"
#include "data/dataset/dataset.h"
#include "data/dataset/index_join.h"
#include "inputs.h"

struct index {
	bool hash, write, fast, for_join, join;
	const char *columns, *dir;
	int nonmatch; /* -1: not given */
	struct curate_inputs inputs;
	struct vfm_tar_samples *tar; /* NULL: between two */
	struct vfm_tar_samples_left left;
};

static void report_left(const struct index *x)
{
	const struct vfm_tar_samples_left *left = &x->left;

	if (left->members.n)
		vfm_info("%lld members are neither a video, an image nor metadata of one, and were left out: %s",
			(long long)left->members.n, left->members.names);
	if (left->links.n)
		vfm_info("%lld hard or symbolic links were left out, as WebDataset does: %s", (long long)left->links.n,
			left->links.names);
	if (left->samples.n)
		vfm_info("%lld samples have no video or image and were left out: %s", (long long)left->samples.n,
			left->samples.names);
	if (left->json.n)
		vfm_info("%lld records have a json that cannot be read and no meta: %s", (long long)left->json.n,
			left->json.names);
}

static int next_sample(void *source, json_t **rec, struct vfm_err *err)
{
	struct index *x = source;
	const char *path;
	int rc;

	for (;;) {
		if (x->tar) {
			rc = vfm_tar_samples_next(x->tar, rec, err);
			if (rc != 0)
				return rc;
			vfm_tar_samples_close(x->tar);
			x->tar = NULL;
		}
		rc = curate_inputs_next(&x->inputs, &path, err);
		if (rc == 0)
			report_left(x);
		if (rc == 1)
			rc = vfm_tar_samples_open(&x->tar, path, &x->left, err);
		else
			return rc;
		if (rc < 0)
			return rc;
	}
}

static int index_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct index *x = ctx;
	char hex[VFM_SHA256_HEX];

	(void)out, (void)worker;
	if (!x->hash)
		return 0;
	TRY(vfm_sha256_input(vfm_rec_str(rec, "src", ""), NULL, hex, err));
	hex[16] = 0;
	json_object_set_new(rec, "id", json_string(hex));
	return 0;
}

/* Joins the operands. */
static int write_join_index(const struct index *x, struct vfm_err *err)
{
	struct vfm_join_how how = {.dir = x->dir,
		.nonmatch = x->nonmatch < 0 ? VFM_NONMATCH_ERROR : (enum vfm_nonmatch)x->nonmatch,
		.parts = (const char *const *)x->inputs.operands,
		.n = x->inputs.n_operands};
	struct vfm_index_join_stats stats;

	if (how.n < 2 || !how.dir)
		return vfm_fail(err, VFM_EUSAGE, "--join: expected at least two folders, and -d DIR");
	TRY(vfm_index_join(&how, &stats, err));
	vfm_info("%s: %lld samples of %d datasets; %lld were left out", x->dir, (long long)stats.samples, how.n,
		(long long)stats.left);
	if (stats.partial)
		vfm_info("%s: %lld samples lack the arrays of a dataset", x->dir, (long long)stats.partial);
	return 0;
}

/* Indexes the latents of each folder in place. */
static int write_indexes(const struct index *x, struct vfm_err *err)
{
	const struct vfm_dataset_how how = {x->fast, x->for_join, x->columns};

	if (x->inputs.n_operands == 0)
		return vfm_fail(err, VFM_EUSAGE, "--write: DIR is missing, a folder of shards with latents");
	for (int i = 0; i < x->inputs.n_operands; i++) {
		const char *dir = x->inputs.operands[i];
		struct vfm_dataset_stats stats = {0};

		TRY(vfm_dataset_index(dir, &how, &stats, err));
		vfm_info("%s: %lld samples in %lld shards, %lld bytes", dir, (long long)stats.samples,
			(long long)stats.shards, (long long)stats.bytes);
	}
	return 0;
}

int curate_index(int argc, char **argv, struct vfm_err *err)
{
	/* opening a compressed tar says what to do */
	struct index x = {.nonmatch = -1, .inputs.is_wanted = vfm_tar_is_name};
	struct vfm_stage stage = {.name = "index",
		.version = 2, /* 1: the caption of KEY.X.mp4 was that of KEY.txt alone */
		.fn = index_record,
		.ctx = &x,
		.next = next_sample,
		.source = &x,
		.key = "src"};
	struct vfm_opt opts[] = {
		{VFM_OPT_FLAG, 0, "hash", NULL, "read each video and image and give the record its id", &x.hash},
		{VFM_OPT_FLAG, 0, "write", NULL,
			"write index.vfmi for the latents in the tars, or MDS shards, of each DIR", &x.write},
		{VFM_OPT_STR, 0, "columns", "PART=COLUMN,...",
			"with --write: the columns of MDS shards with latent, text, key, ...", &x.columns},
		{VFM_OPT_FLAG, 0, "fast", NULL, "with --write: without checksums of the arrays, which are not read",
			&x.fast},
		{VFM_OPT_FLAG, 0, "for-join", NULL, "with --write: samples may be without latents", &x.for_join},
		{VFM_OPT_FLAG, 0, "join", NULL, "write DIR/index.vfmi of samples whose arrays lie in several folders",
			&x.join},
		{VFM_OPT_STR, 'd', "dir", "DIR", "with --join: where to write the index", &x.dir},
		{VFM_OPT_NAME, 0, "nonmatch", "error|skip|none", "with --join: samples that a folder lacks (error)",
			&x.nonmatch},
		{VFM_OPT_FLAG, '0', "null", NULL, "names on stdin end with NUL (find -print0)", &x.inputs.nul},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate index",
		.synopsis = "[OPTION ...] [TAR|DIR ...]\n--write [OPTION ...] DIR ...\n--join -d DIR [OPTION ...] DIR "
			    "DIR ...",
		.summary = "list the videos and images in WebDataset tars, or index latents",
		.opts = opts,
	};
	int rc;

	rc = vfm_opt_parse(&cmd, argc, argv, &x.inputs.n_operands, err);
	if (rc == VFM_OPT_DONE)
		return rc;
	x.inputs.operands = argv + 1;
	stage.options = x.hash ? "hash" : NULL;
	if (rc == 0 && (x.fast || x.columns || x.for_join) && !x.write)
		rc = vfm_fail(err, VFM_EUSAGE, "--%s is for --write",
			x.fast              ? "fast"
				: x.columns ? "columns"
					    : "for-join");
	if (rc == 0 && (x.dir || x.nonmatch >= 0) && !x.join)
		rc = vfm_fail(err, VFM_EUSAGE, "%s is for --join", x.dir ? "-d" : "--nonmatch");
	if (rc == 0 && x.join && (x.write || x.hash))
		rc = vfm_fail(err, VFM_EUSAGE, "--join: neither --write nor --hash");
	if (rc == 0)
		rc = x.join       ? write_join_index(&x, err)
			: x.write ? write_indexes(&x, err)
				  : vfm_stage_run(&stage, NULL, err);
	vfm_tar_samples_close(x.tar);
	curate_inputs_release(&x.inputs);
	return rc;
}
