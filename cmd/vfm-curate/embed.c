/* embed - a vector for each clip, for semantic deduplication and search. */
#include <pthread.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "curate.h"
#include "data/sample_key.h"
#include "exec_stage.h"

struct embed {
	struct exec_stage model;
	const char *dir;
	pthread_mutex_t lock;
	struct vfm_npy first; /* shape and dtype of the first vector; ndim 0: not yet; guarded by lock */
};

/* Vectors of one model can be compared: all have the dimension and the dtype of the first. */
static int check_vector(struct embed *e, const struct vfm_npy *npy, struct vfm_err *err)
{
	struct vfm_npy first;

	if (npy->type == VFM_NPY_U8)
		return vfm_fail(err, VFM_EINPUT, "vector.dtype: expected a floating-point type");
	pthread_mutex_lock(&e->lock);
	if (e->first.ndim == 0)
		e->first = *npy;
	first = e->first;
	pthread_mutex_unlock(&e->lock);
	if (npy->shape[0] == first.shape[0] && npy->type == first.type)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "vector: expected [%lld] of %s, as of the first record, got [%lld] of %s",
		(long long)first.shape[0], vfm_npy_type_name(first.type), (long long)npy->shape[0],
		vfm_npy_type_name(npy->type));
}

static int save_vector(
	struct embed *e, json_t *rec, struct vfm_exec_slot *slot, const json_t *answer, struct vfm_err *err)
{
	struct vfm_maker maker = vfm_outside_maker(vfm_exec_hello(e->model.exec));
	char sha256[VFM_SHA256_HEX], *path;
	struct vfm_npy npy;
	const void *data;
	int rc;

	TRY(vfm_outside_array(slot, answer, "vector", 1, (int64_t[]){0}, &npy, &data, err));
	TRY(check_vector(e, &npy, err));
	path = vfm_strfmt("%s/%s.embedding.npy", e->dir, vfm_rec_str(rec, "id", ""));
	rc = vfm_npy_save(path, &npy, data, sha256, err);
	if (rc >= 0)
		json_object_set_new(rec, "embedding",
			json_pack("{s:s,s:s,s:[I],s:s,s:o}", "path", path, "sha256", sha256, "shape",
				(json_int_t)npy.shape[0], "dtype", vfm_npy_type_name(npy.type), "maker",
				vfm_maker_json(&maker)));
	free(path);
	return rc;
}

static int embed_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct embed *e = ctx;
	struct vfm_exec_slot *slot = vfm_exec_slot(e->model.exec, worker);
	json_t *request, *answer;
	int rc;

	(void)out;
	TRY(vfm_sample_key_check(vfm_rec_str(rec, "id", NULL), err));
	request = vfm_outside_show(slot, &e->model.view, rec, err);
	if (!request)
		return err->code;
	TRY(vfm_exec_call(slot, request, &answer, err));
	rc = save_vector(e, rec, slot, answer, err);
	json_decref(answer);
	return rc;
}

int curate_embed(int argc, char **argv, struct vfm_err *err)
{
	static const char *const outputs[] = {"embedding", NULL};
	struct embed e = {.model = {.opts = VFM_EXEC_DEFAULTS, .timeout_s = 3600}, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct vfm_stage stage = {
		.name = "embed", .fn = embed_record, .ctx = &e, .unique_ids = true, .outputs = outputs};
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'd', "dir", "DIR", "write ID.embedding.npy into DIR", &e.dir},
		EXEC_STAGE_OPTS(&e.model),
		{VFM_OPT_NUM, 0, "timeout", "SECONDS", "give up on reading a clip after so long (default 3600)",
			&e.model.timeout_s},
		VFM_EXEC_OPTS(&e.model.opts),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate embed",
		.synopsis = "-d DIR " EXEC_STAGE_SYNOPSIS " [--timeout SECONDS] " VFM_EXEC_SYNOPSIS
			    " " VFM_STAGE_SYNOPSIS " [FILE ...]",
		.summary = "compute a vector for each clip with an outside model",
		.opts = opts,
	};
	int rc = vfm_opt_parse(&cmd, argc, argv, &stage.n_files, err);

	if (rc == VFM_OPT_DONE)
		return rc;
	if (rc == 0 && !e.dir)
		rc = vfm_fail(err, VFM_EUSAGE, "-d DIR is missing: where the vectors go");
	if (rc == 0)
		rc = vfm_mkdir_p(e.dir, err);
	if (rc == 0) {
		stage.files = argv + 1;
		rc = exec_stage_run(&e.model, &stage, "embed", NULL, err);
	}
	return rc;
}
